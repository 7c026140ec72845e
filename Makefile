# make demo and make test set up a virtual environment of their own; nothing else is needed but
# Python 3.11 or later. VENV, PYTHON and WORKERS (tests side by
# side, one thread each) may be overridden.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN = $(VENV)/bin
READY = $(VENV)/.ready
# Apart from the environment: the compiler of torch and mypy would find it there.
TRITON = $(VENV)/triton-3.7.1

.PHONY: demo test lint docs interpret cluster clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs,report]"
	touch $(READY)

demo: $(READY)
	$(BIN)/symprompt demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -n $(WORKERS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, in build/site; warnings are errors, and nothing is fetched.
docs: $(READY)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site

$(TRITON): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(TRITON).part triton==3.7.1
	mv $(TRITON).part $(TRITON)

# The CUDA kernels on a CPU, through Triton's interpreter.
interpret: $(TRITON)
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 PYTHONPATH=$(TRITON) $(BIN)/python -m pytest tests/accel/test_kernels_interpreted.py

# Jobs on three nodes of Ray on this machine, one of which is killed; make test leaves it out.
cluster: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[cluster]"
	OMP_NUM_THREADS=1 SYMPROMPT_CLUSTER=required $(BIN)/python -m pytest tests/cluster

clean:
	rm -rf $(VENV) build dist src/*.egg-info
