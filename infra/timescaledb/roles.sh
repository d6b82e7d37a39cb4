#!/bin/bash
# Runs once, when the database is created. It makes the owner for the services, and a reader for
# Grafana with access to the views only (views.sql grants them to braid_reader). The image's entry
# point sources it.
psql -v ON_ERROR_STOP=1 -qU postgres -d "$POSTGRES_DB" -v owner="$(cat /run/postgres/store)" -v reader="$(cat /run/postgres/store-reader)" <<'SQL'
CREATE ROLE braid LOGIN PASSWORD :'owner';
CREATE ROLE braid_reader NOLOGIN;
CREATE ROLE braid_grafana LOGIN PASSWORD :'reader' IN ROLE braid_reader CONNECTION LIMIT 20;
ALTER ROLE braid_grafana SET statement_timeout = '30s';
ALTER ROLE braid_grafana SET default_transaction_read_only = on;
ALTER DATABASE braid OWNER TO braid;
ALTER SCHEMA public OWNER TO braid;
SQL
