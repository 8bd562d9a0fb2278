#!/bin/sh
# Count how often each digit occurs, one digit per step. Shows all that a program in any language needs:
# environment variables and files. Runs on the platform as it is (updraft submit jobs/shell-hello --follow), or here:
#
#     DATA=../data/digits/digits.csv sh count.sh
set -eu

out=./updraft-out
data=${DATA:-${DATA_DIR:-.}/training/digits.csv}
results=${RESULT_DIR:-$out/result}
checkpoints=${CHECKPOINT_DIR:-$out/checkpoints}
metrics=${UPDRAFT_METRICS_FILE:-$out/metrics.jsonl}
stop_file=${UPDRAFT_STOP_FILE:-$out/stop}
mkdir -p "$results" "$checkpoints" "$(dirname "$metrics")"

# Parameters are JSON in a file; a flat number needs no more than sed.
pause=1
if [ -f "${UPDRAFT_PARAMS_FILE:-}" ]; then
    found=$(sed -n 's/.*"pause_seconds": *\([0-9.]*\).*/\1/p' "$UPDRAFT_PARAMS_FILE")
    pause=${found:-$pause}
fi

# SIGTERM, like the stop file, asks to save and leave; the step that runs is finished first.
stopping=
trap 'stopping=yes' TERM

# A point is one JSON line, appended in one write. `t` is the time in seconds.
report() { printf '%s\n' "$1" >>"$metrics"; }

# A checkpoint is written aside, renamed, and complete once the marker exists.
save() {
    name=$(printf 'step-%010d' "$1")
    rm -rf "$checkpoints/.tmp-$name"
    mkdir "$checkpoints/.tmp-$name"
    cp "$results/counts.txt" "$checkpoints/.tmp-$name/counts.txt"
    rm -rf "${checkpoints:?}/$name"
    mv "$checkpoints/.tmp-$name" "$checkpoints/$name"
    touch "$checkpoints/$name/COMPLETE"
}

# Resume from the newest complete checkpoint: one line per digit that is counted.
: >"$results/counts.txt"
for folder in "$checkpoints"/step-*; do
    [ -f "$folder/COMPLETE" ] && cp "$folder/counts.txt" "$results/counts.txt"
done
digit=$(($(wc -l <"$results/counts.txt")))
[ "$digit" -eq 0 ] || echo "resumed at digit $digit"

while [ "$digit" -le 9 ]; do
    count=$(awk -F, -v digit="$digit" 'NR > 1 && $2 == digit' "$data" | wc -l | tr -d ' ')
    echo "$digit $count" >>"$results/counts.txt"
    digit=$((digit + 1))
    now=$(date +%s)
    report "{\"t\": $now, \"step\": $digit, \"metrics\": {\"samples\": $count}}"
    report "{\"t\": $now, \"progress\": {\"step\": $digit, \"total\": 10}}"
    echo "digit $((digit - 1)): $count samples"
    save "$digit"
    if [ "$digit" -le 9 ] && { [ -n "$stopping" ] || [ -e "$stop_file" ]; }; then
        echo "asked to stop: saved after digit $((digit - 1))"
        exit 75
    fi
    sleep "$pause"
done
echo "counted $(awk '{ total += $2 } END { print total }' "$results/counts.txt") samples"
