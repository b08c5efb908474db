PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
CLIENTS := .venv/clients

.PHONY: test demo browser
test: $(STAMP) $(CLIENTS)/installed browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist worksteal

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# portable folders are tested with packages from npm; without node, only that is left out
$(CLIENTS)/installed: tests/clients/package.json tests/clients/package-lock.json | $(STAMP)
	@if command -v node >/dev/null && command -v npm >/dev/null; then \
		mkdir -p $(CLIENTS) && cp tests/clients/package*.json $(CLIENTS) && \
		npm ci --prefix $(CLIENTS) --ignore-scripts --no-audit --no-fund --loglevel=error && touch $@; \
	else \
		echo "node and npm are missing: portable folders are not tested with other libraries."; \
	fi

# the pages of `offramp serve` and of examples/browser are tested in chromium; without it, only that is left out
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
