# Every target sets up what it needs: a Python >= 3.11 with pip and venv is enough.
# PYTHON=/path/to/python3.12 chooses the interpreter of a new .venv.

.DEFAULT_GOAL := help
.PHONY: help demo crash-demo dev test test-full crash crash-controls answers-lost random recorded spend server-kills endless endless-controls lint types imports docs contract \
	compose-check lock lock-check set-up

PYTHON ?=
export PYTHON

# Relative, so that a checkout below a path with spaces works.
VENV_PYTHON := .venv/bin/python

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: set-up ## One agent answers one question through a real Temporal server.
	@$(VENV_PYTHON) starter.py demo

crash-demo: set-up ## The same run, while its worker is killed twice.
	@$(VENV_PYTHON) starter.py demo --crash

dev: set-up ## Server, UI and worker in the foreground.
	@$(VENV_PYTHON) starter.py dev

ARGS ?=
test: set-up ## All tests, in four processes. Options for pytest: make test ARGS="-k budget".
	@# A file stays in one process: its fixtures are made once.
	@$(VENV_PYTHON) -m pytest $(or $(ARGS),-n 4 --dist loadscope --no-loadscope-reorder)

test-full: set-up ## The long tests, too, with the numbers of the reports they are about (an hour).
	@TURNKEEPER_TESTS=full $(MAKE) test

crash: set-up ## Kill a worker at every crash point (minutes). make crash ARGS="--without key".
	@$(VENV_PYTHON) -m tests.faults.crash $(ARGS)

crash-controls: set-up ## The same without each mechanism in turn: it has to be noticed.
	@$(VENV_PYTHON) -m tests.faults.controls

FAULTS ?=
answers-lost: set-up ## Drop the answers to requests that arrived, on each link 20 times (minutes).
	@$(VENV_PYTHON) -m tests.faults.answers_lost $(FAULTS)

random: set-up ## Kill workers of the refunds agent for ten minutes. make random FAULTS="--seed 7".
	@$(VENV_PYTHON) -m tests.faults.random_kills $(FAULTS)

RECORDINGS ?= ../shared/workloads/airline.jsonl
spend: set-up ## What runs with a limit on cost have spent while workers are killed (minutes).
	@$(VENV_PYTHON) -m tests.faults.spend $(FAULTS)

recorded: set-up ## Play recorded conversations, twice, while workers are killed (minutes).
	@$(VENV_PYTHON) -m tests.faults.recorded_conversations $(RECORDINGS) $(FAULTS)

server-kills: set-up ## Kill the Temporal server 20 times: what it has told its clients is kept.
	@$(VENV_PYTHON) -m tests.faults.server_kills $(FAULTS)

BENCH ?=
endless: set-up ## Long and waiting runs at a flat cost (half an hour). make endless BENCH="--only turns".
	@$(VENV_PYTHON) -m bench.endless $(BENCH) $(if $(BENCH),,&& $(VENV_PYTHON) -m bench.prompt_cache)

endless-controls: set-up ## The same with planted leaks and delays: they have to be noticed (minutes).
	@$(VENV_PYTHON) -m bench.controls

lint: set-up ## Style, bans on impure calls, formatting.
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .

types: set-up ## Static types, strictly.
	@$(VENV_PYTHON) -m mypy

imports: set-up ## Imports point one way.
	@$(VENV_PYTHON) -c 'from importlinter.cli import lint_imports_command as run; run()'

docs: set-up ## The documentation as pages, in build/docs; a broken link fails.
	@$(VENV_PYTHON) -m sphinx -q -W --keep-going docs build/docs

contract: set-up ## The contract as JSON schemas, in docs/contract.
	@$(VENV_PYTHON) -m tests.contract_files

compose-check: set-up ## docker-compose.yml against the compose specification.
	@$(VENV_PYTHON) -m check_jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

# The registry is named, so that a machine's own mirror never gets into the lock.
UV_LOCK := $(VENV_PYTHON) -m uv lock --default-index https://pypi.org/simple
UV_EXPORT := $(VENV_PYTHON) -m uv export --quiet --frozen --no-emit-project --all-groups --no-header

lock: set-up ## Resolve the dependencies anew: uv.lock, then requirements.lock.
	@$(UV_LOCK)
	@$(UV_EXPORT) --output-file requirements.lock >/dev/null

lock-check: set-up ## Both locks say what pyproject.toml asks for.
	@$(UV_LOCK) --check
	@$(UV_EXPORT) | cmp - requirements.lock

set-up: ## The private .venv with the locked dependencies.
	@sh scripts/set-up
