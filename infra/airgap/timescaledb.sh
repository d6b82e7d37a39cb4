#!/usr/bin/env bash
# timescaledb.sh - a real PostgreSQL 17 with TimescaleDB without a container registry.
#
#   timescaledb.sh build                 Debian trixie's packages in a root file system below
#                                        $BRAID_CACHE, once
#   timescaledb.sh run PORT DIR          server in the foreground on 127.0.0.1:PORT, data in DIR;
#                                        ends with its parent
#   timescaledb.sh start PORT DIR        the same in the background; returns once it answers
#   timescaledb.sh stop DIR              a regular end of the server of `start` or `run`
#   timescaledb.sh psql PORT [ARG...]    psql of the same version; password from PGPASSWORD
#   timescaledb.sh tool DIR PROGRAM...   psql, pg_dump, pg_restore of the same version, beside the
#                                        running server as its superuser
#
# The superuser is `postgres`; over TCP it needs the password $BRAID_TIMESCALE_PASSWORD (default
# `braid`). BRAID_TIMESCALE_DURABLE=1: every commit is synced to disk. Without it a crash of the
# machine may lose data; a killed server process does not. DIR/server.conf, if it exists, is
# appended to the configuration. BRAID_TIMESCALE_SMALL_DISK=BYTES: a file system of that size at
# /small, for a tablespace that a test fills.
#
# The packages need trixie's libc, so they run in their own file system under bubblewrap; network
# and process ids are the host's. Files in DIR belong to the caller, who is the user postgres
# inside: any user may run it, including root. Debian builds the Apache-2 edition: hypertables and
# chunk functions, no compression, continuous aggregates or policies.
set -euo pipefail

cache=${BRAID_CACHE:-$HOME/.cache/braid}
root=$cache/timescaledb-trixie
bin=/usr/lib/postgresql/17/bin
password=${BRAID_TIMESCALE_PASSWORD:-braid}

