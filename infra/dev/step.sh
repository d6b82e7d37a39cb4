#!/usr/bin/env bash
# step.sh NAME COMMAND... - runs one step of `make test`, and prints its time and result.
# Times are collected in target/steps.txt; `make test` prints them at its end.
set -uo pipefail

name=$1; shift
mkdir -p target
printf '\n== %s: %s\n' "$name" "$*"
start=$(date +%s)
"$@"; status=$?
line=$(printf '%-22s %5d s   %s' "$name" $(($(date +%s) - start)) "$([ $status = 0 ] && echo ok || echo "FAILED ($status)")")
printf '== %s\n' "$line"
printf '%s\n' "$line" >> target/steps.txt
exit $status
