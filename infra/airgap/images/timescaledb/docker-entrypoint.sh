#!/bin/bash
# Creates the database on the first start (POSTGRES_DB, POSTGRES_PASSWORD_FILE,
# /docker-entrypoint-initdb.d/*.sh), then runs the server with the given arguments as user postgres.
set -euo pipefail

if [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA" /var/run/postgresql
  chown -R postgres:postgres "$PGDATA" /var/run/postgresql
  chmod 700 "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb -D "$PGDATA" -U postgres --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8
  printf '%s\n' "listen_addresses = '*'" "unix_socket_directories = '/var/run/postgresql'" \
    "shared_preload_libraries = 'timescaledb'" 'timescaledb.telemetry_level = off' >> "$PGDATA/postgresql.conf"
  # Through a server that listens only on its socket, so that a health check fails until all is
  # done.
  "$@" -c listen_addresses='' & server=$!
  until pg_isready -q -h /var/run/postgresql; do kill -0 $server; sleep 0.1; done
  export PGHOST=/var/run/postgresql POSTGRES_USER=postgres
  [ "$POSTGRES_DB" = postgres ] || createdb -U postgres "$POSTGRES_DB"
  psql -qU postgres -d "$POSTGRES_DB" -c 'CREATE EXTENSION IF NOT EXISTS timescaledb' 2> /dev/null
  for script in /docker-entrypoint-initdb.d/*.sh; do
    # shellcheck disable=SC1090
    [ ! -e "$script" ] || . "$script"
  done
  unset PGHOST
  kill -INT $server
  wait $server
fi
exec "$@"
