#!/usr/bin/env bash
# beside.sh NAME COMMAND [NAME COMMAND]... - runs steps of `make test` side by side.
# A COMMAND is one argument, for the shell. The output of a step is printed when the step ends, so
# the outputs do not mix. Every step runs to its end. If one of them failed, the exit status is 1,
# and the end of its output is printed once more, as the last.
set -uo pipefail

here=$(dirname "$0")
mkdir -p target/steps
failed=()
pids=() names=()
while [ $# -ge 2 ]; do
  (
    "$here/step.sh" "$1" sh -c "$2" > "target/steps/$1.out" 2>&1; status=$?
    # One step prints at a time.
    flock target/steps cat "target/steps/$1.out"
    rm -f "target/steps/$1.out"
    exit $status
  ) &
  pids+=($!) names+=("$1")
  shift 2
done
for at in "${!pids[@]}"; do wait "${pids[at]}" || failed+=("${names[at]}"); done
for name in "${failed[@]}"; do
  printf '\n== the end of %s, which failed:\n' "$name"
  tail -n 60 "target/steps/$name.log"
done
[ ${#failed[@]} = 0 ]
