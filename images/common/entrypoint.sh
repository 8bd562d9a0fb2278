#!/bin/sh
# Before a service starts: what it reads only from files that nobody else may read, or only from its environment.
#
#   UPDRAFT_PRIVATE_FILES="a b"       copies /run/secrets/a and b into /run/updraft (a tmpfs), mode 0600
#   UPDRAFT_FROM_FILES="NAME=file"    sets NAME to the content of /run/secrets/file, for this process alone
#   UPDRAFT_HEALTH_FAILURES=n         notes which process health.py kills when the service fails so often in a row
set -eu
umask 077
for file in ${UPDRAFT_PRIVATE_FILES:-}; do
    cat "/run/secrets/$file" >"/run/updraft/$file"
done
for pair in ${UPDRAFT_FROM_FILES:-}; do
    value=$(cat "/run/secrets/${pair#*=}")
    export "${pair%%=*}=$value"
done
unset value
if [ -n "${UPDRAFT_HEALTH_FAILURES:-}" ]; then
    rm -f /tmp/updraft-health-failures
    echo $$ >/tmp/updraft-main-process
fi
umask 022
exec "$@"
