"""The reference page of failures, made from the catalogue and the policy's constants."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from updraft.recovery import policy, progress
from updraft.recovery.catalogue import CATALOGUE, FailureRule, Where
from updraft.recovery.ffdl_codes import MEANINGS, ffdl_code

_SECTIONS = {
    Where.POD: "The pod and its node",
    Where.CONDITION: "The cluster removes the pod",
    Where.WAITING: "The pod cannot start",
    Where.STAGE: "Staging",
    Where.CONTAINER: "The program's container",
    Where.EXIT: "The program's exit code",
    Where.LOG: "The program's last lines",
    Where.GANG: "The learners together",
    Where.CONTROLLER: "What the platform or a person decides",
}
_SOURCES = """\
- Reasons of pods that a node refuses, evicts or stops: Kubernetes, `pkg/kubelet/lifecycle/predicate.go`,
  `pkg/kubelet/eviction`, `pkg/kubelet/preemption`, `pkg/kubelet/nodeshutdown`.
- [Disruptions](https://kubernetes.io/docs/concepts/workloads/pods/disruptions/): the reasons of `DisruptionTarget`.
- A back-off that says why the pull failed: [kubernetes#127918](https://github.com/kubernetes/kubernetes/pull/127918).
- GPU faults: NVIDIA's [Xid catalogue](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) and the
  [Xids for which it drains a node](https://docs.nvidia.com/health-validation/reference/checks/xid.md).
- NCCL's watchdog: [pytorch#97191](https://github.com/pytorch/pytorch/issues/97191); TCPStore after its server's end:
  [pytorch#153586](https://github.com/pytorch/pytorch/pull/153586)."""


def page() -> str:
    """Return docs/reference/failures.md."""
    defaults = policy.Budgets()
    tables = "\n\n".join(_table(where) for where in _SECTIONS)
    tested = sum(row.proven == "test" for row in CATALOGUE)
    infra = _waits([policy.INFRA_BACKOFF.seconds(number) for number in range(8)])
    app = _waits([policy.APP_BACKOFF.seconds(number) for number in range(1, 8)])
    return f"""\
<!-- Made by `make reference`; change the catalogue, not this page. -->
# Failures

When a learner is lost, the platform looks at the evidence (exit codes of all learners, reasons and conditions of their
pods, the last lines of their logs, what reached the store), finds the row of this catalogue that explains it, and does
what the row says as long as the budget lasts. The row's label, the reason and what follows are shown wherever the job
is shown. Nothing is guessed from a colour: the evidence is read again after every end.

## Classes and budgets

| class | what it means | what it costs | what is done |
|---|---|---|---|
| `infrastructure` | not the program's fault | one of `budget.infra_attempts` (default {defaults.infra_attempts}), \
which comes back after a day | \
launched again from the last verified checkpoint |
| `program` | the program failed | one of `budget.app_attempts` (default {defaults.app_attempts}) | launched again, \
if the budget allows any |
| `configuration` | it cannot work as it was asked for | | never tried again |
| `data` | its data is missing or wrong | | never tried again |
| `preempted` | it left, or had to leave, for another | nothing | launched again |
| `halted` | a person stopped it | nothing | waits to be resumed |
| `cancelled`, `deadline` | a person, or `budget.max_runtime`, ended it | | the end |

A budget of n means that n launches may be lost to that class and launched again; the loss after those ends the job. The
two budgets are counted apart, per role (training, evaluation, export). Airflow's own retries are not spent: they are
for losses of Airflow's workers, and none of them launches learners again.

The learners wait in the state RECOVERING before they are launched again:

- infrastructure: {infra}
- program: {app}
- preempted: as for infrastructure, counted apart

Where a ResourceQuota has no room they wait in the state QUEUED, and other jobs have what they were granted.

An action says how: `relaunch` anywhere; `relaunch_elsewhere` away from the node where it happened, as far as there is
another; `older_checkpoint` from the checkpoint before the one that is no good; `stop` not at all, because doing the
same again gives the same.

## Which learner counts

When one learner of several fails, the others fail too: they lose their connections, run into timeouts or are stopped.
What explains most comes first: what happened to a pod or its node, then a pod that is gone, then a program's own
failure, then a preemption, then lost connections (the rows `network.*`), then SIGTERM. Among equals the end
that was seen first counts, and of ends that were found at once that of the first learner. All that was found is kept in
the attempt's evidence.

Of a Python traceback only the exceptions are looked at, not the lines before it: a warning about a connection that the
program got over explains nothing. Faults of a GPU's hardware are looked for in all lines.

## Rows of your own

A job knows errors that the platform does not. In the manifest:

```yaml
budget: {{infra_attempts: 5, app_attempts: 2}}
failures:
- {{exit_code: 42, cause: infrastructure, action: relaunch, text: All licenses are in use; they come back.}}
- {{contains: loss is nan, cause: program, action: older_checkpoint, text: It diverged; going back one checkpoint.}}
- {{exit_code: 3, contains: no such split, cause: data, action: stop, text: The data set has no such split.}}
```

They are asked before the rows about programs below, in their order, of a learner whose program ended with an error.
`contains` is plain text in one of the last lines; it is no pattern. If both `exit_code` and `contains` are given, both
must be met. Their label is `failures.1`, `failures.2`, ...

## No progress

{_progress()}

## Exit codes for a program to use

`64` the job asks for something impossible, `65` its data is missing or wrong, `66` the checkpoint cannot be used,
`74` the object store refused, `75` saved and left on request. Every other code but 0 is the program's own failure.

## FfDL's codes

Each row also has the code that FfDL gave to such a failure: S for the platform's fault, C for the user's.
`updraft attempts`, the job's page and the REST API show it.

{_codes()}

## The catalogue

{len(CATALOGUE)} rows. *Proven* says whether a test makes it happen for real ({tested} rows), or whether it is known
from a recording: source code, documentation or reports.

{tables}

## Sources

{_SOURCES}
"""


def _codes() -> str:
    return "\n".join(["| code | meaning |", "|---|---|", *(f"| {code} | {text} |" for code, text in MEANINGS.items())])


def _progress() -> str:
    text = f"""\
A learner that reports steps is stalled when no new one comes for `budget.no_progress`; without that, for
{progress.STALL_FACTOR:g} times its usual step, but at least {progress.STALL_LEAST_SECONDS:g} s, and longer than any
pause that it came out of by itself. One that reports none is judged only if `budget.no_progress` is given, by its log.
The stacks of all its threads are written to its log; then `budget.on_no_progress` decides: `warn` (default), `restart`
(a loss to infrastructure, `progress.stalled`) or `stop`. A loss that is not a number, a loss more than
{progress.LOSS_FACTOR:g} times its best for {progress.LOSS_OBSERVATIONS} steps, and a learner far behind the others are
warnings only."""
    return textwrap.fill(text, 118, break_on_hyphens=False)


def _waits(seconds: list[float]) -> str:
    shown = ", ".join("at once" if wait == 0 else f"{wait:g} s" for wait in seconds)
    return f"{shown}, and so on."


def _table(where: Where) -> str:
    rows = [f"| {' | '.join(_cells(row))} |" for row in CATALOGUE if row.where is where]
    head = "| label | class | FfDL | action | what it is | evidence | proven |\n|---|---|---|---|---|---|---|"
    return "\n".join([f"### {_SECTIONS[where]}\n", head, *rows])


def _cells(row: FailureRule) -> Iterator[str]:
    yield f"`{row.label}`"
    yield row.cause.value
    yield ffdl_code(row.label, row.cause) or ""
    yield row.action.value
    yield row.text
    yield _evidence(row)
    yield f"test `{row.source.rpartition('::')[2]}`" if row.proven == "test" else f"recording: {row.source}"


def _evidence(row: FailureRule) -> str:
    parts = []
    if row.codes:
        parts.append(f"code {', '.join(map(str, row.codes))}")
    if row.reasons:
        parts.append(", ".join("any reason" if reason == "*" else f"`{reason}`" for reason in row.reasons))
    if row.says:
        parts.append("says " + ", ".join(f"`{text.strip()}`" for text in row.says))
    if row.pattern:
        parts.append(f"says `{row.pattern}`".replace("|", "\\|"))
    if row.unless:
        parts.append("says no more")
    if row.gpus is not None:
        parts.append("the job has GPUs" if row.gpus else "the job has no GPU")
    return "; ".join(parts) or ("none of the above" if row.where is not Where.CONTROLLER else "")
