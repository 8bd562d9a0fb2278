#!/bin/sh
# Makes the database cluster at the first start, with the password of POSTGRES_PASSWORD_FILE, then becomes the server.
set -eu
if [ "${1:-}" != postgres ]; then
    exec "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    if [ ! -r "${POSTGRES_PASSWORD_FILE:-}" ]; then
        echo "error: POSTGRES_PASSWORD_FILE must name a readable file with the password of the user postgres" >&2
        exit 64
    fi
    # Aside first: a start that is cut off leaves no half-made cluster.
    rm -rf "$PGDATA.new"
    initdb --pgdata="$PGDATA.new" --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" --encoding=UTF8 \
        --locale=C.UTF-8 --auth-local=scram-sha-256 --auth-host=scram-sha-256 >/dev/null
    echo 'host all all all scram-sha-256' >>"$PGDATA.new/pg_hba.conf"
    mv "$PGDATA.new" "$PGDATA"
fi
exec "$@" -c listen_addresses='*' -c unix_socket_directories=/tmp
