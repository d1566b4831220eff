# One command each, from a fresh clone: the environment is made if it is missing or out of date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint docs clean browser

demo: $(STAMP)
	$(BIN)/cosep demo

test: $(STAMP) lint browser
	$(BIN)/pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in site/. `make test` builds it too, and runs every code block in it.
docs: $(STAMP)
	$(BIN)/mkdocs build --strict

# Chromium and axe-core for the tests of the report's pages; those tests are skipped where they cannot be had.
browser: $(STAMP)
	sh tests/reporting/browser.sh $(VENV)/browser

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
