#!/bin/sh
# What a learner finds that it should not have: tokens, credentials, rights. One line each. Where the API server is, every
# container is told (KUBERNETES_SERVICE_HOST), whatever its pod says; without a token that is of no use.
for place in /var/run/secrets/kubernetes.io /run/secrets/kubernetes.io /run/updraft /var/run/updraft; do
    [ ! -e "$place" ] || echo "FOUND $place"
done
# Into volumes as well, which are file systems of their own.
find / \( -path /proc -o -path /sys \) -prune -o \( -name token -o -name 'credentials*.json' \) -readable -print 2>/dev/null |
    sed 's/^/FOUND /'
grep -E 'serviceaccount|kube-api-access|credentials' /proc/mounts | sed 's/^/FOUND /'
# That of the sidecar's MLflow endpoint opens the job's own run alone.
env | grep -E '^[^=]*(AWS_|TOKEN|SECRET|PASSWORD|ACCESS_KEY)' | grep -v '^MLFLOW_TRACKING_TOKEN=' | sed 's/^/FOUND /'
find /updraft -name '*sidecar*' | sed 's/^/FOUND /'
[ "$(id -u)" -ne 0 ] || echo "FOUND root"
grep -E '^Cap(Prm|Eff|Bnd):' /proc/self/status | grep -vE '0000000000000000$' | sed 's/^/FOUND /'
grep -q '^NoNewPrivs:[[:space:]]*1' /proc/self/status || echo "FOUND new privileges"
grep -q '^Seccomp:[[:space:]]*2' /proc/self/status || echo "FOUND no seccomp filter"
[ "$(df -Pm /dev/shm | tail -1 | tr -s ' ' | cut -d ' ' -f 2)" -gt 64 ] || echo "FOUND a small /dev/shm"
echo "looked as $(id -u)"
