#!/usr/bin/env bash
# identities.sh - certificates and passwords of an installation by the chart, as Secrets `<noun>-identity`.
#
#   identities.sh NAMESPACE [DIR]
#
# The authority and the passwords stay in DIR (default ./authority-NAMESPACE): keep it, and keep it secret. Run again, it renews the
# certificates, and the services take them without a restart. `braid` must be on the PATH, or BRAID name it.
set -euo pipefail

namespace=${1:?"the namespace, for example: identities.sh braid"}
authority=${2:-authority-$namespace}
nouns=(gateway swarm proxy ingest alerting path-telemetry dashboard setup trial envoy kafka timescaledb)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

"${BRAID:-braid}" secrets make --authority "$authority" --out "$out" "${nouns[@]/#/--for=}" > /dev/null
kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f -
for noun in "${nouns[@]}"; do
  kubectl -n "$namespace" create secret generic "$noun-identity" --from-file="$out/$noun" --dry-run=client -o yaml | kubectl apply -f -
done
