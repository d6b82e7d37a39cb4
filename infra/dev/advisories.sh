#!/usr/bin/env bash
# advisories.sh - compares Cargo.lock with RustSec's advisories, without a network.
#
# $BRAID_ADVISORY_DB names a copy of RustSec's advisory-db (default ../shared/advisory-db). Without
# a copy nothing is compared, and one line says so.
set -euo pipefail
cd "$(dirname "$0")/../.."

db=${BRAID_ADVISORY_DB:-../shared/advisory-db}
if [ ! -d "$db/crates" ]; then
  echo "advisories: SKIPPED, $db has no database; set BRAID_ADVISORY_DB to a copy of RustSec's advisory-db"
  exit 0
fi

# cargo-deny reads a git repository, and looks for it below db-path by the hash of its address.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
repository=$work/advisory-db-3157b0e258782691
git init --quiet "$repository"
cp -r "$db/crates" "$repository"
chmod -R u+w "$repository"
touch "$repository/.git/FETCH_HEAD"
sed "s|^\[advisories\]|&\ndb-path = \"$work\"|" deny.toml > "$work/deny.toml"

count=$(find "$db/crates" -name '*.md' | wc -l)
newest=$(grep -rh --include='*.md' '^date = ' "$db/crates" | sort | tail -1 | cut -d'"' -f2)
cargo deny --offline --log-level error --config "$work/deny.toml" check advisories
echo "advisories: none of $count applies, the newest is of $newest"
