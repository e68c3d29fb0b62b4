# Everything starts here: `make demo` and `make test` set up what they need. `make help` lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup setup-dev contracts demo test test-fast check fmt proto abi bench soak clean
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/.runtime: requirements/runtime.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, %s is %s" % (sys.executable, sys.version.split()[0]))'
	@echo "Downloading the pinned runtime set into $(VENV): about 400 MB of Python wheels (torch is half of it, Node comes as a wheel too) and 60 MB of npm packages."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/runtime.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.lock
	@echo "Downloading the pinned test tools into $(VENV): about 60 MB."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.lock
	touch $@

node_modules/.installed: $(VENV)/.runtime package.json package-lock.json
	$(BIN)/npm ci --no-audit --no-fund --loglevel=error
	touch $@

artifacts/.compiled: node_modules/.installed hardhat.config.js $(shell find contracts -name '*.sol' 2>/dev/null)
	$(BIN)/node node_modules/hardhat/dist/src/cli.js build --quiet
	touch $@

contracts: artifacts/.compiled ## compile the contracts

setup: $(VENV)/.runtime node_modules/.installed artifacts/.compiled ## virtual environment, Node, npm packages, compiled contracts

setup-dev: setup $(VENV)/.dev ## the same and the test tools

demo: setup ## the main job, end to end, on this machine
	$(BIN)/sentinel demo $(ARGS)

proto: $(VENV)/.dev ## regenerate the protobuf code
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=sentinel_market/wire --pyi_out=sentinel_market/wire proto/relay.proto

