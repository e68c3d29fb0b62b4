# Everything starts here. `make demo` and `make test` set up what they need, in any order; `make help` lists the rest.
# Needed on the machine: Python 3.11 or newer with its venv module, make, git. Node comes as a wheel into the virtual
# environment. Each step of the set-up leaves a stamp when it is complete, so a broken one is done again.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
HARDHAT := $(BIN)/node node_modules/hardhat/dist/src/cli.js
SOLIDITY := $(shell find contracts -name '*.sol' -not -path 'contracts/test/*' 2>/dev/null)
ABI := sentinel_market/chain/abi
WIRE := sentinel_market/wire

# npm's own scripts must run under the wheel's Node, not under whatever the system has.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export HARDHAT_DISABLE_TELEMETRY := true

.PHONY: help setup setup-dev contracts demo bench bench-detect test test-fast test-contracts test-python
.PHONY: fuzz check check-python check-tree check-contracts check-generated fmt proto abi clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{ printf "  make %-14s%s\n", $$1, $$2 }'

# ---- set-up

# Programs in a virtual environment know its path, so that of a moved or copied checkout is made again.
ifneq ($(shell cat $(VENV)/.made 2>/dev/null),$(CURDIR))
$(shell rm -f $(VENV)/.made $(VENV)/.runtime $(VENV)/.package $(VENV)/.dev)
endif

# Complete only with its stamp, which names this folder. One that was interrupted while it was made is made again.
$(VENV)/.made:
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed and was not found: install it, or say where it is: make PYTHON=..." >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Python 3.11 or newer is needed, %s is %d.%d: install one, or say where it is: make PYTHON=..." % (sys.executable, v[0], v[1]))'
	@echo "Making the virtual environment $(VENV) with $$("$(PYTHON)" --version)."
	@rm -rf $(VENV)
	@"$(PYTHON)" -m venv $(VENV) || { echo "The venv module of this Python does not work (on Debian: install python3-venv)." >&2; exit 1; }
	@echo '$(CURDIR)' > $@

$(VENV)/.runtime: $(VENV)/.made requirements/runtime.lock
	@echo "Installing the pinned runtime set into $(VENV): about 400 MB of wheels to download (torch is half of it, Node"
	@echo "comes as a wheel too), 1.5 GB on disk. Where the package index offers torch with CUDA only, several GB more:"
	@echo "see docs/troubleshooting.md. Takes some minutes; later calls skip it."
	@$(PIP) -r requirements/runtime.lock
	@touch $@

# The command `sentinel`, run from this checkout.
$(VENV)/.package: $(VENV)/.runtime pyproject.toml requirements/runtime.in
	@$(PIP) --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.lock
	@echo "Installing the pinned test tools into $(VENV): about 100 MB to download."
	@$(PIP) --no-deps -r requirements/dev.lock
	@touch $@

node_modules/.installed: $(VENV)/.runtime package.json package-lock.json .npmrc
	@echo "Installing the contracts' tools (Hardhat, the Solidity compiler, OpenZeppelin): about 50 MB to download, 160 MB on disk."
	@$(BIN)/npm ci --no-audit --no-fund --loglevel=error
	@touch $@

artifacts/.compiled: node_modules/.installed hardhat.config.js $(SOLIDITY)
	@echo "Compiling the contracts."
	@out=$$($(HARDHAT) build --quiet --no-tests 2>&1) || { echo "$$out" >&2; exit 1; }
	@touch $@

setup: $(VENV)/.package node_modules/.installed artifacts/.compiled ## virtual environment, Node, npm packages, compiled contracts

setup-dev: setup $(VENV)/.dev ## the same and the test tools

contracts: artifacts/.compiled ## compile the contracts

# ---- use

demo: setup ## the main job, end to end, on this machine; options in ARGS, e.g. make demo ARGS='--seed 3 --compare'
	@$(BIN)/sentinel demo $(ARGS)

bench: setup ## demos over several seeds and their figures; options in ARGS, e.g. make bench ARGS='--seeds 0-9'
	@$(BIN)/python bench/seeds.py $(ARGS)

bench-detect: setup ## the detection table, 2 to 4 hours on 2 cores, resumable; options in ARGS, e.g. ARGS='--quick'
	@mkdir -p runs
	@$(BIN)/sentinel bench detect --json runs/detect.json $(ARGS)

# ---- test

test: setup-dev ## every test: the contracts', then the Python ones
	@$(MAKE) --no-print-directory test-contracts
	@$(MAKE) --no-print-directory test-python

test-contracts: setup
	@echo "Solidity: unit, fuzz, invariant and gas tests."
	@$(HARDHAT) test solidity

test-python: setup-dev
	@echo "Python: pytest $(PYTEST_ARGS)"
	@$(BIN)/python -m pytest -rfE $(PYTEST_ARGS)

test-fast: setup-dev ## the Python tests that need no chain and no second process
	@$(BIN)/python -m pytest -rfE -m 'not e2e and not chain' $(PYTEST_ARGS)

fuzz: setup-dev ## fuzz the codec and the check until stopped, or as ARGS says, e.g. make fuzz ARGS='frames -max_total_time=600'
	@$(BIN)/python -m tests.fuzz.run $(or $(ARGS),frames)

# ---- check

check: setup-dev ## style, types, import rules, Solidity lint, and that nothing generated is out of date
	@$(MAKE) --no-print-directory check-python check-tree check-contracts check-generated
	@echo "All checks passed."

check-python:
	@echo "ruff";          $(BIN)/ruff check --quiet
	@echo "ruff format";   $(BIN)/ruff format --check --quiet || { echo "run: make fmt" >&2; exit 1; }
	@echo "mypy";          $(BIN)/mypy
	@echo "import-linter"; out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; }

check-tree:
	@echo "tracked files"; $(BIN)/python scripts/check_tree.py

check-contracts:
	@echo "solhint";       $(BIN)/node node_modules/solhint/solhint.js --disc --noPoster --max-warnings 0 'contracts/**/*.sol'

# What is generated and checked in: made again, compared.
check-generated:
	@echo "contract ABIs"; $(MAKE) --no-print-directory abi; \
		git diff --exit-code --stat -- $(ABI) || { echo "$(ABI) was out of date: commit it" >&2; exit 1; }
	@echo "protobuf code"; new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; \
		$(BIN)/python -m grpc_tools.protoc -Iproto --python_out="$$new" --pyi_out="$$new" proto/relay.proto; \
		for file in relay_pb2.py relay_pb2.pyi; do \
			diff -q "$$new/$$file" $(WIRE)/$$file >/dev/null || { echo "$(WIRE)/$$file is out of date: make proto" >&2; exit 1; }; \
		done
	@echo "docs/cli.md";   $(BIN)/python -m sentinel_market.cli.reference | diff -q - docs/cli.md >/dev/null \
		|| { echo "docs/cli.md is out of date: $(BIN)/python -m sentinel_market.cli.reference > docs/cli.md" >&2; exit 1; }

# ---- make again

fmt: $(VENV)/.dev ## sort imports and format
	@$(BIN)/ruff check --quiet --fix-only --select I
	@$(BIN)/ruff format --quiet

proto: $(VENV)/.dev ## the protobuf code, from proto/relay.proto
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(WIRE) --pyi_out=$(WIRE) proto/relay.proto

abi: artifacts/.compiled ## the contracts' ABI and bytecode in sentinel_market/chain/abi
	@$(BIN)/node scripts/export_abi.mjs

clean: ## remove what was built and installed; runs/ and .sentinel/ (keys!) stay
	rm -rf $(VENV) node_modules artifacts cache build *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './runs/*' -prune -exec rm -rf {} +
