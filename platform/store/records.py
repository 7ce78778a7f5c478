"""What the recorder writes: states of jobs and pods, as the API server has delivered them.

Times are microseconds since the epoch.
"""

from datetime import UTC, datetime, timedelta

import msgspec

from ..model.notifications import Subscription

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000


class PhaseEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A phase that a job entered."""

    phase: str
    entered_at: int
    reason: str = ""
    message: str = ""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job."""

    uid: str
    kind: str
    """The kind's segment in paths of the REST API."""
    namespace: str
    name: str
    queue: str = ""
    user: str = ""
    account: str = ""
    phase: str = ""
    reason: str = ""
    message: str = ""
    spec: str | None = None
    """JSON; ``None`` if it is larger than the recorder stores."""
    spec_bytes: int = 0
    labels: str = "{}"
    """JSON object."""
    tasks: str = "[]"
    """JSON list of tasks with their pods by phase."""
    resource_version: str
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    phases: tuple[PhaseEntry, ...] = ()
    """Phases with times that this state shows; the one with a reason is the current one."""
    deleted: bool = False
    mark: str = ""
    """Value of the annotation that is to be written once this is committed; empty for none."""
    notify: Subscription | None = None
    """Where events of the job are sent to."""


class PodRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a pod of a job."""

    uid: str
    job_uid: str
    kind: str
    """The job's."""
    namespace: str
    job: str
    queue: str = ""
    requests: str = "{}"
    """JSON object of numbers by resource."""
    started_at: int | None = None
    finished: bool = False
    ended_at: int | None = None
    """When the last container of a finished pod ended, if the pod's status has it."""
    exit_code: int | None = None
    """Of a finished pod, if its status has it."""
    latest_end: int | None = None
    """Time at which the kubelet kills what is left of a pod that is being deleted."""
    deleted: bool = False


Record = JobRecord | PodRecord


def version_number(version: str) -> int:
    """Return a resourceVersion as a number: a later version of one server is greater.

    Jobs and pods share the storage of the API server, so that their versions can be compared. A
    version that is not a decimal number, which no server with etcd returns, is 0.
    """
    return int(version) if version.isdecimal() else 0


def to_micros(time: datetime) -> int:
    """Return *time* in microseconds since the epoch."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Return the time of *micros* since the epoch."""
    return _EPOCH + timedelta(microseconds=micros)
