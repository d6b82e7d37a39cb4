#!/usr/bin/env bash
# identities.sh - certificates and passwords of an installation by the chart, as Secrets
# `<noun>-identity`.
#
#   identities.sh [--enrolment] NAMESPACE [DIR]
#
# --enrolment adds the Secret `gateways-authority`, with which the dashboard issues certificates to
# gateways (`enrolment.authoritySecret`). BRAID_PAGE_HOSTS=ward.example.org,10.1.2.3 adds those
# names and addresses to the page's certificate. The authority and the passwords stay in DIR
# (default ./authority-NAMESPACE): keep it, and keep it secret. A second run renews the
# certificates, and services reload them without a restart. `braid` must be on the PATH, or BRAID
# must name it.
set -euo pipefail

enrolment=
if [ "${1:-}" = --enrolment ]; then enrolment=1; shift; fi
namespace=${1:?"the namespace, for example: identities.sh braid"}
authority=${2:-authority-$namespace}
nouns=(gateway swarm proxy ingest alerting path-telemetry exchange dashboard setup trial envoy kafka timescaledb)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

"${BRAID:-braid}" secrets make --authority "$authority" --out "$out" "${nouns[@]/#/--for=}" > /dev/null
kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f -
for noun in "${nouns[@]}"; do
  kubectl -n "$namespace" create secret generic "$noun-identity" --from-file="$out/$noun" --dry-run=client -o yaml | kubectl apply -f -
done
if [ -n "$enrolment" ]; then
  # Gateways trust the general authority; its key stays here.
  kubectl -n "$namespace" create secret generic gateways-authority --from-file="$authority/gateways.pem" --from-file="$authority/gateways.key" \
    --from-file="$authority/ca.pem" --dry-run=client -o yaml | kubectl apply -f -
fi
