PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: test demo browser
test: $(STAMP) browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist worksteal

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# the page of `offramp serve` is tested in a real one; where it may not be installed, only that is left out
browser:
	-@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
		SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
		$$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq chromium chromium-driver; \
	}

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
