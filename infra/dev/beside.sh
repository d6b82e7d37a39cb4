#!/usr/bin/env bash
# beside.sh NAME COMMAND [NAME COMMAND]... - runs steps of `make test` side by side.
# A COMMAND is one argument, for the shell. The output of a step is printed when the step ends, so
# the outputs do not mix. Every step runs to its end; the exit status is 1 if one of them failed.
set -uo pipefail

here=$(dirname "$0")
mkdir -p target/steps
failed=0
pids=()
while [ $# -ge 2 ]; do
  (
    "$here/step.sh" "$1" sh -c "$2" > "target/steps/$1.out" 2>&1; status=$?
    # One step prints at a time.
    flock target/steps cat "target/steps/$1.out"
    rm -f "target/steps/$1.out"
    exit $status
  ) &
  pids+=($!)
  shift 2
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit $failed
