#!/usr/bin/env python3
"""sbom.py - the bill of materials of the binary `braid` as CycloneDX 1.5, from cargo's metadata: the
crates that are linked into it or run during its build, each with version, licence and checksum from
Cargo.lock. The same sources give the same text."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = "x86_64-unknown-linux-gnu"


def checksums():
    """Reads Cargo.lock, whose plain format needs no TOML parser."""
    found, entry = {}, {}
    for line in (ROOT / "Cargo.lock").read_text().splitlines() + ["[[package]]"]:
        if line == "[[package]]":
            if "checksum" in entry:
                found[entry["name"], entry["version"]] = entry["checksum"]
            entry = {}
        elif " = \"" in line:
            key, value = line.split(" = ", 1)
            entry[key] = value.strip('"')
    return found


def main():
    metadata = json.loads(subprocess.run(
        ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", TARGET],
        cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    edges = {}
    for node in metadata["resolve"]["nodes"]:
        edges[node["id"]] = sorted(
            dep["pkg"] for dep in node["deps"]
            if any(kind["kind"] in (None, "build") for kind in dep["dep_kinds"]))
    root = next(id for id, package in packages.items() if package["name"] == "braid")
    reached, waiting = {root}, [root]
    while waiting:
        for dep in edges[waiting.pop()]:
            if dep not in reached:
                reached.add(dep)
                waiting.append(dep)

    sums = checksums()

    def reference(id):
        return "pkg:cargo/%s@%s" % (packages[id]["name"], packages[id]["version"])

    def component(id, kind):
        package = packages[id]
        made = {
            "type": kind,
            "bom-ref": reference(id),
            "name": package["name"],
            "version": package["version"],
            "purl": reference(id),
        }
        if package["license"]:
            made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        checksum = sums.get((package["name"], package["version"]))
        if checksum:
            made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return made

    order = sorted(reached - {root}, key=reference)
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(root, "application")},
        "components": [component(id, "library") for id in order],
        "dependencies": [
            {"ref": reference(id), "dependsOn": [reference(dep) for dep in edges[id] if dep in reached]}
            for id in [root] + order],
    }
    json.dump(bom, sys.stdout, indent=1)
    print()


main()
