#!/bin/sh
# Counts to 20, or to its argument, with a checkpoint and a point per step. Leaves at once, without saving, when told to.
set -eu
trap 'exit 143' TERM
step=0
for folder in "$CHECKPOINT_DIR"/step-*; do
    [ -f "$folder/COMPLETE" ] && step=$(cat "$folder/step")
done
echo "begins after step $step"
while [ "$step" -lt "${1:-20}" ]; do
    step=$((step + 1))
    name=$(printf 'step-%010d' "$step")
    mkdir "$CHECKPOINT_DIR/.tmp-$name"
    echo "$step" >"$CHECKPOINT_DIR/.tmp-$name/step"
    mv "$CHECKPOINT_DIR/.tmp-$name" "$CHECKPOINT_DIR/$name"
    touch "$CHECKPOINT_DIR/$name/COMPLETE"
    point="{\"step\": $step, \"metrics\": {\"step\": $step, \"attempt\": $UPDRAFT_ATTEMPT}}"
    printf '%s\n' "$point" >>"$UPDRAFT_METRICS_FILE"
    echo "step $step"
    sleep 1 &
    wait $! # a signal ends a wait at once, and a sleep not
done
echo "$step" >"$RESULT_DIR/steps.txt"
