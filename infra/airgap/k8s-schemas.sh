#!/usr/bin/env bash
# k8s-schemas.sh - JSON schemas of Kubernetes' kinds, from the API description in its Go module;
# prints their location for kubeconform.
#
#   helm template charts/braid |
#     kubeconform -strict -schema-location "$(infra/airgap/k8s-schemas.sh)"
#
# Kept below $BRAID_CACHE. Strict: an unknown field is an error.
set -euo pipefail

version=1.36.3
cache=${BRAID_CACHE:-$HOME/.cache/braid}
out=$cache/k8s-schemas-$version
PATH=$cache/go/bin:$PATH

if [ ! -e "$out/.complete" ]; then
  echo "k8s-schemas: Kubernetes $version into $out" >&2
  module=$(cd / && go mod download -json "k8s.io/kubernetes@v$version" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
  rm -rf "$out"; mkdir -p "$out"
  python3 - "$module/api/openapi-spec/swagger.json" "$out" <<'PY'
import json, pathlib, sys

definitions = json.load(open(sys.argv[1]))["definitions"]
out = pathlib.Path(sys.argv[2])


def closed(definition, name):
    """What the API accepts: nothing unknown, null for nothing, and numbers where it takes either."""
    if definition.get("format") == "int-or-string":
        return {"type": ["string", "integer"]}
    if name.endswith(".resource.Quantity"):
        return {"type": ["string", "number"]}
    if "properties" in definition:
        definition.setdefault("additionalProperties", False)
        for own in definition["properties"].values():
            if own.get("format") == "int-or-string":
                own.pop("format")
                own["type"] = ["string", "integer"]
            elif isinstance(own.get("type"), str):
                own["type"] = [own["type"], "null"]
    return definition


definitions = {name: closed(definition, name) for name, definition in definitions.items()}


def meant(node):
    """Names of the definitions that a node refers to."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key == "$ref" and isinstance(value, str):
            yield value.rsplit("/", 1)[1]
        else:
            yield from meant(value)


for name, definition in definitions.items():
    kinds = definition.get("x-kubernetes-group-version-kind", [])
    if len(kinds) != 1:
        continue
    needed, waiting = {}, [name]
    while waiting:
        it = waiting.pop()
        if it not in needed:
            needed[it] = definitions[it]
            waiting.extend(meant(definitions[it]))
    kind = kinds[0]
    file = "-".join(part for part in (kind["kind"], kind["group"].split(".")[0], kind["version"]) if part).lower()
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/" + name, "definitions": needed}
    (out / (file + ".json")).write_text(json.dumps(schema))
PY
  touch "$out/.complete"
fi
echo "$out/{{.ResourceKind}}{{.KindSuffix}}.json"
