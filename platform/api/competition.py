"""What a job that waits competes with, and reservations, as the scheduler knows them.

Jobs that the caller may not see have neither name nor queue.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ..model import scheduler_questions as known
from ..model.names import PODGROUPS, PODS, Resource
from ..wire.jobs import KINDS as KIND_NAMES
from ..wire.waits import (
    Competition,
    FreeAmount,
    JobAhead,
    JobHolder,
    OtherJob,
    Reservation,
    ReservationList,
    ReservedNode,
)
from .identity.reviewer import AccessAttributes, AccessReviewer, UserInfo
from .jobs.kinds import KINDS
from .problems import ProblemError


@dataclass(frozen=True, slots=True)
class _Collection:
    """Jobs of one kind in one namespace: whether they may be seen is one question."""

    resource: Resource
    namespace: str


@dataclass(frozen=True, slots=True)
class VisibleJobs:
    """Names the jobs that a user may see."""

    _visible: Mapping[_Collection, bool]

    def name(self, job: known.JobRef) -> OtherJob | None:
        """Return *job*; ``None`` if the user may not see it."""
        if not self._visible[_collection_of(job)]:
            return None
        kind = KIND_NAMES.get((job.api_version, job.kind))
        return OtherJob(namespace=job.namespace, kind=kind or job.kind, name=job.name)


async def visible_jobs(
    reviewer: AccessReviewer, user: UserInfo, jobs: Iterable[known.JobRef]
) -> VisibleJobs:
    """Return which of *jobs* the user may see: those whose kind may be listed in their namespace.

    What cannot be reviewed now counts as not permitted.
    """
    collections = list(dict.fromkeys(map(_collection_of, jobs)))

    async def is_visible(collection: _Collection) -> bool:
        access = AccessAttributes(
            verb="list", resource=collection.resource, namespace=collection.namespace
        )
        try:
            await reviewer.authorize(user, access)
        except ProblemError:
            return False
        return True

    found = await asyncio.gather(*map(is_visible, collections))
    return VisibleJobs(dict(zip(collections, found, strict=True)))


def _collection_of(job: known.JobRef) -> _Collection:
    kind = KIND_NAMES.get((job.api_version, job.kind))
    if kind is not None:
        return _Collection(KINDS[kind].resource, job.namespace)
    is_pod = (job.api_version, job.kind) == (PODS.api_version, PODS.kind)
    return _Collection(PODS if is_pod else PODGROUPS, job.namespace)


def jobs_of(details: known.WaitDetails) -> list[known.JobRef]:
    """Return all jobs in *details*."""
    return [*(each.job for each in details.ahead), *(each.job for each in details.holders)]


def competition_of(details: known.WaitDetails, visible: VisibleJobs) -> Competition:
    """Convert *details*."""
    return Competition(
        position=details.position,
        waiting=details.waiting,
        ahead=[
            JobAhead(job=visible.name(each.job), requests=each.requests) for each in details.ahead
        ],
        free=[
            FreeAmount(
                resource=each.resource,
                asked=each.asked,
                free=each.free,
                total=each.total,
                queue=each.queue,
                group=each.group,
                nodes=each.nodes,
                usable=each.usable,
                largest=each.largest,
            )
            for each in details.free
        ],
        holders=[
            JobHolder(
                job=visible.name(each.job),
                queue=each.queue if visible.name(each.job) else "",
                held=each.held,
                nodes=each.nodes,
                until=_time(each.until),
                basis=each.basis,
            )
            for each in details.holders
        ],
        more_holders=details.more_holders,
    )


def reservations_of(found: known.Reservations, visible: VisibleJobs) -> ReservationList:
    """Convert *found*."""
    items = [
        Reservation(
            job=visible.name(each.job),
            queue=each.queue if visible.name(each.job) else "",
            purpose=each.purpose,
            start=_time(each.start),
            until=_time(each.until),
            nodes=[ReservedNode(node=node.node, amounts=node.amounts) for node in each.nodes],
        )
        for each in found.items
    ]
    return ReservationList(items=items, is_complete=found.is_complete)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(int(seconds), UTC)
