#!/bin/sh
# Counts to 20 with a checkpoint per step, and leaves at once, without saving, when it is told to stop.
set -eu
trap 'exit 143' TERM
step=0
for folder in "$CHECKPOINT_DIR"/step-*; do
    [ -f "$folder/COMPLETE" ] && step=$(cat "$folder/step")
done
echo "begins after step $step"
while [ "$step" -lt 20 ]; do
    step=$((step + 1))
    name=$(printf 'step-%010d' "$step")
    mkdir "$CHECKPOINT_DIR/.tmp-$name"
    echo "$step" >"$CHECKPOINT_DIR/.tmp-$name/step"
    mv "$CHECKPOINT_DIR/.tmp-$name" "$CHECKPOINT_DIR/$name"
    touch "$CHECKPOINT_DIR/$name/COMPLETE"
    echo "step $step"
    sleep 1 &
    wait $! # a signal ends a wait at once, and a sleep not
done
echo "$step" >"$RESULT_DIR/steps.txt"
