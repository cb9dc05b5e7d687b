#!/usr/bin/env bash
# Runs the tests in three parts side by side, for much of a test's time is waiting: those on a model server, of which no
# two may run at once; the others of four folders; all the rest, whose progress is shown. What the first two printed
# comes at the end. Fails where one part fails. Arguments are pytest's; with any, or on one core, everything runs in one
# process.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
folders=(tests/pipeline tests/data tests/filters tests/rl)
if (( $# > 0 || $(nproc) < 2 )); then
    exec "$python" -m pytest "$@"
fi
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$logs"' EXIT
"$python" -m pytest -m vllm -p no:cacheprovider >"$logs/server" 2>&1 &
server=$!
"$python" -m pytest -m "not vllm" -p no:cacheprovider "${folders[@]}" >"$logs/folders" 2>&1 &
beside=$!
failed=0
"$python" -m pytest -m "not vllm" "${folders[@]/#/--ignore=}" || failed=1
wait "$beside" || failed=1
wait "$server" || failed=1
cat "$logs/folders" "$logs/server"
exit "$failed"
