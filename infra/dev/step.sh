#!/usr/bin/env bash
# step.sh NAME COMMAND... - runs one step of `make test`, and prints its time and result.
# Times are collected in target/steps.txt; `make test` prints them at its end. The output of a step
# stays in target/steps/NAME.log, where the step `hazards` looks for the tests that ran.
set -uo pipefail

name=$1; shift
mkdir -p target/steps
printf '\n== %s: %s\n' "$name" "$*"
start=$(date +%s)
"$@" 2>&1 | tee "target/steps/$name.log"; status=${PIPESTATUS[0]}
line=$(printf '%-22s %5d s   %s' "$name" $(($(date +%s) - start)) "$([ $status = 0 ] && echo ok || echo "FAILED ($status)")")
printf '== %s\n' "$line"
printf '%s\n' "$line" >> target/steps.txt
exit $status
