# Set up, show, check and measure. `make help` lists what there is.

PYTHON ?= python3
BIN := .venv/bin

# `make demo` needs the base install alone; where the full one is there, it is used.
DEMO_INSTALL := $(if $(wildcard .venv/.installed),.venv/.installed,.venv/.installed-base)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-oldest lint pages bench campaign browser database clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-11s %s\n", $$1, $$2 }'

demo: $(DEMO_INSTALL)  ## train with and without guidance on the embedded images, and show the report
	$(BIN)/ipg demo

test: lint  ## lint, type-check, and run the tests that take seconds
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not slow" -n auto --maxprocesses 4 --dist worksteal

test-slow: .venv/.installed browser database  ## the tests that take minutes: browsers, builds, whole demos
	$(BIN)/pytest -m slow

test-oldest: .venv/.installed  ## the tests that take seconds, with the oldest versions admitted, in an environment of their own
	PYTHONPATH=tests $(BIN)/python -m campaign versions --only 0

lint: .venv/.installed  ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pages: .venv/.installed  ## make tables, figures and pages again from the rows in results/
	$(BIN)/python -m ipg.experiments.table --write README.md
	$(BIN)/python -m ipg.experiments.reproduce --write docs/results.md
	$(BIN)/python -m ipg.benchmarks.page --write docs/speed.md
	PYTHONPATH=tests $(BIN)/python -m campaign.page --write docs/reliability.md

campaign: .venv/.installed  ## try what is promised on thousands of cases, and keep the rows (hours; goes on where it stopped)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m campaign all --progress build/campaign --rows results/reliability.jsonl
	PYTHONPATH=tests $(BIN)/python -m campaign.page --write docs/reliability.md

bench: .venv/.installed  ## measure speed and memory, as ratios in one run
	$(BIN)/ipg bench

clean:  ## remove the environment and everything built or cached
	rm -rf .venv build dist ipg-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --disable-pip-version-check --editable ".[dev]"
	@touch $@

.venv/.installed-base: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --disable-pip-version-check --editable .
	@touch $@

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "ipg needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)."; \
	  echo "Name another interpreter: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; \
	  exit 1; } >&2
	$(PYTHON) -m venv .venv

# The report is tested in a real browser. Root on a Debian machine gets one installed; others are told what is missing.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; \
	else \
	  echo "Note: chromium and chromedriver are missing, so the browser tests will skip, which fails the session."; \
	  echo "On Debian: apt-get install chromium chromium-driver"; \
	fi

# A search over many machines is tested on a real PostgreSQL server, which is installed in the same way.
database:
	@if command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql; \
	else \
	  echo "Note: PostgreSQL is missing, so the tests of a search in a database will skip."; \
	  echo "On Debian: apt-get install postgresql"; \
	fi
