#!/usr/bin/env bash
# endings.sh [COUNT] - starts the platform with simulated patients COUNT times (default 14).
#
# Each time SIGTERM asks it to end while data flows. The script prints each exit status, and exits
# with 1 if one is not 0. BRAID_BIN names the program (default target/debug/braid).
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-14}
braid=${BRAID_BIN:-target/debug/braid}
admin=127.0.0.1:${PORT:-19190}
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$work"' EXIT
failed=0
for round in $(seq "$count"); do
  "$braid" up --patients 4 --data "$work/$round" --listen 127.0.0.1:0 --admin "$admin" >"$work/log" 2>&1 &
  pid=$!
  for _ in $(seq 600); do
    "$braid" health "$admin" >/dev/null 2>&1 && break
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  # Each round ends at another moment of the data's flow.
  sleep "$(awk "BEGIN { print ($round % 7) * 0.37 }")"
  begun=$(date +%s%N)
  kill -TERM "$pid" 2>/dev/null || true
  status=0
  wait "$pid" || status=$?
  pid=
  printf 'round %2d: exit %d after %d ms\n' "$round" "$status" $((($(date +%s%N) - begun) / 1000000))
  [ "$status" = 0 ] || { failed=$((failed + 1)); tail -3 "$work/log"; }
done
echo "$failed of $count ended with another status than 0"
[ "$failed" = 0 ]
