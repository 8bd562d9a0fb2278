#!/bin/sh
# Makes the roles and databases of the stack, or brings their passwords up to date; run at each `up`.
#
# The files are those that clients read their passwords from: host:port:database:role:password in each line.
set -eu
umask 077
export PGHOST=postgres PGUSER=postgres PGDATABASE=postgres PGPASSFILE=/tmp/pgpass
printf '*:*:*:postgres:%s\n' "$(cat /run/secrets/postgres_password)" >"$PGPASSFILE"
cat /run/secrets/pgpass_airflow /run/secrets/pgpass_mlflow | while IFS=: read -r _ _ database role password; do
    # Passwords go through a pipe, not through an argument, and are kept out of the server's log.
    psql --quiet --no-psqlrc --tuples-only --set ON_ERROR_STOP=1 <<SQL
SET log_min_error_statement = panic;
SELECT 'CREATE ROLE $role LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '$role') \gexec
ALTER ROLE $role PASSWORD '$password';
SELECT 'CREATE DATABASE $database OWNER $role' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '$database') \gexec
REVOKE CONNECT, TEMPORARY ON DATABASE $database FROM PUBLIC;
SQL
    echo "database $database, role $role: ready"
done
