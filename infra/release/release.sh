#!/usr/bin/env bash
# release.sh - makes a release from the tree in two steps, with a review of the commit between them.
#
#   release.sh prepare VERSION   sets the version in Cargo.toml and the charts; `Unreleased` of the
#                                changelog becomes VERSION; stores the contracts
#                                (proto/breaking.sh). Changes files, commits nothing.
#   release.sh build [OUT]       on the committed tree: checks (`make test chart`) and builds the
#                                release binary. OUT (default target/release-VERSION) gets binary,
#                                bill of materials, chart packages, contracts, notes, SHA256SUMS.
#                                Tags vVERSION.
#
# CHECKED=1 builds without the checks, for a CI with an earlier job for them. BRAID_BINARY replaces
# the compiled binary. Nothing is pushed: `git push origin vVERSION`, and the upload of OUT, are
# decisions of a person. CI: `.ci/release`, on a tag or by hand.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf 'release: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
version() { sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1; }
tagged() { git rev-parse -q --verify "refs/tags/v$1" > /dev/null; }
changed() { [ -n "$(git status --porcelain --untracked-files=no)" ]; }

set_version() { # FILE SED-EXPRESSION
  cp "$1" "$1.before"
  sed -i -E "$2" "$1"
  if cmp -s "$1" "$1.before"; then rm "$1.before"; die "$1 has no version to set"; fi
  rm "$1.before"
}

prepare() {
  local new=$1 now; now=$(version)
  [[ $new =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "$new is no version; for example 0.2.0"
  ! tagged "$new" || die "v$new is tagged already; a release is not made twice"
  [ "$(printf '%s\n' "$now" "$new" | sort -V | tail -1)" = "$new" ] || die "$new comes before $now"
  ! changed || die "there are uncommitted changes: they would become part of the release"
  grep -q '^## Unreleased$' CHANGELOG.md || die "CHANGELOG.md has no section Unreleased"
  # The tree's version was never released: only the contracts may have grown since they were stored.
  if [ "$new" = "$now" ]; then rm -f "proto/released/$new.binpb"; else
    set_version Cargo.toml "0,/^version = /s/^version = .*/version = \"$new\"/"
    for chart in charts/*/Chart.yaml; do
      set_version "$chart" "s/^version: .*/version: $new/; s/^appVersion: .*/appVersion: $new/"
    done
    cargo update --workspace --offline --quiet
  fi
  sed -i "s/^## Unreleased$/## Unreleased\n\n## $new - $(date -u +%F)/" CHANGELOG.md
  proto/breaking.sh release "$new"
  say "look at git diff, commit, then: infra/release/release.sh build"
}

notes() { # VERSION: its section of the changelog
  awk -v head="## $1" 'index($0, head) == 1 { on = 1; print; next } /^## / { on = 0 } on' CHANGELOG.md
}

build() {
  local new out name; new=$(version); out=${1:-target/release-$new} name=braid-$new-$(uname -m)-linux
  ! changed || die "there are uncommitted changes: a release is what a commit says"
  git cat-file -e "HEAD:proto/released/$new.binpb" 2> /dev/null || die "the contracts of $new are not kept: release.sh prepare"
  for chart in charts/*/Chart.yaml; do
    grep -q "^appVersion: $new$" "$chart" && grep -q "^version: $new$" "$chart" || die "$chart is not of $new: release.sh prepare"
  done
  [ -n "$(notes "$new")" ] || die "CHANGELOG.md says nothing of $new: release.sh prepare"
  ! tagged "$new" || die "v$new is tagged already; a release is not made twice"
  if [ "${CHECKED:-0}" != 1 ]; then make test chart; fi
  local binary=${BRAID_BINARY:-}
  if [ -z "$binary" ]; then
    # Compiled like in infra/images/Dockerfile: the same sources give the same bytes, wherever they
    # lie.
    CARGO_INCREMENTAL=0 SOURCE_DATE_EPOCH=0 RUSTFLAGS="--remap-path-prefix=$PWD=. --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
      CARGO_PROFILE_RELEASE_STRIP=symbols cargo build --release --locked -p braid
    binary=${CARGO_TARGET_DIR:-target}/release/braid
  fi
  [ "$("$binary" -V)" = "braid $new" ] || die "$binary says $("$binary" -V), not braid $new"
  rm -rf "$out"; mkdir -p "$out/$name"
  strip -o "$out/$name/braid" "$binary"
  cp README.md CHANGELOG.md LICENSE "$out/$name/"
  # A release's files have a fixed order and the commit's time.
  tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -cf - "$name" | gzip -n > "$out/$name.tar.gz"
  rm -r "${out:?}/$name"
  python3 infra/images/sbom.py > "$out/sbom.cdx.json"
  for chart in charts/braid charts/backends; do helm package "$chart" --destination "$out" > /dev/null; done
  cp "proto/released/$new.binpb" "$out/contracts-$new.binpb"
  { notes "$new"; echo; echo "Commit $(git rev-parse HEAD). How to upgrade: infra/release/README.md."; } > "$out/notes.md"
  (cd "$out" && sha256sum -- *.tar.gz *.tgz *.json *.binpb notes.md > SHA256SUMS && sha256sum --quiet --check SHA256SUMS)
  git tag -a "v$new" -m "Braid $new"
  (cd "$out" && ls -l)
  say "$out, tagged v$new"
}

case ${1:-} in
  prepare) [ $# = 2 ] || die "prepare VERSION"; prepare "$2" ;;
  build)   [ $# -le 2 ] || die "build [OUT]"; build "${2:-}" ;;
  *)       sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
