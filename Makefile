# The everyday commands. `make` alone lists them.

# Which Python the environment is made with, and where it lies. One folder serves one
# Python: make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3
VENV ?= .venv
# The interpreters that constraints.txt is resolved for.
PYTHONS ?= python3.11 python3.12 python3.13

BIN := $(VENV)/bin
LOG := $(VENV)/install.log
# Warnings and errors are shown; everything goes to the log.
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --log $(LOG) \
	-c constraints.txt
# setuptools comes from constraints.txt too, so that the build is pinned like the rest
# (and an old pip, which cannot constrain a build, does not matter).
BUILD := setuptools

# Most of the time of the tests goes into compiling. Without the slow ones they take less
# optimised machine code, which runs the same arithmetic; with them, what is shipped.
# jax 0.10, the newest for Python 3.11, then also does without the emitters that take a
# third of that time; later ones have no others, and abort on a flag they do not know.
EMITTERS = $(shell $(BIN)/python -c 'import jax; \
  print("--xla_cpu_use_fusion_emitters=false" * (jax.__version_info__[:2] == (0, 10)))')
QUICK = XLA_FLAGS="$$XLA_FLAGS --xla_backend_optimization_level=0 $(EMITTERS)"
LEFT_OUT = $(if $(THOROUGH),not slow,not slow and not thorough)
PYTEST = $(if $(SLOW),,$(QUICK)) $(BIN)/python -m pytest \
	$(if $(SLOW),,-m "$(LEFT_OUT)")
# A file of tests goes to one process, so that its fits are shared. A process that dies is
# not replaced: xdist may then wait for ever (pytest-dev/pytest-xdist issues 784, 1378).
WORKERS ?= 2

.PHONY: help demo test validate lint docs bench notebooks clean constraints
.DEFAULT_GOAL := help

help:
	@echo "make demo             set up $(VENV) (once) and show the library: 'im3f demo'"
	@echo "make test             set up $(VENV) (once) and run the quick tests"
	@echo "make test THOROUGH=1  the same with those that take longer: what CI runs"
	@echo "make test SLOW=1      all of them, the slow statistical tests too, as shipped"
	@echo "make validate         the long statistical tests of the samplers, as one table"
	@echo "make lint             ruff: check and formatting"
	@echo "make docs             the API reference, as HTML in build/docs"
	@echo "make bench            throughput on this machine, as JSON in bench/results"
	@echo "make notebooks        execute the notebooks in full, and write their .ipynb"
	@echo "make constraints      resolve constraints.txt anew for $(PYTHONS)"
	@echo "make clean            remove $(VENV), caches and build folders"
	@echo
	@echo "PYTHON=...  the Python to use (3.11 or newer; now: $(PYTHON))"
	@echo "VENV=...    the folder of the environment (now: $(VENV))"
	@echo "WORKERS=... processes that run the tests (now: $(WORKERS))"
	@echo "ARGS=...    more arguments for pytest, the demo or the benchmark"

# --- set-up: two stamps, so that a second `make` installs nothing -----------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "im3f_jax needs Python 3.11 or newer, and '$(PYTHON)' is not that." >&2; \
	  echo "Name one that is: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu it needs the package" \
	    "python3-venv." >&2; rm -rf $(VENV); exit 1; }

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing im3f_jax and what it needs into $(VENV) (about 700 MB on disk," \
	  "a minute or two; the log is $(LOG))"
	@$(PIP) $(BUILD) && $(PIP) --no-build-isolation -e . || { \
	  echo "Installation failed; the whole story is in $(LOG)" >&2; exit 1; }
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "Installing what the tests need into $(VENV)"
	@$(PIP) --no-build-isolation -e '.[dev,arviz,plots]' || { \
	  echo "Installation failed; the whole story is in $(LOG)" >&2; exit 1; }
	@touch $@

$(VENV)/.notebooks: $(VENV)/.dev
	@echo "Installing Jupyter into $(VENV)"
	@$(PIP) --no-build-isolation -e '.[dev,arviz,plots,notebooks]' || { \
	  echo "Installation failed; the whole story is in $(LOG)" >&2; exit 1; }
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	@echo "Installing Sphinx into $(VENV)"
	@$(PIP) --no-build-isolation -e '.[docs]' || { \
	  echo "Installation failed; the whole story is in $(LOG)" >&2; exit 1; }
	@touch $@

# --- the everyday commands --------------------------------------------------------

demo: $(VENV)/.base
	@echo "Running: im3f demo $(ARGS)"
	@$(BIN)/im3f demo $(ARGS)

test: $(VENV)/.dev
	@echo "Running the tests$(if $(SLOW),,: $(LEFT_OUT) (make THOROUGH=1, SLOW=1))"
	@$(PYTEST) $(if $(ARGS),$(ARGS),-n $(WORKERS) --dist loadfile --max-worker-restart 0)

validate: $(VENV)/.dev
	@echo "Running: python -m tests.validation $(ARGS)"
	@$(BIN)/python -m tests.validation $(ARGS)
	@echo "Running the notebooks in full"
	@$(BIN)/python -m pytest -m slow tests/test_notebooks.py

lint: $(VENV)/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

# All of it anew each time, since it is made of the doc-strings; a warning is an error.
docs: $(VENV)/.docs
	@echo "Building the reference from the doc-strings"
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs/api build/docs
	@echo "It is build/docs/index.html"

bench: $(VENV)/.base
	@echo "Running: python -m bench.throughput $(ARGS)"
	@$(BIN)/python -m bench.throughput $(ARGS)

notebooks: $(VENV)/.notebooks
	@echo "Executing the notebooks $(ARGS)"
	@$(BIN)/python tools/notebooks.py $(ARGS)

constraints:
	@$(firstword $(PYTHONS)) tools/constraints.py $(PYTHONS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
