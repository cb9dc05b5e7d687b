#!/usr/bin/env bash
# Installs verifiers into .venv-verifiers, with trajsmith's base install beside it. An environment of its own: it
# pins mcp 2.0.0 and openai 2, where .venv has newer ones. About 0.75 GB, minutes where packages are far away.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

version=0.4.0
venv=.venv-verifiers
inputs=$(digest pyproject.toml scripts/verifiers_setup.sh scripts/lib.sh "$PWD")
if is_current "$venv" "$inputs"; then exit 0; fi

say "Installing verifiers $version into $venv (log: $venv/setup.log)"
make_venv "$venv"
logged "$venv/bin/python" -m pip install "verifiers==$version" -e .
mark_current "$venv" "$inputs"
