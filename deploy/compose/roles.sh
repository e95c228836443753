#!/bin/sh
# For /docker-entrypoint-initdb.d: once, when the database is made. First Token's own user owns its database and nothing
# else; Grafana's may read the views that are made for it (docs/grafana.md).
set -eu
secrets=${SECRETS:-/run/secrets}
psql -v ON_ERROR_STOP=1 --no-password --username "$POSTGRES_USER" --dbname postgres \
  -v firsttoken="$(cat "$secrets/firsttoken")" -v grafana="$(cat "$secrets/grafana")" <<'SQL'
CREATE ROLE firsttoken_reader NOLOGIN;
CREATE ROLE firsttoken LOGIN PASSWORD :'firsttoken';
CREATE ROLE grafana LOGIN PASSWORD :'grafana' IN ROLE firsttoken_reader CONNECTION LIMIT 20;
ALTER ROLE grafana SET jit = off;
CREATE DATABASE firsttoken OWNER firsttoken;
REVOKE ALL ON DATABASE firsttoken FROM PUBLIC;
GRANT CONNECT ON DATABASE firsttoken TO grafana;
SQL
