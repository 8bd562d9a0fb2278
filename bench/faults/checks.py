"""What must hold for a job after a run: pure, from facts and the rule of its faults. Called by `run`.

lost            accepted, and not ended in the time: a person would be needed
false_verdict   the ledger's end is not what the program's own record proves
disagreement    Airflow or MLflow says something else than the ledger
orphan          something of an ended job is left: processes, pods, secrets, a grant, an open attempt, a live run
doubled         two attempts had effect: on the result, on the curve, or by a checkpoint that no longer counts
damaged         a learner was given a checkpoint that is not what was saved
unregistered    a completed job's model is not in the registry exactly once, or the alias does not point to it
undelivered     a completed job's results cannot be downloaded as they are in the store
torn            lines or points are missing though nothing that held them was destroyed
needless        learners were started again though nothing had happened to them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from faults.facts import AttemptFacts, JobFacts
from faults.jobs import Shape, chain
from faults.kinds.base import Rule

MLFLOW = {"COMPLETED": "FINISHED", "FAILED": "FAILED", "CANCELLED": "KILLED"}
AIRFLOW = {"COMPLETED": "success", "FAILED": "failed", "CANCELLED": "failed"}
LIVE_TASKS = frozenset({"running", "queued", "scheduled", "deferred", "restarting", "up_for_retry"})
# A checkpoint whose marker was on its way when its attempt was closed.
CLOSING_SECONDS = 5.0


@dataclass(frozen=True)
class Violation:
    kind: str
    job: str
    text: str


@dataclass(frozen=True)
class Judge:
    """Collects what is wrong with one job."""

    facts: JobFacts
    shape: Shape
    rule: Rule

    def violations(self) -> list[Violation]:
        if not self.facts.ended:
            return [*self._lost(), *self._doubled(), *self._damaged()]
        return [
            *self._verdict(),
            *self._disagreements(),
            *self._orphans(),
            *self._doubled(),
            *self._damaged(),
            *self._torn(),
            *self._needless(),
            *self._registry(),
            *self._results(),
        ]

    def orphans_only(self) -> list[Violation]:
        """Return what time may still cure after the end of the job."""
        return [*self._disagreements(), *self._orphans(), *self._points_missing()] if self.facts.ended else []

    @property
    def _has_members(self) -> bool:
        """Return whether learners join and leave while the others train."""
        return self.shape.program == "members"

    # ----------------------------------------------------------------------------------------------------------
    def _say(self, kind: str, text: str) -> Violation:
        return Violation(kind, self.facts.id, text)

    def _lost(self) -> list[Violation]:
        state = self.facts.state or "unknown to the ledger"
        return [self._say("lost", f"is {state} ({self.facts.reason or 'no reason'}), its run {self.facts.airflow}")]

    def _verdict(self) -> list[Violation]:
        facts, state = self.facts, str(self.facts.state)
        found = []
        if state not in (right := self.rule.ends(self.shape)):
            found.append(f"ended {state} instead of {' or '.join(sorted(right))}: {facts.reason}")
        if state == "COMPLETED" and (flaw := self._flaw()):
            found.append(f"ended COMPLETED, but {flaw}")
        if self.shape.program != "chain" and (flaw := self._flaw_of_data(state)):
            found.append(flaw)
        reached = not self.shape.bad_data  # else its program never started; `_flaw_of_data` judges it
        own_failure = reached and state == "FAILED" and self.shape.fails == "always" and not self.rule.also
        if own_failure and facts.cause != "program":
            found.append(f"its program failed on purpose, and it is called {facts.cause or 'nothing'}: {facts.reason}")
        return [self._say("false_verdict", text) for text in found]

    def _flaw(self) -> str | None:
        """Return why the result does not prove that each step had effect once; None when it does."""
        result = self.facts.result
        if result is None:
            return "there is no result"
        if result.get("steps") != self.shape.steps:
            return f"its result is of step {result.get('steps')}, not {self.shape.steps}"
        if result.get("digest") != chain(self.facts.id, self.shape.steps):
            return "its result's chain is wrong"
        if self.shape.evaluate and self.facts.judged is not True:
            return f"its evaluation says {self.facts.judged}"
        return None

    def _flaw_of_data(self, state: str) -> str | None:
        """Return what is wrong with the verdict on the data, as the ledger keeps it."""
        verdicts = self.facts.data_verdicts
        if state == "COMPLETED" and True not in verdicts:
            return "ended COMPLETED without a verdict that its data are valid"
        if not self.shape.bad_data:
            return None
        if any(attempt.role == "train" for attempt in self.facts.attempts):
            return "its learners were launched though its data do not meet their suite"
        if state == "FAILED" and not self.rule.also and (self.facts.cause != "data" or False not in verdicts):
            return f"its data are wrong, and it is called {self.facts.cause or 'nothing'}: {self.facts.reason}"
        return None

    def _registry(self) -> list[Violation]:
        """Check that a completed job has one version, promoted, of its own run, and any other job at most one."""
        facts, found = self.facts, []
        if not self.shape.registers:
            return []
        if len(facts.versions) > 1:
            found.append(self._say("doubled", f"the registry has {len(facts.versions)} versions of its model"))
        if facts.state != "COMPLETED":
            return found
        if not facts.versions:
            return [self._say("unregistered", "it COMPLETED, and the registry has no version of its model")]
        version = facts.versions[0]
        if version.status != "READY" or not version.own_run:
            found.append(
                self._say("unregistered", f"version {version.version} is {version.status} of run {version.run_id}")
            )
        if facts.champion is None or facts.champion not in {v.version for v in facts.versions}:
            found.append(self._say("unregistered", f"the alias champion points to {facts.champion or 'nothing'}"))
        return found

    def _results(self) -> list[Violation]:
        if self.facts.state != "COMPLETED" or self.facts.downloaded == self.facts.result:
            return []
        got = "nothing" if self.facts.downloaded is None else "something else than the store has"
        return [self._say("undelivered", f"who downloads its results gets {got}")]

    def _disagreements(self) -> list[Violation]:
        facts, state = self.facts, str(self.facts.state)
        found = []
        if facts.mlflow is not None and facts.mlflow != MLFLOW.get(state):
            found.append(f"the ledger says {state}, MLflow {facts.mlflow}")
        if facts.mlflow_verdict not in (None, state):
            found.append(f"the ledger says {state}, MLflow's tag {facts.mlflow_verdict}")
        gone = facts.airflow is None
        if gone and not self.rule.run_may_be_gone:
            found.append("Airflow has no such run")
        if not gone and not self.rule.airflow_may_differ and facts.airflow != AIRFLOW.get(state):
            found.append(f"the ledger says {state}, Airflow's run is {facts.airflow}")
        return [self._say("disagreement", text) for text in found]

    def _orphans(self) -> list[Violation]:
        facts = self.facts
        found = [f"process {process} lives" for process in facts.processes]
        found += [f"pod {pod} is left" for pod in facts.pods]
        found += [f"object {name} is left" for name in facts.secrets]
        found += ["its grant was not released"] if facts.granted else []
        found += [f"attempt {a.number} of {a.role} is open" for a in facts.attempts if a.ended_at is None]
        found += [f"{facts.open_messages} messages to MLflow are not delivered"] if facts.open_messages else []
        live = sorted(name for name, state in facts.tasks.items() if state in LIVE_TASKS)
        found += [f"Airflow's run is {facts.airflow} with {', '.join(live)}"] if live else []
        return [self._say("orphan", text) for text in found]

    def _doubled(self) -> list[Violation]:
        facts = self.facts
        found = []
        for key, steps in facts.points.items():
            more = sorted(step for step, count in Counter(steps).items() if count > 1)
            # A step that its leader alone had applied is made again by the others.
            if len(more) > (len(facts.sessions) if self._has_members else 0):
                found.append(f"MLflow has {len(more)} steps of {key} more than once, the first is {more[0]}")
        for part, following in pairwise((facts.result or {}).get("lineage") or ()):
            if following[0] <= part[0] or following[1] != part[2]:
                found.append(f"its result mixes attempts: {part} is followed by {following}")
        ends = {a.number: a.ended_at for a in facts.attempts if a.role == "train"}
        newest = max(ends, default=0)
        for item in facts.checkpoints:
            ended = ends.get(item.attempt)
            late = ended is not None and item.stored_at is not None and item.stored_at > ended + CLOSING_SECONDS
            if item.counts and late and item.attempt < newest:
                found.append(f"checkpoint {item.name} counts, though attempt {item.attempt} was over when it came")
        return [self._say("doubled", text) for text in found]

    def _damaged(self) -> list[Violation]:
        return [
            self._say("damaged", f"attempt {session.attempt} was given a damaged checkpoint")
            for session in self.facts.sessions
            if session.damaged
        ]

    def _torn(self) -> list[Violation]:
        return [*self._points_missing(), *self._lines_missing()]

    def _points_missing(self) -> list[Violation]:
        if self.rule.tail_may_be_lost or "chain" not in self.facts.points:
            return []
        counts_until = self._rolled_back()
        made = {
            step
            for session in self.facts.sessions
            if session.learner == 1 or self._has_members
            for _, step in session.steps
            if step <= counts_until.get(session.attempt, step)
        }
        missing = sorted(made - set(self.facts.points["chain"]))
        if not missing:
            return []
        return [self._say("torn", f"MLflow lacks {len(missing)} steps that were made, the first is {missing[0]}")]

    def _rolled_back(self) -> dict[int, int]:
        """Return the last step that counts of each attempt that another one follows: the follower makes later ones
        again, and its launch silences the attempt at once."""
        trains = {a.number: a for a in self.facts.attempts if a.role == "train"}
        steps = {item.name: item.step for item in self.facts.checkpoints}
        followers = {number: trains[number + 1] for number in trains if number + 1 in trains}
        return {number: steps.get(next_one.resumed_from or "", 0) for number, next_one in followers.items()}

    def _lines_missing(self) -> list[Violation]:
        found = []
        for log in self.facts.logs:
            who = f"the log of learner {log.learner} in attempt {log.attempt}"
            printed = [
                step
                for session in self.facts.sessions
                if (session.attempt, session.learner) == (log.attempt, log.learner)
                for _, step in session.steps
            ]
            if log.twice or log.gaps:
                found.append(f"{who} has {log.twice} numbers for two lines and {log.gaps} gaps")
            if list(log.steps) != printed[: len(log.steps)]:
                found.append(f"{who} is not what the program printed")
            # The note is written just before the line: a killed program may have died between the two.
            elif len(printed) - len(log.steps) > 1 and not self.rule.tail_may_be_lost:
                found.append(f"{who} lacks its last {len(printed) - len(log.steps)} steps")
        return [self._say("torn", text) for text in found]

    def _needless(self) -> list[Violation]:
        trains = [a for a in self.facts.attempts if a.role == "train" and not self._found_no_store(a)]
        if self.rule.one_attempt and self._has_members and len(trains) > 1:
            return [self._say("needless", f"all its learners were started again: {trains[0].reason}")]
        forgiven = 2 if self.shape.fails == "once" and self.shape.app_attempts else 1
        if not self.rule.untouched or len(trains) <= forgiven:
            return []
        reasons = "; ".join(str(a.reason) for a in trains[:-1])
        return [self._say("needless", f"its learners were started {len(trains)} times: {reasons}")]

    def _found_no_store(self, attempt: AttemptFacts) -> bool:
        began = any(session.attempt == attempt.number for session in self.facts.sessions)
        return self.rule.store_away and attempt.label == "store.unreachable" and not began


def judge(facts: JobFacts, shape: Shape, rule: Rule) -> list[Violation]:
    return Judge(facts, shape, rule).violations()


def not_calm(facts: Sequence[tuple[JobFacts, Shape, Rule]]) -> list[Violation]:
    """Return what is left of ended jobs and may yet go away by itself."""
    return [item for each in facts for item in Judge(*each).orphans_only()]
