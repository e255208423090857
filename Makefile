# `make demo` and `make test` each work as the first command on a fresh machine with Python and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test check bench figures clean

demo: $(INSTALLED)
	$(BIN)/effdeg demo

test: $(INSTALLED)
	OMP_NUM_THREADS=1 EFFDEG_CHECK_SHAPES=1 $(BIN)/python -m pytest -n auto --maxprocesses 4

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# The figures and tables of the README and the docs, from the demo's networks and from results/.
figures: $(INSTALLED)
	$(BIN)/python docs/make_figures.py

clean:
	rm -rf .venv effdeg-demo effdeg-runs

# Both packages: the library and the experiments.
$(INSTALLED): pyproject.toml experiments/pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable './experiments[ray]'
	touch $@
