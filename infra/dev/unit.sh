#!/usr/bin/env bash
# unit.sh - every Rust test of the workspace.
# Tests with real engines, kernels and clocks can miss a deadline when the machine stands still under them. So a test that failed is run once
# more, alone on the machine: failing again is failing, and passing then is said out loud ("unsteady"), because it may as well be a rare fault.
# A target that does not end is a failed one; it names no test, so all of its tests are run again.
set -uo pipefail

readonly FAILED_MAX=5 # more than that is no accident
readonly TARGET_SECONDS_MAX=1500 # the longest takes a third of it
readonly RUNNER="target.'cfg(unix)'.runner = ['timeout', '--foreground', '--kill-after=10', '$TARGET_SECONDS_MAX']"
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

cargo test --config "$RUNNER" --workspace --quiet --no-fail-fast 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" != 0 ] || exit 0

# Cargo tells how to run a target again, and the harness lists what failed in it by name.
mapfile -t targets < <(sed -n 's/.*to rerun pass `\(.*\)`$/\1/p' "$log" | sort -u)
mapfile -t tests < <(awk '/^failures:$/ { found = "" } /^    [A-Za-z0-9_:]+$/ { found = found $1 "\n" } /^test result: FAILED/ { printf "%s", found }' "$log" | sort -u)
if [ ${#targets[@]} = 0 ] || [ ${#targets[@]} -gt $FAILED_MAX ] || [ ${#tests[@]} -gt $FAILED_MAX ]; then
  exit "$status"
fi

printf '\nfailed, once more alone: %s\n' "${tests[@]:-${targets[@]}}"
for target in "${targets[@]}"; do
  # Of the whole workspace, as it was built: one package alone has other features, and would be built anew.
  read -ra arguments <<< "--workspace ${target#-p * }"
  again=$(cargo test --config "$RUNNER" "${arguments[@]}" -- --exact --test-threads=1 "${tests[@]}" 2>&1)
  again_status=$?
  printf '%s\n' "$again"
  # A target that was killed names no test: it has not passed by running none.
  if [ $again_status != 0 ] || ! grep -q '^test result: ok. [1-9]' <<< "$again"; then
    exit "$status"
  fi
done
printf 'unsteady, failed beside others and passed alone: %s\n' "${tests[@]:-${targets[@]}}"
