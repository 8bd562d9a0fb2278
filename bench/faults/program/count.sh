#!/bin/sh
# The hash chain of chain.py as a shell script that also counts the digits of the data, with no Python in it.
# `count.sh judge` computes the chain anew and says whether the training's result is it.
set -eu

param() { sed -n "s/.*\"$1\": *\"\{0,1\}\([0-9.a-z]*\).*/\1/p" "$UPDRAFT_PARAMS_FILE"; }
hash() { printf '%s' "$1" | sha256sum | cut -c1-64; }
now() { date +%s.%N; }
report() { printf '{"t": %s, %s}\n' "$(now)" "$1" >>"$UPDRAFT_METRICS_FILE" || echo "metrics were not written"; }

if [ "${1:-}" = judge ]; then
    digest=$(hash "$TRAINING_ID")
    steps=$(sed -n 's/.*"steps": *\([0-9]*\).*/\1/p' "$RESULT_DIR/result.json")
    claimed=$(sed -n 's/.*"digest": *"\([0-9a-f]*\)".*/\1/p' "$RESULT_DIR/result.json")
    step=0
    while [ "$step" -lt "$steps" ]; do
        step=$((step + 1))
        digest=$(hash "$digest:$step")
    done
    right=false
    [ "$digest" != "$claimed" ] || right=true
    [ $right = true ] && report "\"step\": $steps, \"metrics\": {\"chain_is_right\": 1}"
    sleep 2
    printf '{"right": %s}' "$right" >"$RESULT_DIR/judgement.json"
    echo "the chain is right: $right"
    [ $right = true ] || exit 4
    exit 0
fi

attempt=$UPDRAFT_ATTEMPT
data=$DATA_DIR/training/digits.csv
mkdir -p "$LAB_WITNESS/$TRAINING_ID"
notes=$LAB_WITNESS/$TRAINING_ID/train-$((RANK + 1))-$attempt-$$.jsonl
tell() { printf '{"t": %s, %s}\n' "$(now)" "$1" >>"$notes"; }
tell '"event": "start"'
stopping=
trap 'stopping=yes' TERM

steps=$(param steps) pause=$(param step_seconds) fails=$(param fails) fail_at=$(param fail_at)
step=0 digest=$(hash "$TRAINING_ID") past=
if [ -f "$CHECKPOINT_DIR/latest/state" ]; then
    read -r step digest past <"$CHECKPOINT_DIR/latest/state" || true
fi
from=$step
tell "\"event\": \"restored\", \"step\": $step"
echo "attempt $attempt, learner 1 of 1: goes on after step $step of $steps"

lineage() { printf '%s[%s,%s,%s]' "${past:+$past,}" "$attempt" "$from" "$step"; }
save() {
    name=$(printf 'step-%010d' "$step")
    [ ! -e "$CHECKPOINT_DIR/$name/COMPLETE" ] || return 0
    aside=$CHECKPOINT_DIR/.tmp-$name
    rm -rf "$aside" "${CHECKPOINT_DIR:?}/$name"
    if ! { mkdir "$aside" && echo "$step $digest $(lineage)" >"$aside/state" &&
        head -c 200000 "$data" >"$aside/weights.bin" && mv "$aside" "$CHECKPOINT_DIR/$name" &&
        touch "$CHECKPOINT_DIR/$name/COMPLETE" && ln -sfn "$name" "$CHECKPOINT_DIR/latest"; }; then
        rm -rf "$aside"
        echo "checkpoint of step $step was not written"
        return 0
    fi
    tell "\"event\": \"saved\", \"step\": $step"
}

saved=$step saved_at=$(date +%s)
while [ "$step" -lt "$steps" ]; do
    leave=$stopping
    [ ! -e "$UPDRAFT_STOP_FILE" ] || leave=yes
    if [ "$step" -gt "$saved" ] && { [ -n "$leave" ] || [ $(($(date +%s) - saved_at)) -ge 2 ]; }; then
        save
        saved=$step saved_at=$(date +%s)
    fi
    if [ -n "$leave" ]; then
        tell "\"event\": \"exit\", \"code\": 75, \"step\": $step"
        exit 75
    fi
    sleep "$pause"
    step=$((step + 1))
    digest=$(hash "$digest:$step")
    tell "\"step\": $step"
    count=$(cut -d, -f2 "$data" | grep -c "^$((step % 10))\$" || true)
    report "\"step\": $step, \"metrics\": {\"chain\": $step, \"loss\": $count}"
    report "\"progress\": {\"step\": $step, \"total\": $steps}"
    echo "step $step $(printf '%.12s' "$digest")"
    if [ "$step" = "$fail_at" ] && { [ "$fails" = always ] || [ "$attempt" -eq 1 ]; }; then
        tell "\"event\": \"exit\", \"code\": 3, \"step\": $step"
        echo "fails on purpose"
        exit 3
    fi
done
save
printf '{"job": "%s", "steps": %s, "digest": "%s", "lineage": [%s], "attempt": %s}' \
    "$TRAINING_ID" "$step" "$digest" "$(lineage)" "$attempt" >"$RESULT_DIR/.result.tmp"
mv "$RESULT_DIR/.result.tmp" "$RESULT_DIR/result.json"
tell "\"event\": \"exit\", \"code\": 0, \"step\": $step"
echo "done $digest"
