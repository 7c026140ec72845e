# make demo and make test set up a virtual environment of their own; nothing else is needed but
# Python 3.11 or later. VENV, PYTHON and WORKERS (tests side by
# side, one thread each) may be overridden.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test lint clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,report]"
	touch $(READY)

demo: $(READY)
	$(BIN)/symprompt demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist src/*.egg-info
