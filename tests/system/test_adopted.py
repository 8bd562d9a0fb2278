"""A program that knows nothing of the platform is killed, and goes on from the folder that it wrote by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from system_helpers import Stack, pretty, shell_job

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]

# Its second attempt needs the newest folder, whole, under its name; the first is killed once that is stored.
PROGRAM = """\
if [ -n "$UPDRAFT_RESUME_FROM" ]; then
  [ "$UPDRAFT_RESUME_FROM" = "$PWD/output/checkpoint-20" ] || exit 8
  [ "$(ls output)" = checkpoint-20 ] || exit 9
  cp -r "$UPDRAFT_RESUME_FROM" "$RESULT_DIR/"
  exit 0
fi
for step in 10 20; do
  mkdir -p output/checkpoint-$step/parts
  echo "state of $step" >output/checkpoint-$step/parts/state
  echo "$step" >output/checkpoint-$step/step
done
seconds=0
until grep -q step-0000000020 "$JOB_STATE_DIR/stored-checkpoints.json" || [ $seconds -ge 120 ]; do
  sleep 1
  seconds=$((seconds + 1))
done
kill -KILL $$
"""


def test_a_killed_program_finds_its_own_folder_again(stack: Stack, tmp_path: Path) -> None:
    budget = {"infra_attempts": 2, "app_attempts": 2}
    checkpoints = {"from": "output/checkpoint-*"}
    job_id = stack.submit(shell_job("adopted", PROGRAM, checkpoints=checkpoints, budget=budget))
    detail = stack.end(job_id)
    assert detail.state == "COMPLETED", pretty(detail)
    stored = {c.step for c in stack.client.checkpoints(job_id).checkpoints}
    assert stored == {10, 20}
    files = {f.name: f for f in stack.client.download(job_id, "results", tmp_path)}
    assert files["state"].read_text() == "state of 20\n"
