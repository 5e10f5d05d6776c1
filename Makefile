# TensorOpt: `make` lists what there is to make.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
# cpu or gpu: which TensorFlow
TENSORFLOW ?= cpu
# ranks of the demo
NP ?= 2
VENV := .venv
BIN := $(VENV)/bin
# Environments beside it, whose packages exclude some of its own.
HUB := .venv-hub
NEXT := .venv-next
# Of the next TensorFlow, which pip takes for a release once there is one.
NEXT_TENSORFLOW ?= tensorflow-cpu>=2.22.0rc0
# The oldest and the newest that TensorOpt is for, as tensoropt/common/versions.py has them: Python, TensorFlow, Keras.
OLDEST_PYTHON ?= python3.10
NEWEST_PYTHON ?= python3.13
OLDEST := $(OLDEST_PYTHON) tensorflow-cpu==2.19.* keras==3.10.*
NEWEST := $(NEWEST_PYTHON) tensorflow-cpu==2.21.* keras==3.15.*
INSTALLED := $(VENV)/installed

# Hundreds of processes of the tests import the package: what is compiled once is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif

.PHONY: help install demo docs release test test-parts test-fast test-all test-hub test-slurm test-next test-versions horovod lint figures clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 16

install: $(INSTALLED) ## make .venv with all that TensorOpt needs (PYTHON=python3.12, TENSORFLOW=gpu)

$(INSTALLED): setup.py
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "tensoropt: no $(PYTHON) on the PATH. On Debian and Ubuntu install it with: apt update && apt install python3 python3-venv" >&2; \
	    exit 1; }
	@"$(PYTHON)" setup.py check_python
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@# setuptools warns that the folder tensoropt/ is the package: it is meant to be.
	@# pip compiles with one core; a few files are for Pythons of other versions.
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-compile --editable ".[$(TENSORFLOW),demo,plot,report,test,lint]"
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	$(BIN)/python -m tensoropt.runtime.mpi_config
	@touch $@

demo: install ## train on handwritten digits with NP=2 ranks
	$(BIN)/mpirun -n $(NP) $(BIN)/python examples/train_digits.py

docs: .venv-docs/installed ## the documentation as a site, site/index.html
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

