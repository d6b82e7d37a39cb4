#!/usr/bin/env bash
# index.sh [--check] - writes README.md of this folder from the headings of its pages, and the
# contents of the site, which list them too.
set -euo pipefail
cd "$(dirname "$0")"
index() {
  cat <<'HEAD'
# Decisions

One page for each decision that still guides a change: context, decision, alternatives, and the
number that decided. `docs/decisions/index.sh` writes this list; a test keeps it fresh.

| decision | area | date |
|---|---|---|
HEAD
  for page in [0-9]*.md; do
    title=$(sed -n '1s/^# //p' "$page")
    facts=$(sed -n 's/^Date: \(.*\)\. Area: \(.*\)\.$/\2 | \1/p' "$page" | head -n 1)
    [ -n "$facts" ] || { echo "$page: no line 'Date: YYYY-MM-DD. Area: NAME.'" >&2; exit 1; }
    printf '| [%s](%s) | %s |\n' "$title" "$page" "$facts"
  done
}
if [ "${1-}" = --check ]; then
  diff <(index) README.md || { echo "docs/decisions/README.md is old: run docs/decisions/index.sh" >&2; exit 1; }
else
  index > README.tmp && mv README.tmp README.md
  ../site.py summary
fi
