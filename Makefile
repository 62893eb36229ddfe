# Every target sets up what it needs: a virtual environment in .venv, made by $(PYTHON), with pinned packages.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
VERSION ?=

BIN := $(VENV)/bin
PINS := pyproject.toml constraints.txt requirements/young.txt
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install

.PHONY: help demo test test-model test-servers lint bench clean

help:
	@echo "make demo   ingest the example documents and ask one question of each kind (no key, no PostgreSQL needed)"
	@echo "make test   run all tests on a real PostgreSQL; ARGS='-k name' to choose"
	@echo "make test-model   run the tests that ask a real, small language model (130 MB of wheels more)"
	@echo "make test-servers VERSION=15   run the tests of SQL and migrations on PostgreSQL 15, 16, 17 or 18 (downloads it once)"
	@echo "make lint   ruff, mypy and the import contracts"
	@echo "make bench  measure recall and speed on question sets; ARGS='DIRECTORY...'"
	@echo "make clean  remove the virtual environment and build output"

demo: $(VENV)/.local
	@$(BIN)/python examples/demo.py $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

test-model: $(VENV)/.model
	@$(BIN)/python -m pytest tests/model $(ARGS)

test-servers: $(VENV)/.dev
	@programs=$$($(BIN)/python -m tests.support.servers $(VERSION)) && PGRAG_PG_BIN=$$programs \
	    $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile tests/sql tests/migration $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.dev
	@$(BIN)/python benchmarks/quality.py $(if $(ARGS),$(ARGS),--help)

clean:
	rm -rf $(VENV) build dist

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "pgrag needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3" >&2; exit 2; }
	@echo "Making a virtual environment in $(VENV) (about 1 GB, a minute or two; only once) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The wheels that are verified by hash come first: pip then finds them in place. --no-build-isolation: the build backend
# (hatchling, and editables for -e) is pinned as everything else.
$(VENV)/.local: $(PINS) | $(VENV)/.python
	@$(PIP) --no-deps --require-hashes -r requirements/young.txt
	@$(PIP) -c constraints.txt hatchling editables
	@$(PIP) -c constraints.txt --no-build-isolation -e '.[local]'
	@touch $@

$(VENV)/.dev: $(PINS) | $(VENV)/.local
	@$(PIP) -c constraints.txt --no-build-isolation -e '.[local,dev]'
	@touch $@

$(VENV)/.model: requirements/model.txt | $(VENV)/.dev
	@$(PIP) --no-deps --require-hashes -r requirements/model.txt
	@$(BIN)/python -c 'import xllamacpp' || \
	    { echo "the model server cannot be loaded: if libgomp is missing, install it (apt-get install libgomp1)" >&2; exit 2; }
	@touch $@
