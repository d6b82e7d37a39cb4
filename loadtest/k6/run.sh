#!/usr/bin/env bash
# run.sh SCENARIO - a load test of a running platform with k6 (`make load scenario=SCENARIO`).
#
#   smoke      two sensors for twenty seconds
#   steady     twenty sensors for a minute
#   path-loss  ten sensors while Wi-Fi is cut
#   surge      sixty sensors, one after the other
#   storm      thirty patients fall ill at once
#   soak       twenty sensors for an hour; memory must stay flat
#   upload     ten gateways upload directly to Envoy (TARGET=compose)
#
# Without TARGET it starts `braid up` on its own data directory and ends it afterwards.
# TARGET=compose uses the platform of `docker compose up`. LOAD_SECONDS=600 sets a scenario's
# length. Exit status 99 if a target is missed. BRAID names the program (default
# target/debug/braid), SUMMARY a file for the figures as JSON.
set -euo pipefail
cd "$(dirname "$0")/../.."

scenario=${1:?"the scenario: smoke, steady, surge, path-loss, storm, soak or upload"}
braid=${BRAID:-${CARGO_TARGET_DIR:-target}/debug/braid}
devices=60
# Growth of memory, from the second fifth of a soak to its last.
growth_max=1.1
memory_interval_s=5
work=$(mktemp -d)
running= watching=
finish() {
  [ -z "$watching" ] || kill "$watching" 2> /dev/null || true
  [ -z "$running" ] || { kill -INT "$running" 2> /dev/null || true; wait "$running" 2> /dev/null || true; }
  rm -rf "$work"
}
trap finish EXIT

case ${TARGET:-up} in
  up)
    [ "$scenario" != upload ] || { echo "load: upload goes through Envoy: docker compose up --wait, then TARGET=compose" >&2; exit 64; }
    "$braid" up --patients 1 --data "$work/data" --listen 127.0.0.1:0 --sensors 127.0.0.1:0 --admin 127.0.0.1:0 > "$work/up.log" 2>&1 &
    running=$!
    for _ in $(seq 300); do [ -e "$work/data/up.json" ] && break; sleep 0.2; done
    [ -e "$work/data/up.json" ] || { cat "$work/up.log" >&2; echo "load: braid up did not start" >&2; exit 1; }
    address() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$work/data/up.json" "$1"; }
    SENSORS=http://$(address sensors) PAGE=http://$(address page)
    PASSWORD=$(cat "$work/data/identities/admin.password")
    "$braid" setup --store "sqlite:$work/data" --label load --gateway gw-1 --patients "$devices" > /dev/null
    cut_path() { "$braid" link "$1" wifi --data "$work/data" > /dev/null; }
    memory_kib() { sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\) kB/braid \1/p' "/proc/$running/status"; }
    ;;
  compose)
    SENSORS=http://127.0.0.1:${SENSORS_PORT:-8090} PAGE=https://localhost:${PAGE_PORT:-8443}
    export INSECURE=yes
    PASSWORD=$(docker compose run --rm -T --no-deps secrets show administrator)
    SENSOR_TOKEN=$(docker compose run --rm -T --no-deps secrets show sensors)
    export SENSOR_TOKEN
    gateway=gw-1
    if [ "$scenario" = upload ]; then
      # A certificate for a gateway of this test alone. Envoy is reached by its address in its
      # network.
      gateway=load-gateway
      docker compose run --rm -T --no-deps --volume "$work:/out" secrets make --out=/out --for="gateway:$(id -u)" --gateway="$gateway" > /dev/null
      address=$(docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$(docker compose ps -q envoy)")
      export IDENTITY=$work/gateway GATEWAY=$gateway UPLOAD=$address:7443 LABEL=upload
    fi
    docker compose run --rm -T --no-deps setup setup --config=/run/braid/braid.toml --store=postgres://braid@timescaledb:5432/braid \
      --store-ca=/run/braid/ca.pem --label="${LABEL:-load}" --gateway="$gateway" --patients="$devices" > /dev/null
    cut_path() { docker compose exec -T wifi netlab "$1" > /dev/null; }
    # Memory of processes, without the page cache that a container is charged for as well.
    memory_kib() {
      local name pid
      for name in gateway proxy ingest alerting path-telemetry dashboard envoy; do
        pid=$(docker inspect -f '{{.State.Pid}}' "$(docker compose ps -q "$name")")
        sed -n "s/^VmRSS:[[:space:]]*\([0-9]*\) kB/$name \1/p" "/proc/$pid/status"
      done
    }
    ;;
  *) echo "load: TARGET is up or compose" >&2; exit 64 ;;
esac
export SENSORS PAGE PASSWORD SCENARIO=$scenario

if [ "$scenario" = path-loss ]; then
  # Three cuts of ten seconds while sensors send.
  (for _ in 1 2 3; do sleep 8; cut_path cut; sleep 10; cut_path restore; done) &
fi
if [ "$scenario" = soak ]; then
  (while memory_kib | sed "s/^/$(date +%s) /" >> "$work/memory"; do sleep "$memory_interval_s"; done) & watching=$!
fi
# A live stream ends with a timeout on this side, which is no failure.
status=0
k6 run --quiet --no-usage-report ${SUMMARY:+--summary-export "$SUMMARY"} loadtest/k6/load.js \
  2> >(grep -v 'msg="Request Failed" error="request timeout"' >&2) || status=$?

if [ "$scenario" = soak ]; then
  kill "$watching" 2> /dev/null || true; watching=
  python3 - "$work/memory" "$growth_max" << 'PYTHON' || status=99
import statistics, sys
rows = [line.split() for line in open(sys.argv[1])]
begin, end = int(rows[0][0]), int(rows[-1][0])
grown = False
for name in dict.fromkeys(row[1] for row in rows):
    of = [(int(row[0]), int(row[2]) / 1024) for row in rows if row[1] == name]
    fifth = (end - begin) / 5
    fifths = [statistics.median([mib for at, mib in of if begin + n * fifth <= at <= begin + (n + 1) * fifth]) for n in range(5)]
    growth = fifths[4] / fifths[1]
    kept = growth <= float(sys.argv[2])
    grown |= not kept
    print("    %s memory of %-16s %s MiB, fifth by fifth: x%.2f from the second to the last, at most x%s" % (
        "\u2713" if kept else "\u2717", name, " ".join("%.1f" % mib for mib in fifths), growth, sys.argv[2]))
sys.exit(grown)
PYTHON
fi
exit "$status"
