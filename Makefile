# One command each, from a fresh clone: the environment is made if it is missing or out of date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# What computes, and short prunes: these must not hang on how a processor rounds.
NUMERICAL := $(addprefix tests/,observation profiles selection rebuilding surgery groups criteria) \
	tests/test_formats.py tests/test_sameness.py tests/pipeline/test_prune.py tests/pipeline/test_steady.py
# torch's plain kernels, those without AVX-512, MKL's one path for every processor, and sums split over three threads.
ROUNDINGS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=3

.PHONY: demo test test-portable lint docs clean browser

demo: $(STAMP)
	$(BIN)/cosep demo

test: $(STAMP) lint browser
	$(BIN)/pytest -n 2

# The numerical tests as other processors would run them. Another Python: make test-portable VENV=.venv310 PYTHON=python3.10
test-portable: $(STAMP)
	for rounding in $(ROUNDINGS); do \
		echo "== $$rounding"; env OMP_NUM_THREADS=1 $$rounding $(BIN)/pytest -n 2 $(NUMERICAL) || exit 1; \
	done

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
