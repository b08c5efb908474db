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

# the page of `offramp serve` is tested in chromium; without it, only that is left out
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif command -v apt-get >/dev/null && { [ "$$(id -u)" = 0 ] || [ -n "$$CI" ]; }; then \
		SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
		$$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq chromium chromium-driver || true; \
	else \
		echo "chromium and chromedriver are missing: the page of offramp serve is not tested."; \
		echo "Install them to test it, on Debian: sudo apt-get install chromium chromium-driver"; \
	fi

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
