VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Users need half of the packages that developers have.
USABLE := $(or $(wildcard $(STAMP)),$(VENV)/.usable)
DIGITS := examples/digits

# The interpreter for .venv; empty takes the newest supported one found.
PYTHON ?=

UV := uv==0.13.8
# `make lock UV_FLAGS=--upgrade` moves every pin; without it only what pyproject.toml forces.
UV_FLAGS ?=
COMPILE = $(VENV)/lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --quiet \
    --no-config --default-index https://pypi.org/simple --custom-compile-command "make lock" $(UV_FLAGS)

TEST_PROCESSES ?= $(shell nproc)
PYTEST = $(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist worksteal

# Tests start hundreds of processes: none of them compiles what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo readme test test-all test-checked mutations golden test-busy test-bytecode check check-format check-lint check-types check-imports bench comparison lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(USABLE) ## Fix the digits example; the result is in runs/demo
	rm -rf runs/demo
	$(BIN)/halfwise fix $(DIGITS)/model.onnx --inputs $(DIGITS)/inputs.npz \
	    --heldout $(DIGITS)/heldout.npz -o runs/demo
	@echo "To use halfwise in this shell: . $(VENV)/bin/activate"

readme: $(STAMP) ## Rewrite the generated parts of README.md and docs
	$(BIN)/python tools/readme.py
	$(BIN)/python tools/failure_classes.py

test: test-checked ## Check, then run every quick test that needs no GPU
	$(PYTEST) --ignore=tests/bench

test-all: test-checked ## The same, with slow tests, those of benches, and longer properties
	HYPOTHESIS_PROFILE=long $(PYTEST) -m "not gpu"

test-checked: $(STAMP)
	tools/get-test-packages
	$(MAKE) --jobs=2 --output-sync check test-bytecode

# Else each process would rewrite the asserts of all tests by itself: a quarter of a minute.
test-bytecode: $(STAMP)
	$(BIN)/pytest --collect-only --quiet --ignore=tests/bench >/dev/null

mutations: $(STAMP) ## Plant twenty faults in the source, one at a time: are all found?
	$(BIN)/python -m tests.mutations

golden: $(STAMP) ## Compare what is decided with the golden runs
	$(BIN)/python -m tests.golden compare

test-busy: ## The same beside four processes that burn CPU
	tools/beside-busy 4 $(MAKE) test

check: check-format check-lint check-types check-imports ## Format, lint, types, import layers

check-format: $(STAMP)
	$(BIN)/ruff format --check .

check-lint: $(STAMP)
	$(BIN)/ruff check .

check-types: $(STAMP)
	$(BIN)/mypy

check-imports: $(STAMP)
	$(BIN)/lint-imports

bench: $(STAMP) ## Run the benchmark
	$(BIN)/python bench/run.py

comparison: $(STAMP) ## Run other tools on the same models; write docs/comparison.md (2 GB, network)
	-$(BIN)/python bench/run.py peers
	$(BIN)/python tools/comparison.py

lock: ## Rewrite the locks of Python's packages from pyproject.toml
	tools/make-venv $(VENV)/lock "$(PYTHON)"
	$(VENV)/lock/bin/pip install --quiet $(UV)
	$(COMPILE) pyproject.toml --group dev --output-file requirements.lock
	$(COMPILE) pyproject.toml --group build --output-file requirements-user.lock
	$(COMPILE) --group rtx --output-file requirements-rtx.lock

clean: ## Remove .venv, caches, builds and the demo's result
	rm -rf $(VENV) runs/demo build dist
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# The build backend is in the locks, so the last step fetches nothing.
define install
	tools/make-venv $(VENV) "$(PYTHON)"
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(1)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@
endef

$(STAMP): requirements.lock pyproject.toml tools/make-venv
	$(call install,requirements.lock)

$(VENV)/.usable: requirements-user.lock pyproject.toml tools/make-venv
	$(call install,requirements-user.lock)
