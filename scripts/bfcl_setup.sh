#!/usr/bin/env bash
# Adds the BFCL multi-turn worlds and their checker to .venv. Without its dependencies on purpose: it pins old
# numpy, networkx and filelock for parts that are never imported here; the worlds themselves need only mpmath.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

version=2026.3.23
[ -x .venv/bin/python ] || die "there is no .venv yet" "run: make setup"
found=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("bfcl-eval"))' 2>/dev/null || true)
if [ "$found" = "$version" ]; then exit 0; fi

say "Installing bfcl-eval $version into .venv (log: .venv/bfcl.log)"
log_file="$PWD/.venv/bfcl.log"
: >"$log_file"
logged .venv/bin/python -m pip install --no-deps "bfcl-eval==$version"
logged .venv/bin/python -m pip install -c constraints.txt mpmath
