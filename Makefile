# Thin on purpose: every target is a command one could type.
SHELL := /bin/bash
VENV  := .venv
BIN   := $(VENV)/bin
PY    ?= python3
# One place for what this checkout makes: a model fetched for the tests is the demo's model too.
export RADCHAT_HOME ?= $(CURDIR)/.demo

.DEFAULT_GOAL := help
.PHONY: help setup model demo chat check test test-daemon test-triton test-sessions test-rooms test-slow kernels bench docs size

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(VENV)/.done  ## a virtual environment with radchat and its tools

$(VENV)/.done: pyproject.toml constraints.txt
	$(PY) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

model: setup  ## the small real model (SmolLM2-135M, 93 MB to fetch), once
	@$(BIN)/radchat models show smollm2-135m >/dev/null 2>&1 || $(BIN)/radchat models pull smollm2-135m

demo: model  ## a tour: two turns, a three-way fork, the tree with its cache, a restart
	$(BIN)/radchat demo

chat: model  ## open the chat
	$(BIN)/radchat chat

check: setup  ## lint, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# longest first; -o: the model is there, none waits for it
test: check model  ## check, then all tests but the slow ones, two processes at a time
	@$(MAKE) --no-print-directory -j2 -o model test-rooms test-daemon test-triton test-sessions

APART = tests/sessions tests/v1 tests/remote
PYTEST = $(BIN)/python -m pytest -q -m 'not slow' --durations=15

test-daemon: model  ## the whole program, with a real daemon
	$(PYTEST) tests/e2e

test-triton: setup  ## the GPU's kernels, in Triton's interpreter
	TRITON_INTERPRET=1 $(PYTEST) tests/triton

test-sessions: setup  ## transcripts, API, other engines; apart, so that all end at about the same time
	$(PYTEST) $(APART)

test-rooms: model  ## all others
	$(PYTEST) --ignore=tests/e2e --ignore=tests/triton $(APART:%=--ignore=%)

test-slow: model  ## the long runs
	$(BIN)/python -m pytest -q -m slow --durations=15 --ignore=tests/triton
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -m slow --durations=15 tests/triton

kernels: setup  ## compile them all for every GPU there is a table for; minutes, no GPU needed
	PYTHONPATH=kernels $(BIN)/python -m radchat_kernels.aot --all --processes 2

bench: model  ## what is measured, one script a question
	for b in radix hit_rate scheduling overhead planner step_costs kv_store engine what_if programs search restart saving cli; do $(BIN)/python benchmarks/$$b.py || exit 1; done

docs: model  ## the command reference of docs/cli.md, and the screens of docs/screens, from the program itself
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/record.py

size:  ## lines of code by package
	@for d in radchat kernels sessions tests; do printf '%-10s' $$d; git ls-files $$d | grep '\.py$$' | xargs cat | wc -l; done
