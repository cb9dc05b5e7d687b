#!/usr/bin/env bash
# Makes .venv: the product with every extra, at the versions in constraints.txt. Returns at once when up to date.
# The model server lives in another environment (scripts/serve_setup.sh): its fastapi excludes Prefect's.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
MAKE_TARGET=setup

inputs=$(digest pyproject.toml constraints.txt scripts/setup.sh scripts/lib.sh "$PWD" "${TORCH:-auto}")
if is_current .venv "$inputs"; then exit 0; fi

say "Installing trajsmith into .venv (log: .venv/setup.log; some minutes the first time)"
make_venv .venv
install_torch .venv "$(sed -n 's/^torch==//p' constraints.txt)"
logged .venv/bin/python -m pip install -c constraints.txt -e ".[all]"
mark_current .venv "$inputs"
say "Ready: .venv/bin/trajsmith --help"
