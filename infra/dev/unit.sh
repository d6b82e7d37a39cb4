#!/usr/bin/env bash
# unit.sh - every Rust test of the workspace.
#
# Tests with real engines, kernels and clocks can miss a deadline when the machine pauses. So a
# failed test runs once more, alone on the machine. A test that fails again has failed. A test that
# then passes is named as unsteady, because it may be a rare fault. The run fails all the same
# unless unsteady.txt lists the test with a reason. A target that does not end has failed. It names
# no test, so all of its tests run again, and the target may be listed.
set -uo pipefail

readonly FAILED_MAX=5 # more failures are not repeated
readonly LISTED_MAX=5 # a longer list is refused, since it would hide faults
readonly TARGET_SECONDS_MAX=1500 # the longest target takes a third of it
readonly RUNNER="target.'cfg(unix)'.runner = ['timeout', '--foreground', '--kill-after=10', '$TARGET_SECONDS_MAX']"
readonly LIST=${UNSTEADY_LIST:-$(dirname "$0")/unsteady.txt}

trim() { sed 's/^[[:space:]]*//; s/[[:space:]]*$//'; }

# The list, a test and its reason in each line, without comments and blank lines.
declare -A reasons=()
while IFS='|' read -r name reason; do
  name=$(trim <<< "$name"); reason=$(trim <<< "$reason")
  if [ -z "$name" ] || [ -z "$reason" ]; then
    printf '%s: a line is "TEST | REASON", and both are needed: %s | %s\n' "$LIST" "$name" "$reason" >&2
    exit 2
  fi
  reasons[$name]=$reason
done < <(grep -v -e '^#' -e '^[[:space:]]*$' "$LIST")
if [ ${#reasons[@]} -gt $LISTED_MAX ]; then
  printf '%s: %d tests are listed, and at most %d may be\n' "$LIST" ${#reasons[@]} $LISTED_MAX >&2
  exit 2
fi

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

cargo test --config "$RUNNER" --workspace --quiet --no-fail-fast 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" != 0 ] || exit 0

# Cargo prints how to run a target again, and the harness lists its failed tests by name.
mapfile -t targets < <(sed -n 's/.*to rerun pass `\(.*\)`$/\1/p' "$log" | sort -u)
mapfile -t tests < <(awk '/^failures:$/ { found = "" } /^    [A-Za-z0-9_:]+$/ { found = found $1 "\n" } /^test result: FAILED/ { printf "%s", found }' "$log" | sort -u)
if [ ${#targets[@]} = 0 ] || [ ${#targets[@]} -gt $FAILED_MAX ] || [ ${#tests[@]} -gt $FAILED_MAX ]; then
  exit "$status"
fi

printf '\nfailed, once more alone: %s\n' "${tests[@]:-${targets[@]}}"
for target in "${targets[@]}"; do
  # With the whole workspace, as it was built: one package alone has other features, and would be
  # built again.
  read -ra arguments <<< "--workspace ${target#-p * }"
  again=$(cargo test --config "$RUNNER" "${arguments[@]}" -- --exact --test-threads=1 "${tests[@]}" 2>&1)
  again_status=$?
  printf '%s\n' "$again"
  # A killed target names no test, so running none of its tests is no pass.
  if [ $again_status != 0 ] || ! grep -q '^test result: ok. [1-9]' <<< "$again"; then
    exit "$status"
  fi
done

unlisted=0
for name in "${tests[@]:-${targets[@]}}"; do
  if [ -n "${reasons[$name]:-}" ]; then
    printf 'unsteady, failed beside others and passed alone: %s (listed: %s)\n' "$name" "${reasons[$name]}"
  else
    printf 'unsteady, failed beside others and passed alone: %s\n' "$name"
    unlisted=$((unlisted + 1))
  fi
done
if [ $unlisted != 0 ]; then
  printf 'FAILED: %d unsteady and not in %s. Mend the test or its subject; list it with a reason only if neither is possible.\n' $unlisted "$LIST" >&2
  exit "$status"
fi
