#!/usr/bin/env bash
# run.sh SCENARIO - a load test of a running platform with k6, as `make load scenario=SCENARIO` runs it.
#
#   smoke      two sensors for ten seconds          surge      sixty sensors, one after the other
#   steady     twenty sensors for a minute          storm      thirty people fall ill at once
#   path-loss  ten sensors while Wi-Fi is cut       soak       twenty sensors for an hour
#
# Without TARGET it starts `braid up` on a data directory of its own and ends it afterwards. With TARGET=compose it takes the platform of
# `docker compose up`. Exit status 99 when a promise is not kept. BRAID names the program (default target/debug/braid).
set -euo pipefail
cd "$(dirname "$0")/../.."

scenario=${1:?"the scenario: smoke, steady, surge, path-loss, storm or soak"}
braid=${BRAID:-target/debug/braid}
devices=60
work=$(mktemp -d)
running=
finish() {
  [ -z "$running" ] || { kill -INT "$running" 2>/dev/null || true; wait "$running" 2>/dev/null || true; }
  rm -rf "$work"
}
trap finish EXIT

case ${TARGET:-up} in
  up)
    "$braid" up --patients 1 --data "$work/data" --listen 127.0.0.1:0 --sensors 127.0.0.1:0 --admin 127.0.0.1:0 > "$work/up.log" 2>&1 &
    running=$!
    for _ in $(seq 300); do [ -e "$work/data/up.json" ] && break; sleep 0.2; done
    [ -e "$work/data/up.json" ] || { cat "$work/up.log" >&2; echo "load: braid up did not start" >&2; exit 1; }
    address() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$work/data/up.json" "$1"; }
    SENSORS=http://$(address sensors) PAGE=http://$(address page)
    PASSWORD=$(cat "$work/data/identities/admin.password")
    "$braid" setup --store "sqlite:$work/data" --label load --gateway gw-1 --patients "$devices" > /dev/null
    cut_path() { "$braid" link "$1" wifi --data "$work/data" > /dev/null; }
    ;;
  compose)
    SENSORS=http://127.0.0.1:${SENSORS_PORT:-8090} PAGE=https://localhost:${PAGE_PORT:-8443}
    export INSECURE=yes
    PASSWORD=$(docker compose run --rm -T --no-deps secrets show administrator)
    SENSOR_TOKEN=$(docker compose run --rm -T --no-deps secrets show sensors)
    export SENSOR_TOKEN
    docker compose run --rm -T --no-deps setup setup --config=/run/braid/braid.toml --store=postgres://braid@timescaledb:5432/braid \
      --store-ca=/run/braid/ca.pem --label=load --gateway=gw-1 --patients="$devices" > /dev/null
    cut_path() { docker compose exec -T wifi netlab "$1" > /dev/null; }
    ;;
  *) echo "load: TARGET is up or compose" >&2; exit 64 ;;
esac
export SENSORS PAGE PASSWORD SCENARIO=$scenario

if [ "$scenario" = path-loss ]; then
  # Three cuts of ten seconds while sensors send.
  (for _ in 1 2 3; do sleep 8; cut_path cut; sleep 10; cut_path restore; done) &
fi
k6 run --quiet --no-usage-report loadtest/k6/load.js
