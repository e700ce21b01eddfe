# Two commands on a fresh machine with Python >= 3.10 and make: `make demo` and `make test`.
# Each fills a .venv here by pip and constraints.txt; nothing else on the machine is touched.
# A wheel for publishing: `.venv/bin/pip wheel . --no-deps -w dist` (tests/test_packaging.py checks it).

PYTHON ?= python3
ARGS ?=
SECONDS ?= 60
DATABASE ?= postgresql
SEED ?= 1
BIN := .venv/bin
INPUTS := pyproject.toml constraints.txt
# Only what is imported is compiled, when it is: to compile all packages takes a minute.
QUICKLY := install --quiet --disable-pip-version-check --no-compile
INSTALL := $(BIN)/python -m pip $(QUICKLY)
# One file's slow tests run one after the other, and the longest files begin first.
PYTEST = $(BIN)/python -m pytest --dist loadgroup --no-loadscope-reorder
# Without compiled files each process that a test starts compiles the packages anew.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo test landing test-all versions chaos soak lint types imports docs pictures audit sbom clean

help:  ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo 'Options: PYTHON=python3.12 make test; make demo ARGS="--deadline 30s"; make test ARGS="-k sampler"; make chaos SECONDS=600 DATABASE=sqlite SEED=7'

demo: .venv/compiled.stamp  ## Tune a small network by a deadline of 60 s, pausing and resizing trials
	@$(BIN)/optuna-deadline demo $(ARGS)

test: .venv/test.stamp  ## Run the tests of each commit, some three minutes
	@$(PYTEST) -n 2 $(ARGS)

landing: .venv/test.stamp  ## Run the tests of each landing, some ten minutes
	@$(PYTEST) -n 4 --tier landing $(ARGS)

test-all: .venv/test.stamp  ## Run all tests, every real worker and every real training
	@HYPOTHESIS_PROFILE=many $(PYTEST) -n 4 --tier all $(ARGS)

versions: .venv/test.stamp  ## Run tests with Optuna 4.9, and with the lowest versions of all libraries
	@$(BIN)/python tests/versions.py optuna4
	@$(BIN)/python tests/versions.py lowest

chaos: .venv/test.stamp  ## Kill, freeze and cut off real workers for SECONDS, then check what they did
	@$(BIN)/python -m benchmarks.chaos --seconds $(SECONDS) --database $(DATABASE) --seed $(SEED)

soak: .venv/test.stamp  ## Serve 300 studies among random faults on both databases (40 min); one row per promise
	@$(BIN)/python -m benchmarks.soak --seed $(SEED) $(ARGS)

lint: .venv/test.stamp  ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/test.stamp  ## Check types strictly, of the scripts on the pages too
	@$(BIN)/mypy
	@$(BIN)/python tests/typed_pages.py

imports: .venv/test.stamp  ## Check who may import whom
	@$(BIN)/lint-imports

docs: .venv/docs.stamp  ## Build the documentation into site/
	@$(BIN)/mkdocs build --strict

pictures: .venv/test.stamp  ## Make the figures of gallery and policy and the dashboard's screenshots, some six minutes
	@$(BIN)/python -m benchmarks.gallery
	@$(BIN)/python -m benchmarks.pages
	@$(BIN)/python -m benchmarks.policy_picture

audit: .venv/test.stamp .venv/audit.stamp  ## Look up known vulnerabilities of all installed packages
	@if $(BIN)/python -c 'import socket; socket.create_connection(("api.osv.dev", 443), 5)' 2> /dev/null; then \
	  .venv/audit/bin/pip-audit --vulnerability-service osv --progress-spinner off --skip-editable --path \
	    "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
	else echo "api.osv.dev cannot be reached: nothing was audited."; fi

sbom: .venv/test.stamp .venv/audit.stamp  ## Write all installed packages to dist/sbom.json (CycloneDX)
	@mkdir -p dist
	@.venv/audit/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/sbom.json $(BIN)/python

clean:  ## Delete the environment and all caches
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "optuna-deadline needs Python 3.10 or newer, and $(PYTHON) is not: name one with PYTHON=python3.12 make."; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "$(PYTHON) cannot make a virtual environment: on Debian and Ubuntu, apt install python3-venv."; exit 1; }

.venv/demo.stamp: $(INPUTS) | $(BIN)/python
	$(INSTALL) -c constraints.txt -e '.[demo]'
	@touch $@

# Python compiles what it imports: here, and not while the demo's time runs.
.venv/compiled.stamp: .venv/demo.stamp
	@$(BIN)/python -c 'import optuna_deadline.cli, torch, optuna_deadline_demo.digits as demo; \
	  torch.optim.SGD(demo.Net(16, 0.0, 0.1, 0.0).parameters(), 0.1)'
	@touch $@

.venv/test.stamp: $(INPUTS) | $(BIN)/python
	$(INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@ .venv/demo.stamp  # [dev] holds all of [demo]

.venv/landing.stamp: $(INPUTS) | $(BIN)/python
	$(INSTALL) -c constraints.txt -e '.[dev,docs]'
	@touch $@ .venv/test.stamp .venv/docs.stamp .venv/demo.stamp

.venv/audit.stamp: $(INPUTS) | $(BIN)/python
	$(BIN)/python -m venv .venv/audit  # apart, so that its own packages are not audited
	.venv/audit/bin/python -m pip $(QUICKLY) 'cyclonedx-bom>=5' 'pip-audit>=2.7'
	@touch $@

.venv/docs.stamp: $(INPUTS) | $(BIN)/python
	$(INSTALL) -c constraints.txt -e '.[docs]'
	@touch $@
