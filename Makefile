# `make demo` and `make test` each work as the first command on a fresh machine with Python and make.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Where this is set, every process would compile all that it imports, since the installation does not (see below).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check wheels bench figures docs docs-open clean

demo: $(INSTALLED)
	$(BIN)/effdeg demo

# One process more than there are cores, up to 5: some tests wait for programs that they start.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 EFFDEG_CHECK_SHAPES=1 $(BIN)/python -m pytest --dist worksteal \
		-n $$($(BIN)/python -c 'import os; print(min(5, 1 + len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))')

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Both wheels in a fresh environment, without the checkout.
wheels: $(INSTALLED)
	.ci/wheels

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# The figures and tables of the README and the docs, from the demo's networks and from results/.
figures: $(INSTALLED)
	$(BIN)/python docs/make_figures.py

# The site, into docs/_build/html. Warnings are errors; the second command looks for what a page would load from elsewhere.
docs: .venv/.docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html

docs-open: docs
	@echo "http://localhost:8000"
	$(BIN)/python -m http.server --bind localhost --directory docs/_build/html 8000

clean:
	rm -rf .venv effdeg-demo effdeg-runs docs/_build docs/examples

# Both packages: the library and the experiments. Without compiling every module to bytecode, which takes half of the time:
# Python does that for those that are imported.
$(INSTALLED): pyproject.toml experiments/pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]' --editable './experiments'
	touch $@

.venv/.docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[docs]'
	touch $@
