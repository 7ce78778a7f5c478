"""The Events of a job, of its PodGroups and of its pods, read with the rights of the caller."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from ...kube.client.client import Client, ListScope
from ...kube.client.codec import decode
from ...model.base import ApiStruct
from ...model.meta import ObjectMeta, ObjectReference
from ...model.names import EVENTS, PODS
from .pods import JobPods

MAX_SELECTED = 6
"""Number of objects up to which one request per object selects its Events. For more objects, one
request reads all Events of the namespace, which the server does for each request anyway."""

PAGE = 500


class EventSeries(ApiStruct, frozen=True):
    """Repetitions of an Event, as newer recorders count them."""

    count: int = 0
    last_observed_time: str | None = None


class EventSource(ApiStruct, frozen=True):
    """Who recorded an Event, as older recorders report it."""

    component: str = ""


class Event(ApiStruct, frozen=True):
    """An Event, as either version of the API shows it."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    series: EventSeries | None = None
    source: EventSource = EventSource()
    reporting_component: str = ""
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def first_at(self) -> str:
        """When it was recorded first."""
        return self.first_timestamp or self.event_time or self.metadata.creation_timestamp or ""

    @property
    def last_at(self) -> str:
        """When it was recorded last."""
        observed = self.series.last_observed_time if self.series is not None else None
        return observed or self.last_timestamp or self.first_at

    @property
    def total(self) -> int:
        """How often it was recorded."""
        counted = self.series.count if self.series is not None else self.count
        return counted or 1

    @property
    def reporter(self) -> str:
        """Who recorded it."""
        return self.reporting_component or self.source.component


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSubjects:
    """The objects whose Events are selected."""

    since: str
    """Creation time of the job; earlier Events are those of other objects of the same name."""

    uids: set[str] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)
    """Names of the pods. Only the name of a deleted pod is known."""

    replicas: dict[str, int] = field(default_factory=dict)
    """Number of the pods that have, or had, a name of this prefix and an index."""

    def selects(self, event: Event) -> bool:
        about = event.involved_object
        if about.uid in self.uids:
            return True
        is_named = about.name in self.pods or self._is_indexed(about.name)
        return (
            is_named
            and about.kind == PODS.kind
            and _order_of(event.last_at) >= _order_of(self.since)
        )

    def _is_indexed(self, name: str) -> bool:
        prefix, _, index = name.rpartition("-")
        if prefix not in self.replicas or not (index.isascii() and index.isdecimal()):
            return False
        return int(index) < self.replicas[prefix] and str(int(index)) == index

    @property
    def selectors(self) -> list[str]:
        """Field selectors of the Events, one for each object, or a single one that selects all
        Events if there are many objects."""
        if sum(self.replicas.values()) > MAX_SELECTED:
            return [""]
        by_name = f"involvedObject.kind={PODS.kind},involvedObject.name="
        indexed = {
            f"{prefix}-{index}"
            for prefix, number in self.replicas.items()
            for index in range(number)
        }
        selectors = [
            *(f"involvedObject.uid={uid}" for uid in sorted(self.uids)),
            *(f"{by_name}{name}" for name in sorted(self.pods | indexed)),
        ]
        return selectors if len(selectors) <= MAX_SELECTED else [""]


@dataclass(frozen=True, slots=True)
class FoundEvents:
    """The newest Events of a job."""

    newest: list[Event]
    """The oldest of them first."""

    total: int
    """How many there are."""


async def read_events(pods: JobPods, podgroups: Iterable[ObjectMeta], *, limit: int) -> FoundEvents:
    """Return the newest *limit* Events of a job, its *podgroups* and its pods."""
    found = await pods.read()
    subjects = EventSubjects(since=pods.meta.creation_timestamp or "")
    subjects.uids.update((pods.meta.uid, *(group.uid for group in podgroups)))
    subjects.pods.update(pod.metadata.name for pod in found.pods)
    subjects.replicas.update(_replicas_by_prefix(pods))
    client, namespace = pods.client, pods.meta.namespace
    newest = _Newest(limit)

    async def read(selector: str) -> None:
        async for event in _events(client, namespace, selector):
            if subjects.selects(event):
                newest.add(event)

    await asyncio.gather(*(read(selector) for selector in subjects.selectors))
    return newest.result()


async def _events(client: Client, namespace: str, selector: str) -> AsyncIterator[Event]:
    scope = ListScope(resource=EVENTS, namespace=namespace, field_selector=selector)
    async for page in client.list_pages(scope, size=PAGE):
        for raw in page.items:
            yield decode(bytes(raw), Event)


def _replicas_by_prefix(pods: JobPods) -> dict[str, int]:
    """Return how many pods have, or had before they were created again, a name of each prefix."""
    if not pods.kind.is_volcano and pods.kind.training is None:
        return {}
    tasks = pods.summary().tasks
    if not pods.kind.is_volcano:
        return {f"{pods.meta.name}-{task.name.lower()}": task.replicas for task in tasks}
    return {f"{pods.meta.name}-{task.name}": task.replicas for task in tasks}


class _Newest:
    """Keeps the newest Events, sorted by time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_uid: dict[str, Event] = {}
        self._total = 0

    def add(self, event: Event) -> None:
        if event.metadata.uid in self._by_uid:
            return
        self._total += 1
        self._by_uid[event.metadata.uid] = event
        if len(self._by_uid) > 2 * self._limit:
            self._by_uid = {each.metadata.uid: each for each in self._sorted()}

    def _sorted(self) -> list[Event]:
        def order(event: Event) -> tuple[str, str, str]:
            return _order_of(event.last_at), _order_of(event.first_at), event.metadata.name

        return sorted(self._by_uid.values(), key=order)[-self._limit :]

    def result(self) -> FoundEvents:
        return FoundEvents(self._sorted(), self._total)


def _order_of(time: str) -> str:
    """Return a key that orders times in seconds and in fractions of them, all in UTC."""
    return time.removesuffix("Z")
