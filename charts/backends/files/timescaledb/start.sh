#!/bin/bash
# The entry point of the service `timescaledb`. It gives key and passwords, which belong to root, to
# the user postgres. Then it starts the image's own entry point with TLS required.
#
#   start.sh          the server
#   start.sh health   succeeds when it accepts a row over TLS, like that of a service
set -euo pipefail

if [ "${1:-}" = health ]; then
  PGPASSWORD=$(cat /run/postgres/store) PGCONNECT_TIMEOUT=3 psql -qAt -v ON_ERROR_STOP=1 \
    "host=timescaledb dbname=braid user=braid sslmode=verify-full sslrootcert=/run/braid/ca.pem" > /dev/null <<'SQL'
SELECT extversion FROM pg_extension WHERE extname = 'timescaledb';
CREATE TEMPORARY TABLE health (beat int);
INSERT INTO health VALUES (1);
SQL
  exit
fi

chown postgres /run/postgres
chmod 700 /run/postgres
for file in /run/braid/*; do
  cp "$file" "/run/postgres/${file##*/}"
  chown postgres "/run/postgres/${file##*/}"
  chmod 600 "/run/postgres/${file##*/}"
done

exec docker-entrypoint.sh postgres \
  -c ssl=on -c ssl_cert_file=/run/postgres/timescaledb.pem -c ssl_key_file=/run/postgres/timescaledb.key -c ssl_min_protocol_version=TLSv1.3 \
  -c hba_file=/etc/braid/pg_hba.conf -c password_encryption=scram-sha-256 \
  -c max_connections=100 -c shared_buffers=256MB -c max_wal_size=2GB -c timescaledb.telemetry_level=off
