"""Jobs of all kinds: summaries, pods, events, timeline, and why a job waits."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from .base import Page, Record


class Phase(StrEnum):
    """Phase of a job of any kind."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    ABORTING = "Aborting"
    ABORTED = "Aborted"
    RESTARTING = "Restarting"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


FINAL_PHASES = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.TERMINATED})
"""Phases that a job never leaves."""


class TaskSummary(Record, frozen=True):
    """One task of a job: a task of Volcano, a replica type of a training job, all pods else."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None
    phases: dict[str, int] = {}
    """Number of pods by phase."""


class JobSummary(Record, frozen=True):
    """State of a job; fields that were not requested have their defaults."""

    namespace: str
    name: str
    uid: str = ""
    kind: str = "jobs"
    resource_version: str = ""
    """Its ETag, for ``if_match``."""
    queue: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    priority_class_name: str = ""
    suspend: bool = False
    user: str = ""
    """The user that created it through the REST API; empty if unknown."""
    labels: dict[str, str] = {}
    min_available: int = 0
    replicas: int = 0
    completions: int | None = None
    """Of batch/v1: pods that must succeed."""
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0
    unknown: int = 0
    retry_count: int = 0
    version: int = 0
    tasks: list[TaskSummary] = []
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    running_duration: str | None = None
    deleting: bool = False
    """Whether it is being deleted, and finalizers hold it."""

    @property
    def is_finished(self) -> bool:
        """Whether the phase is final."""
        return self.phase in FINAL_PHASES

    @property
    def succeeded_finally(self) -> bool:
        """Whether the job is completed."""
        return self.phase == Phase.COMPLETED

    def __str__(self) -> str:
        key = f"{self.namespace}/{self.name}"
        return f"{key}: {self.phase}, {self.running} of {self.replicas} pods running"


class JobPage(Page[JobSummary], frozen=True):
    """One page of jobs."""

    items: list[JobSummary] = []


class PodSummary(Record, frozen=True):
    """A pod of a job."""

    name: str
    task: str = ""
    index: int | None = None
    phase: str = ""
    ready: bool = False
    restarts: int = 0
    node: str = ""
    ip: str = ""
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int | None = None


class PodPage(Page[PodSummary], frozen=True):
    """One page of pods."""

    items: list[PodSummary] = []


class EventObject(Record, frozen=True):
    """The object that an event regards."""

    kind: str = ""
    name: str = ""


class Event(Record, frozen=True):
    """An event of a job, of its PodGroup or of one of its pods."""

    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    object: EventObject = EventObject()
    source: str = ""


class EventPage(Page[Event], frozen=True):
    """The events of a job, newest last."""

    items: list[Event] = []


class TimelinePhase(Record, frozen=True):
    """A phase that a job was in."""

    phase: str = ""
    entered_at: datetime | None = None
    left_at: datetime | None = None
    """``None`` for the current phase."""
    reason: str = ""
    message: str = ""


class Timeline(Record, frozen=True):
    """The phases of a job with their times, oldest first."""

    phases: list[TimelinePhase] = []
    pods: dict[str, int] = {}
    """Number of pods by phase, now or at the end."""


class Why(Record, frozen=True):
    """Why a job waits, as far as the scheduler has explained it."""

    waiting: bool = False
    summary: str = ""
    conditions: list[dict[str, Any]] = []
    explanation: dict[str, Any] | None = None


class Manifest(msgspec.Struct, frozen=True):
    """An object of Kubernetes as it is, with what identifies it."""

    api_version: str
    kind: str