release: .venv-docs/installed ## wheel and source in dist/, checked, and a script trained in an environment with nothing else
	rm -rf dist .venv-release
	.venv-docs/bin/python -m build --outdir dist .
	.venv-docs/bin/twine check --strict dist/*
	"$(PYTHON)" -m venv .venv-release
	.venv-release/bin/pip install --quiet "$$(echo dist/*.whl)[$(TENSORFLOW)]"
	cd tests/versions && ../../.venv-release/bin/tensoropt run -n 2 train_save_load.py

.venv-docs/installed: setup.py
	"$(PYTHON)" -m venv --clear $(@D)
	PYTHONWARNINGS=ignore $(@D)/bin/pip install --quiet --editable ".[docs]"
	@touch $@

test: install ## all tests, those on several ranks too
	@# One run to what its parts share: recorded models, and servers of ranks.
	$(BIN)/python tests/helpers/kept.py $(MAKE) test-parts ALL="$(ALL)"

test-parts:
	@# Two at a time, but for those that measure times; those that mostly wait for ranks come after those that compute.
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 40 -m "not alone and not deadlines" $(ALL)
	$(BIN)/python -m pytest -n $(WAITING) --dist worksteal -m deadlines $(call marked,deadlines) $(ALL)
	$(BIN)/python -m pytest -m alone $(call marked,alone) $(ALL)

# How many tests at a time whose ranks mostly wait.
WAITING := 3
# The files with tests of a mark: collecting all the others, too, takes as long as some of these tests.
marked = $$(grep -rl --include="test_*.py" "mark\.$(1)" tests)
# The folders that say the most in the least time.
FAST := frontend ft lowering plan profiling reschedule

test-fast: install ## what the quick folders hold without ranks: three minutes
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not ranks" $(addprefix tests/,$(FAST))

test-all: ## all seeds, configs and models at full depth, then test-hub: hours
	$(MAKE) test ALL="--all --timeout 7200"
	$(MAKE) test-hub

test-hub: $(HUB)/installed ## Keras Hub's and Keras RS's models, in .venv-hub: minutes
	$(HUB)/bin/python -m pytest tests/hub

$(HUB)/installed: setup.py $(INSTALLED)
	$(BIN)/python -m venv --clear $(HUB)
	$(HUB)/bin/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(HUB)/bin/python -m pip install --quiet --editable ".[hub,test]"
	$(HUB)/bin/python -m tensoropt.runtime.mpi_config
	@touch $@

test-slurm: install ## runs under a Slurm of two nodes, which root makes on this machine: two minutes
	$(BIN)/python tests/cluster/slurm.py
	$(BIN)/python -m pytest tests/cluster

# What meets TensorFlow and Keras most closely.
FACING := $(addprefix tests/,frontend execution trainer)

test-next: $(NEXT)/installed ## capture, execution and trainer by the next TensorFlow and the nightly Keras, in .venv-next
	$(NEXT)/bin/python -m pytest -n 2 --dist worksteal -m "not ranks" $(FACING)
	$(NEXT)/bin/python -m pytest -m ranks $(FACING)

$(NEXT)/installed: setup.py $(INSTALLED)
	$(BIN)/python -m venv --clear $(NEXT)
	$(NEXT)/bin/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(NEXT)/bin/python -m pip install --quiet --editable ".[test]" "$(NEXT_TENSORFLOW)"
	@# Both packages are the module keras, and which of them TensorFlow asks for changes from version to version.
	$(NEXT)/bin/python -m pip uninstall --quiet --yes keras keras-nightly
	$(NEXT)/bin/python -m pip install --quiet --pre keras-nightly
	$(NEXT)/bin/python -m tensoropt.runtime.mpi_config
	@touch $@

test-versions: .venv-oldest/installed .venv-newest/installed ## one script by the oldest and the newest Python, TensorFlow and Keras
	for each in oldest newest; do .venv-$$each/bin/tensoropt run -n 2 tests/versions/train_save_load.py; done

.venv-oldest/installed: VERSIONS = $(OLDEST)
.venv-newest/installed: VERSIONS = $(NEWEST)
.venv-oldest/installed .venv-newest/installed: setup.py
	@$(firstword $(VERSIONS)) -c "import venv" 2>/dev/null || { \
	    echo "tensoropt: $(firstword $(VERSIONS)) isn't there or doesn't start; name one, as in: make test-versions" \
	    "OLDEST_PYTHON=/path/to/python3.10 NEWEST_PYTHON=/path/to/python3.13" >&2; exit 1; }
	$(firstword $(VERSIONS)) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(@D)/bin/python -m pip install --quiet --editable . $(patsubst %,"%",$(wordlist 2,3,$(VERSIONS)))
	@touch $@

horovod: install ## build Horovod for collectives="horovod": optional, needs a C++ compiler and says what else
	$(BIN)/python -m tensoropt.runtime.collectives.build_horovod

# Words that the field has others for: consumer, resharding, request, again, synthetic, suggestions, context, baseline trial.
BANNED := takers?|deliver(y|ies|s|ed|ing|er|ers)?|errands?|anew|made[ _-]up|ways[ _-]out|surroundings|contests?
SOURCES := tensoropt ft reschedule profiling examples tests docs setup.py README.md

lint: install ## ruff, mypy, that packages import one way, and words
	$(BIN)/ruff check .
	$(BIN)/mypy -p tensoropt
	$(BIN)/lint-imports
	@! grep -rniE --include='*.py' --include='*.md' '(^|[^a-z])($(BANNED))($$|[^a-z])' $(SOURCES) || { \
	    echo "make lint: the words above have the field's own beside them; see the Makefile" >&2; exit 1; }

figures: install ## renew the tables that commands print (ONLY="one_rank spaces.md"): hours, with nothing beside
	$(BIN)/python tests/benchmarks/figures.py $(ONLY)

clean: ## remove the environments and what tools left
	rm -rf $(VENV) $(HUB) $(NEXT) .venv-oldest .venv-newest .venv-docs .venv-release build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
