"""Wait until a command has led to the phase that it asks for.

The watches wake who waits; the API server is not polled.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from ...kube.informer.informer import Informer
from ...model.job import FINAL_PHASES
from ...model.meta import HasMeta
from ...model.queue import Queue, QueueState
from ...store.commands import QUEUES_KIND, CommandRecord, CommandState
from ..caches import Caches
from ..jobs.kinds import KINDS
from ..jobs.summaries import JobKindName
from .orders import GOALS
from .outcomes import Outcomes
from .wakeups import Wakeups

T = TypeVar("T", bound=HasMeta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a command has led to so far."""

    record: CommandRecord
    phase: str
    """Phase of the job or state of the queue; empty if it was deleted."""
    reached: bool
    """The phase is one that the command asks for."""
    detail: str
    """Why it is not."""
    is_settled: bool
    """Nothing more follows from the command."""


class CommandWaits:
    """Waits for the progress of commands."""

    def __init__(self, caches: Caches, outcomes: Outcomes) -> None:
        """Observe *caches*, which the server runs."""
        self._caches = caches
        self._outcomes = outcomes
        self._objects = Wakeups()
        self._stopping = False
        for name, cache in caches.kinds.items():
            self._observe(str(name), cache.informer)
        self._observe(QUEUES_KIND, caches.queues)

    def stop(self) -> None:
        """End all waits, with what is known now."""
        self._stopping = True
        self._objects.wake_all()

    async def wait(self, record: CommandRecord, request: Request, *, seconds: float) -> Progress:
        """Return the progress of *record* once it is settled, at most *seconds* later.

        Ends early if the server stops or the client of *request* has disconnected.
        """
        key = f"{record.kind}/{record.namespace}/{record.job}"
        with (
            self._objects.listen(key) as changed,
            self._outcomes.wakeups.listen(record.id) as ended,
        ):
            disconnected = asyncio.create_task(_disconnected(request))
            try:
                async with asyncio.timeout(seconds):
                    while not ((progress := self.progress(record)).is_settled or self._stopping):
                        if disconnected.done():
                            break
                        await _first(disconnected, changed, ended)
            except TimeoutError:
                progress = self.progress(record)
            finally:
                disconnected.cancel()
                await asyncio.wait((disconnected,))
        return progress

    def progress(self, record: CommandRecord) -> Progress:
        """Return what is known now."""
        record = self._outcomes.latest(record)
        phase, message = self._phase(record)
        result = partial(Progress, record=record, phase=phase)
        if record.is_open:
            detail = f"the command has no outcome yet; it is {record.state}"
            return result(reached=False, detail=detail, is_settled=False)
        if record.state != CommandState.EXECUTED:
            return result(reached=False, detail=record.detail, is_settled=True)
        what = "queue" if record.kind == QUEUES_KIND else "job"
        if not phase:
            detail = f"the {what} was deleted after the command was executed"
            return result(reached=False, detail=detail, is_settled=True)
        if phase in GOALS[record.action]:
            return result(reached=True, detail="", is_settled=True)
        detail = f"the {what} is {phase}" + (f": {message}" if message else "")
        return result(reached=False, detail=detail, is_settled=phase in FINAL_PHASES)

    def _phase(self, record: CommandRecord) -> tuple[str, str]:
        """Return phase and message of the object, empty if it is deleted."""
        if record.kind == QUEUES_KIND:
            queue = self._caches.queues.get(record.job)
            if queue is None or queue.metadata.uid != record.job_uid:
                return "", ""
            return queue.status.state or QueueState.OPEN, _podgroups(queue)
        kind = KINDS[JobKindName(record.kind)]
        job = self._caches.of(kind).informer.get(f"{record.namespace}/{record.job}")
        if job is None or job.metadata.uid != record.job_uid:
            return "", ""
        summary = kind.summarize(job)
        return summary.phase, summary.message

    def _observe(self, kind: str, informer: Informer[T]) -> None:
        def on_change(old: T | None, new: T | None) -> None:
            either = new if new is not None else old
            if either is not None:
                meta = either.metadata
                self._objects.wake(f"{kind}/{meta.namespace}/{meta.name}")

        informer.add_event_handler(on_change)


def _podgroups(queue: Queue) -> str:
    status = queue.status
    number = status.pending + status.inqueue + status.running + status.unknown + status.completed
    is_closing = status.state == QueueState.CLOSING
    return f"it has {number} PodGroups left" if is_closing else ""


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first(disconnected: asyncio.Task[None], *events: asyncio.Event) -> None:
    """Wait for one of the events, which are cleared, or for the end of the task."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait((disconnected, *waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        for event in events:
            event.clear()
