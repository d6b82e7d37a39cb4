#!/usr/bin/env bash
# debian.sh - root file systems and single programs from Debian's packages, without installing any.
#
#   debian.sh rootfs SUITE NAME PACKAGE...   a minimal system with these packages as
#                                            $BRAID_CACHE/rootfs/NAME.tar; prints the path
#   debian.sh unpack SUITE PACKAGE...        packages unpacked, not configured, below
#                                            $BRAID_CACHE/deb; prints one path each
#   debian.sh extract SUITE FOLDER PACKAGE...
#                                            packages with all they depend on, unpacked into FOLDER
#   debian.sh plugins                        docker compose and buildx as this user's plugins
#
# They fetch from the mirror of this machine's own apt, and keep the results: a second run needs no
# network.
set -euo pipefail

cache=${BRAID_CACHE:-$HOME/.cache/braid}
mkdir -p "$cache"

say() { printf 'debian: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

mirror() {
  sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -1 | grep . ||
    awk '$1 == "deb" && $2 !~ /^\[/ { print $2; exit }' /etc/apt/sources.list 2>/dev/null | grep . ||
    die "no Debian mirror is configured in /etc/apt"
}

rootfs() { # SUITE NAME PACKAGE...
  local suite=$1 tar=$cache/rootfs/$2.tar; shift 2
  mkdir -p "$cache/rootfs"
  if [ ! -s "$tar" ]; then
    command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: infra/dev/need.sh docker installs it"
    say "$suite with $* into $tar (once)"
    # merged-usr's hook makes the package usrmerge, which depends on Perl, unnecessary.
    mmdebstrap --quiet --format=tar --variant=minbase --include="$(IFS=,; echo "usr-is-merged,ca-certificates $*" | tr ' ' ',')" \
      --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
      --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
      --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
      --essential-hook='mkdir -p "$1/usr/share/man/man1" "$1/etc/postgresql-common"' \
      --essential-hook='echo create_main_cluster=false > "$1/etc/postgresql-common/createcluster.conf"' \
      --customize-hook='rm -rf "$1"/var/cache/apt/*.bin "$1"/var/lib/apt/lists/*' \
      "$suite" "$tar.new" "$(mirror)" > "$tar.log" 2>&1 || { tail -20 "$tar.log" >&2; die "the packages could not be unpacked"; }
    mv "$tar.new" "$tar"
  fi
  printf '%s\n' "$tar"
}

# apt-get with its own source list and state; this machine's configuration of apt still applies.
suite_apt() { # SUITE ARG...
  local own=$cache/apt/$1; shift
  apt-get -qq -o Dir::Etc::sourcelist="$own/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::Lists="$own/lists" -o Dir::Cache="$own/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root "$@"
}

unpack() { # SUITE PACKAGE...
  local suite=$1 own=$cache/apt/$1 package out new; shift
  for package; do
    out=$cache/deb/$suite/$package
    if [ ! -e "$out/.complete" ]; then
      if [ ! -e "$own/sources.list" ] || [ -n "$(find "$own/sources.list" -mmin +1440)" ]; then
        mkdir -p "$own/lists/partial" "$own/cache/archives/partial"
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $suite main" > "$own/sources.list"
        suite_apt "$suite" update
      fi
      new=$(mktemp -d "$cache/deb-new.XXXXXX")
      (cd "$new" && suite_apt "$suite" download "$package")
      rm -rf "$out"; mkdir -p "$out"
      dpkg-deb -x "$new"/*.deb "$out"
      (cd "$new" && ls -- *.deb) > "$out/.complete"
      rm -rf "$new"
    fi
    printf '%s\n' "$out"
  done
}

extract() { # SUITE FOLDER PACKAGE...
  local suite=$1 folder=$2; shift 2
  command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: infra/dev/need.sh curl installs it"
  mmdebstrap --quiet --variant=extract --include="$(IFS=,; echo "$*")" \
    --dpkgopt='path-exclude=/usr/share/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    "$suite" "$folder" "$(mirror)" > "$folder.log" 2>&1 || { tail -20 "$folder.log" >&2; die "the packages could not be unpacked"; }
}

# Bookworm has neither; sid's programs are static and run with any libc.
plugins() {
  local folder=${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins plugin
  mkdir -p "$folder"
  for plugin in docker-compose docker-buildx; do
    ln -sfn "$(unpack sid "$plugin")/usr/libexec/docker/cli-plugins/$plugin" "$folder/$plugin"
  done
  docker compose version >&2
  docker buildx version >&2
}

case ${1:-}/$# in
  plugins/1) plugins ;;
  unpack/*)  [ $# -ge 3 ] || die "unpack SUITE PACKAGE..."; shift; unpack "$@" ;;
  extract/*) [ $# -ge 4 ] || die "extract SUITE FOLDER PACKAGE..."; shift; extract "$@" ;;
  rootfs/*)  [ $# -ge 3 ] || die "rootfs SUITE NAME PACKAGE..."; shift; rootfs "$@" ;;
  *)         sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
