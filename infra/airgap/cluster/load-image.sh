#!/usr/bin/env bash
# load-image.sh - imports an image into the kubelet's store.
#
#   load-image.sh IMAGE...                    from the running Docker engine
#   load-image.sh --archive FILE              from an archive of `docker save`
#   load-image.sh --scratch NAME:TAG BINARY   an image with one static program
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); . "$here/settings.sh"
ctr() { "$CTD_DIR/ctr" --address "$SOCK" --namespace k8s.io "$@"; }
local=$(ctr images import --help | grep -q -- '--local' && echo --local || true)      # ctr 2.x
import() { ctr images import $local --digests=false - >/dev/null; }
case ${1:-} in
  --archive) import < "$2" ;;
  --scratch)
    name=$2 bin=$(readlink -f "$3") tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
    mkdir "$tmp/image"; install -m 755 "$bin" "$tmp/image/main"
    tar -C "$tmp/image" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf "$tmp/layer.tar" main
    sum=$(sha256sum "$tmp/layer.tar" | cut -d' ' -f1)
    printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/main"],"Env":["PATH=/"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$sum" > "$tmp/config.json"
    printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$name" > "$tmp/manifest.json"
    tar -C "$tmp" -cf - manifest.json config.json layer.tar | import ;;
  ''|-*) die "usage: load-image.sh IMAGE... | --archive FILE | --scratch NAME:TAG BINARY" ;;
  *) docker save "$@" | import ;;
esac
