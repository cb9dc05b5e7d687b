#!/usr/bin/env bash
# Runs the tests in four parts side by side, for much of a test's time is waiting: those on a model server, of which no
# two may run at once; two groups of folders; all the rest, whose progress is shown. What the others printed comes at the
# end. Fails where one part fails. Arguments are pytest's; with any, or on one core, everything runs in one process.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
first=(tests/pipeline)
second=(tests/data tests/filters tests/rl tests/synthesizers)
if (( $# > 0 || $(nproc) < 2 )); then
    exec "$python" -m pytest "$@"
fi
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$logs"' EXIT
"$python" -m pytest -m vllm -p no:cacheprovider >"$logs/server" 2>&1 &
beside=($!)
"$python" -m pytest -m "not vllm" -p no:cacheprovider "${first[@]}" >"$logs/first" 2>&1 &
beside+=($!)
"$python" -m pytest -m "not vllm" -p no:cacheprovider "${second[@]}" >"$logs/second" 2>&1 &
beside+=($!)
failed=0
folders=("${first[@]}" "${second[@]}")
"$python" -m pytest -m "not vllm" "${folders[@]/#/--ignore=}" || failed=1
for part in "${beside[@]}"; do
    wait "$part" || failed=1
done
cat "$logs/first" "$logs/second" "$logs/server"
exit "$failed"
