"""Define the idempotency records: one kind for each effect that happens once per job, with its key and frozen type.

A task, trigger or reaper that may run twice looks for the record first, and writes it after the effect. The first
record stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from updraft.lifecycle.idempotency import IdempotencyKey
from updraft.recovery.failure_class import FailureClass


@dataclass(frozen=True)
class Failure:
    """The first task that failed, and its reason; the job's verdict is based on it."""

    task: str
    cause: FailureClass
    reason: str


@dataclass(frozen=True)
class RegisteredModel:
    """The job's version in the model registry."""

    name: str
    version: str
    model_id: str | None
    formats: tuple[str, ...] = ()


@dataclass(frozen=True)
class PromotionDecision:
    """Whether the job's version becomes the champion; recorded before the alias is moved.

    `over` is the champion's version at that time; None if there was no champion.
    """

    promote: bool
    reason: str
    over: str | None = None


@dataclass(frozen=True)
class Answer:
    """A person's answer to the question whether the job's version becomes the champion; `by`: None if nobody answered
    in time."""

    approved: bool
    reason: str
    by: str | None = None


@dataclass(frozen=True)
class Promotion:
    """The result of a `PromotionDecision`."""

    promoted: bool
    reason: str
    alias: str


@dataclass(frozen=True)
class ReplayRecord:
    """A learner's metrics that the platform sent to MLflow afterwards. `left`: what could not be sent."""

    points: int
    artifacts: int
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deployment:
    """The pods of an attempt, and the time when the cluster had accepted all of them."""

    pods: tuple[str, ...]
    at: datetime


FAILURE = IdempotencyKey("failure", Failure)
NOT_NEEDED = IdempotencyKey("not needed", str)  # why the job ends without a training
MODEL_VERSION = IdempotencyKey("model_version", RegisteredModel)
GATE = IdempotencyKey("promotion gate", PromotionDecision)  # before a person is asked for approval
DECISION = IdempotencyKey("promotion decided", PromotionDecision)
ANSWER = IdempotencyKey("promotion answered", Answer)
PROMOTION = IdempotencyKey("promotion", Promotion)


def replayed(role: str, attempt: int, learner: int) -> IdempotencyKey[ReplayRecord]:
    """Return the key of what one learner of an attempt had not sent."""
    return IdempotencyKey(f"replayed {role} {attempt} {learner}", ReplayRecord)


def deployment(role: str, attempt: int) -> IdempotencyKey[Deployment]:
    """Return the key of an attempt's deployment."""
    return IdempotencyKey(f"deployed {role} {attempt}", Deployment)


def addition(role: str, attempt: int, learner: int) -> IdempotencyKey[datetime]:
    """Return the key of when the pod of a learner that joined an attempt was created."""
    return IdempotencyKey(f"added {role} {attempt} {learner}", datetime)


def straggler_replaced(role: str, attempt: int, learner: int) -> IdempotencyKey[datetime]:
    """Return the key of when a learner of an attempt was replaced because it kept the others waiting."""
    return IdempotencyKey(f"straggler {role} {attempt} {learner}", datetime)


def pod_template(role: str, revision: int) -> IdempotencyKey[dict[str, Any]]:
    """Return the key of the pod, as the API writes it, that each attempt of a role and a revision is made from."""
    return IdempotencyKey(f"template {role} {revision}", dict[str, Any])
