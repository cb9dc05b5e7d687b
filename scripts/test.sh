#!/usr/bin/env bash
# Runs the tests as two halves side by side: the slow ones with those on a model server, of which no two may run at
# once, and all the others; what the first half printed comes at the end. Fails where one half fails. Arguments are
# pytest's; with any, or on one core, everything runs in one process.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
if (( $# > 0 || $(nproc) < 2 )); then
    exec "$python" -m pytest "$@"
fi
log=$(mktemp)
trap 'kill %1 2>/dev/null; rm -f "$log"' EXIT
"$python" -m pytest -m "vllm or slow" -p no:cacheprovider >"$log" 2>&1 &
"$python" -m pytest -m "not vllm and not slow"
others=$?
wait %1
slow=$?
cat "$log"
exit $(( others != 0 || slow != 0 ))
