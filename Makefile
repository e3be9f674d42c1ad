# The project's commands. `make` alone lists them. The virtual environment makes itself and is reused until
# pyproject.toml changes.
#
#   PYTHON=python3.12          the interpreter to make the environment with (3.11 or 3.12; found if not given)
#   PIP_ARGS='--index-url ...' more arguments for pip, such as the index that holds the torch build you want
#   ARGS='...'                 more arguments for the command that a target runs
#   VENV=.venv                 where the environment is

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
AUDIT := $(VENV)/audit
PEERS := $(VENV)/peers
EXTRAS := embedded,demo,loadtest,dev
PYTHON ?=
PIP_ARGS ?=
ARGS ?=
CANDIDATES := $(or $(PYTHON),python3.11 python3.12 python3)

# Exit status 0 if the interpreter can make the environment: the version, and what Debian packs apart (venv).
USABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))

# Exit status 0 if the database of advisories can be asked; there is none that works offline (pypa/pip-audit#698).
ASK_PYPI := import urllib.request; urllib.request.urlopen("https://pypi.org/pypi/pip/25.0/json", timeout=5)

.PHONY: help venv demo up test test-clients test-faults fuzz bench bench-peers loadtest check audit format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'
	@sed -n 's/^#   /  /p' $(firstword $(MAKEFILE_LIST))

venv: $(INSTALLED) ## Make the virtual environment (the other targets do it when needed)

demo: $(INSTALLED) ## Real clients, a real Triton and a real model; samples checked against the model
	@$(BIN)/rollserve demo $(ARGS)

up: $(INSTALLED) ## Serve the demo model until Ctrl-C
	@$(BIN)/rollserve up $(ARGS)

test: $(INSTALLED) ## Run the tests, in two processes (ARGS='-k name' for some of them)
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --ignore tests/fuzz $(ARGS)
	@$(if $(ARGS),,$(BIN)/python -m pytest tests/fuzz)

test-clients: $(INSTALLED) ## Run the real agent CLIs against the server (1.6 GB from npm, once)
	@$(BIN)/python -m tests.clients.install >/dev/null
	@$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

test-dialect: $(INSTALLED) ## The client, trajectory, golden, SDK and agent CLI tests over TensorRT-LLM's C++ dialect (ARGS='-k name')
	@$(BIN)/python -m tests.clients.install >/dev/null
	@TEST_DIALECT=cumulative $(BIN)/python -m pytest -m 'not faults' --deselect tests/clients/test_real_model.py $(ARGS) \
	  tests/engine/test_client.py tests/engine/test_client_wire.py tests/engine/test_cumulative.py tests/engine/test_reloading.py \
	  tests/e2e/test_golden.py tests/e2e/test_exact.py tests/e2e/sdks tests/clients

test-faults: $(INSTALLED) ## Kill every part of a running system at random for three minutes, under load (FAULT_SECONDS, FAULT_SEED)
	@$(BIN)/python -m pytest -m faults tests/faults $(ARGS)

fuzz: $(INSTALLED) ## Make up requests, keys and bytes for every operation of /openapi.json (FUZZ_EXAMPLES=300 of each)
	@FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-300} $(BIN)/python -m pytest --timeout 0 tests/fuzz $(ARGS)

bench: $(INSTALLED) ## All benchmarks, beside their goals and the last run (ARGS='--only turn', --quick, --json FILE)
	@$(BIN)/python -m loadtest.bench $(ARGS)

bench-peers: $(INSTALLED) ## A turn's CPU beside a Rust gateway's (smg, installed from PyPI apart) and a naive adapter's
	@test -x $(PEERS)/bin/smg || { $(BIN)/python -m venv $(PEERS) \
	  && $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) 'smg>=1.13,<2' smg-grpc-proto; } \
	  || { echo "smg does not install here, so there is nothing to compare with: no wheel, or no PyPI" >&2; exit 2; }
	@$(BIN)/python -m loadtest.peers --peers $(PEERS) $(ARGS)

loadtest: $(INSTALLED) ## Agents on the scripted model, every session judged, a report (ARGS='--users 200 --minutes 10')
	@$(BIN)/rollserve loadtest $(ARGS)

check: $(INSTALLED) ## Lint, format, types, direction of imports, versions that fit together; the audit where PyPI can be asked
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_imports.py
	@$(BIN)/python -m pip --disable-pip-version-check check
	@if $(BIN)/python -c '$(ASK_PYPI)' 2>/dev/null; then $(MAKE) --no-print-directory audit; \
	else echo "no audit: PyPI's advisories cannot be asked from here (make audit, with a network)"; fi

audit: $(INSTALLED) ## Known vulnerabilities of what is installed (asks PyPI, so it needs the network)
	@test -x $(AUDIT)/bin/pip-audit || { $(BIN)/python -m venv $(AUDIT) \
	  && $(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) 'pip-audit>=2.7,<3'; }
	@$(AUDIT)/bin/pip-audit --skip-editable --progress-spinner off $(ARGS) \
	  --path "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

format: $(INSTALLED) ## Put the code into the project's format
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

clean: ## Remove the environment and everything generated in this folder; downloaded models stay in the cache
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	@for python in $(CANDIDATES); do \
	  if "$$python" -c '$(USABLE)' 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "rollserve needs Python 3.11 or 3.12 with its venv module; tried: $(CANDIDATES)." >&2; \
	  echo "Debian and Ubuntu: apt-get install python3.11 python3.11-venv libpython3.11" >&2; \
	  echo "Or name the interpreter: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  echo "making $(VENV) with $$found ($$("$$found" --version))"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@echo "installing rollserve[$(EXTRAS)] into $(VENV) (about 2 GB with torch's CPU build; once)"
	@$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) --editable '.[$(EXTRAS)]'
	@touch $@
