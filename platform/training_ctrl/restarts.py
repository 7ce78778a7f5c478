"""Record of a job's restarts in an annotation, and the limits of a job. Pure.

A pod that is restarted is deleted, and the restarts of its containers with it. So their number is
written before the deletion, together with the uids that it includes: after any interruption, each
pod is counted once. A limit that is exceeded is written, too, before the deletion of the pods that
exceed it.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from ..model import times
from ..model.base import ApiStruct
from ..model.training.types import RestartPolicy

ANNOTATION = "batholith.io/training-restarts"
"""Annotation of a job: its restart record, as JSON."""


class RestartRecord(ApiStruct, frozen=True):
    """Pods that were restarted."""

    job_uid: str = ""
    """Uid of the job; the annotation of a copied job counts nothing."""
    count: int = 0
    """Number of failed pods that were deleted in order to be created again."""
    pods: tuple[str, ...] = ()
    """Uids of those included in *count* that may still exist."""
    backoff_limit_exceeded: bool = False
    """The job fails because of its backoffLimit."""

    def add(self, failed: Iterable[str], existing: Collection[str]) -> "RestartRecord":
        """Return the record with the uids *failed*, without those of pods that no longer exist."""
        new = [uid for uid in failed if uid not in self.pods]
        if not new:
            return self
        kept = [uid for uid in self.pods if uid in existing]
        return msgspec.structs.replace(self, count=self.count + len(new), pods=(*kept, *new))


def parse(annotations: Mapping[str, str], job_uid: str) -> RestartRecord:
    """Return the record of a job; an empty one if it has no valid record."""
    try:
        record = msgspec.json.decode(annotations.get(ANNOTATION, "{}"), type=RestartRecord)
    except msgspec.MsgspecError:
        record = RestartRecord()
    return record if record.job_uid == job_uid else RestartRecord(job_uid=job_uid)


def encode(record: RestartRecord) -> str:
    """Return the value of the annotation."""
    return msgspec.json.encode(record).decode()


def counts_restarts(policy: str) -> bool:
    """Whether restarts of containers count towards the backoffLimit."""
    return policy in (RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS, RestartPolicy.EXIT_CODE)


def backoff_limit_exceeded(limit: int | None, restarts: int) -> bool:
    """Whether *restarts* of containers and pods together exceed the backoffLimit."""
    if limit is None:
        return False
    return restarts > 0 if limit == 0 else restarts >= limit


def remaining(since: str | None, seconds: float | None, now: datetime) -> float | None:
    """Return the seconds left until *seconds* after *since*; ``None`` if either is missing."""
    if since is None or seconds is None:
        return None
    return (times.parse(since) + timedelta(seconds=seconds) - now).total_seconds()