say() { printf 'timescaledb: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The mirror of this machine's own apt.
mirror() {
  sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -1 | grep . ||
    awk '$1 == "deb" && $2 !~ /^\[/ { print $2; exit }' /etc/apt/sources.list 2>/dev/null | grep . ||
    die "no Debian mirror is configured in /etc/apt"
}

build() {
  [ ! -e "$root/.complete" ] || return 0
  mkdir -p "$cache"
  exec 8> "$root.lock"; flock 8
  [ ! -e "$root/.complete" ] || return 0
  for tool in mmdebstrap bwrap; do
    command -v "$tool" >/dev/null || die "$tool is missing: infra/dev/need.sh timescaledb installs it"
  done
  say "root file system into $root (about a minute, once)"
  rm -rf "$root"
  # The JIT's LLVM is most of the size; PostgreSQL works without it. The server's own manual pages
  # stay, because its installation registers them.
  mmdebstrap --quiet --variant=minbase --include=postgresql-17,postgresql-17-timescaledb \
    --essential-hook='mkdir -p "$1/etc/postgresql-common"' \
    --essential-hook='echo create_main_cluster=false > "$1/etc/postgresql-common/createcluster.conf"' \
    --dpkgopt='path-exclude=/usr/lib/*/libLLVM*' --dpkgopt='path-exclude=/usr/lib/llvm-*' \
    --dpkgopt='path-exclude=/usr/lib/postgresql/17/lib/bitcode/*' \
    --dpkgopt='path-exclude=/usr/lib/postgresql/17/lib/llvmjit*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook='rm -rf "$1"/var/cache/apt/*.bin "$1"/var/lib/apt/lists/*' \
    trixie "$root" "$(mirror)" > "$root.log" 2>&1 || { tail -20 "$root.log" >&2; die "the packages could not be unpacked"; }
  mkdir -p "$root/data" "$root/small"
  touch "$root/.complete"
}

# inside DIR COMMAND...: replaces this process.
inside() {
  local dir=$1 user; shift
  user=$(awk -F: '$1 == "postgres" { print "--uid " $3 " --gid " $4 }' "$root/etc/passwd")
  [ -z "${BRAID_TIMESCALE_SMALL_DISK:-}" ] || user="$user --size $BRAID_TIMESCALE_SMALL_DISK --tmpfs /small"
  # shellcheck disable=SC2086
  exec bwrap --die-with-parent --unshare-user --ro-bind "$root" / $user --bind "$dir" /data --dev /dev --proc /proc \
    --tmpfs /tmp --tmpfs /run --setenv PATH "$bin:/usr/bin:/bin" --setenv HOME /tmp --setenv LC_ALL C.UTF-8 -- "$@"
}

init() { # DIR
  [ ! -e "$1/pg/PG_VERSION" ] || return 0
  printf '%s\n' "$password" > "$1/password"
  (inside "$1" initdb -D /data/pg -U postgres --auth-local=trust --auth-host=scram-sha-256 --pwfile=/data/password \
    --locale=C.UTF-8 --encoding=UTF8 --no-sync --no-instructions) > "$1/initdb.log" 2>&1 ||
    { cat "$1/initdb.log" >&2; die "initdb failed"; }
  rm "$1/password"
  {
    echo "shared_preload_libraries = 'timescaledb'"
    echo "timescaledb.telemetry_level = off"
    echo "listen_addresses = '127.0.0.1'"
    echo "unix_socket_directories = '/data'"
    echo "max_connections = 300"
    echo "shared_buffers = 256MB"
    echo "max_wal_size = 2GB"
    [ "${BRAID_TIMESCALE_DURABLE:-0}" = 1 ] || printf '%s\n' 'fsync = off' 'full_page_writes = off'
    cat "$1/server.conf" 2>/dev/null || true
  } >> "$1/pg/postgresql.conf"
}

run() { # PORT DIR
  build 8>&-
  mkdir -p "$2"
  local dir; dir=$(cd "$2" && pwd)
  init "$dir"
  inside "$dir" postgres -D /data/pg -p "$1"
}

ready() { (inside "$1" pg_isready -q -h 127.0.0.1 -p "$2"); }

start() { # PORT DIR
  build
  mkdir -p "$2"
  local dir tries; dir=$(cd "$2" && pwd)
  init "$dir"
  setsid "$0" keep "$1" "$dir" > "$dir/server.log" 2>&1 < /dev/null &
  for ((tries = 0; tries < 300; tries++)); do
    ready "$dir" "$1" && { say "ready: postgres://postgres@127.0.0.1:$1/postgres"; return; }
    read -rt 0.2 <> <(:) || true
  done
  tail -20 "$dir/server.log" >&2
  die "the server did not come up"
}

stop() { # DIR
  local pid; pid=$(head -1 "$1/pg/postmaster.pid" 2>/dev/null) || return 0
  kill -INT "$pid" 2>/dev/null || return 0
  tail --pid="$pid" -f /dev/null
}

case ${1:-} in
  build) build ;;
  run)   [ $# = 3 ] || die "run PORT DIR"; run "$2" "$3" ;;
  keep)  "$0" run "$2" "$3" ;;
  start) [ $# = 3 ] || die "start PORT DIR"; start "$2" "$3" ;;
  stop)  [ $# = 2 ] || die "stop DIR"; stop "$2" ;;
  psql)  [ $# -ge 2 ] || die "psql PORT [ARG...]"; build; port=$2; shift 2
         inside "$PWD" env PGPASSWORD="${PGPASSWORD:-$password}" psql -h 127.0.0.1 -p "$port" -U postgres "$@" ;;
  tool)  [ $# -ge 3 ] || die "tool DIR PROGRAM [ARG...]"
         dir=$(cd "$2" && pwd); port=$(sed -n 4p "$dir/pg/postmaster.pid" 2>/dev/null) || die "no server runs in $2"; shift 2
         inside "$dir" env PGHOST=/data PGPORT="$port" PGUSER=postgres "$@" ;;
  *)     sed -n '2,23s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
