#!/bin/sh
# Serves /data; a folder in it is a bucket. The key pair is in RCLONE_AUTH_KEY ("access,secret"), set by entrypoint.sh.
set -eu
if [ -z "${RCLONE_AUTH_KEY:-}" ]; then
    echo 'error: no key pair; set UPDRAFT_FROM_FILES="RCLONE_AUTH_KEY=<file in /run/secrets>"' >&2
    exit 64
fi
for bucket in ${UPDRAFT_BUCKETS:-updraft mlflow datasets}; do
    mkdir -p "/data/$bucket"
done
# What is put into /seed is in the store from the first start on.
if [ -d /seed ] && [ ! -e /data/.seeded ]; then
    cp -R --no-preserve=mode /seed/. /data/
    touch /data/.seeded
fi
# Written as it comes and without times: nothing of the platform rests on an object's metadata.
exec rclone serve s3 /data --addr :9000 --vfs-cache-mode off --no-modtime --log-level NOTICE --config /tmp/rclone.conf
