#!/usr/bin/env bash
# breaking.sh - checks that the contracts stay compatible: gateways in the field may be months older
# than the core.
#
#   breaking.sh                   compares with every release in released/, and tests the comparison
#   breaking.sh release VERSION   stores the present contracts as those of VERSION
#
# released/VERSION.binpb is a descriptor set, so a fresh clone needs neither tags nor a network.
# Delete the file of a release that no gateway runs any more.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf 'breaking: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

against() { # FOLDER
  local released=(released/*.binpb) file
  [ -e "${released[0]}" ] || die "no release in proto/released"
  for file in "${released[@]}"; do
    (cd "$1" && buf breaking --against "$OLDPWD/$file") || return 1
  done
}

# A check that never refuses would go unnoticed, so it is tested with a breaking change.
changed() { # refused|allowed WHAT FILE SED-SCRIPT
  local tree; tree=$(mktemp -d "$trials/XXXXXX")
  cp -r buf.yaml braid "$tree/"
  sed -i -E "$4" "$tree/$3"
  ! cmp -s "$3" "$tree/$3" || die "the trial '$2' changes nothing in $3: write it anew"
  (cd "$tree" && buf build -o /dev/null) || die "the trial '$2' is no contract"
  if against "$tree" > "$tree/said" 2>&1; then found=allowed; else found=refused; fi
  [ "$found" = "$1" ] || { cat "$tree/said" >&2; die "$2 is $found and should be $1"; }
}

trial() {
  trials=$(mktemp -d); trap 'rm -rf "$trials"' EXIT
  local vitals=braid/vitals/v1/vitals.proto query=braid/query/v1/query.proto
  changed refused "a field that is gone"          $query  '/^  string unit = 3;$/d'
  changed refused "a field of another type"       $query  's/^  string unit = 3;$/  int64 unit = 3;/'
  changed refused "a field of another number"     $query  's/^  string unit = 3;$/  string unit = 33;/'
  changed refused "a field of another name"       $query  's/^  string unit = 3;$/  string ucum = 3;/'
  changed refused "a value that is gone"          $query  '/^  RISK_HIGH = 4;$/d'
  changed refused "a call that is gone"           $query  '/^  rpc GetSeries\(/d'
  changed refused "a call that answers otherwise" $query  's/^  rpc Watch\(WatchRequest\) returns \(stream /  rpc Watch(WatchRequest) returns (/'
  changed allowed "a new field"                   $query  's/^  string unit = 3;$/&\n  string note = 99;/'
  changed allowed "a new call"                    $query  's/^  rpc GetPaths\(/  rpc GetPaths2(GetPathsRequest) returns (GetPathsResponse);\n&/'
  changed allowed "another comment"               $vitals '1s/$/\n\/\/ Otherwise the same./'
}

case ${1:-} in
  '')      against . || die "this breaks gateways or pages of a release; add instead, under a new name and number"
           trial
           say "understood by $(cd released && echo *.binpb | sed 's/\.binpb//g'); 7 broken contracts refused, 3 additions allowed" ;;
  release) [[ ${2:-} =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "release VERSION, for example: release 0.2.0"
           [ ! -e "released/$2.binpb" ] || die "released/$2.binpb is there already; a release is not made twice"
           [ -z "$(ls released)" ] || against . || die "not compatible with what was released"
           buf build --as-file-descriptor-set --exclude-source-info -o "released/$2.binpb"
           say "released/$2.binpb" ;;
  *)       sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
