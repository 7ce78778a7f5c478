"""Wait until a job meets a condition, by watching it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...wire.jobs import JobSummary
from ..calls import call
from ..effects import Operation, Stream, sleep
from ..errors import (
    DeadlineError,
    JobDeletedError,
    NotFoundError,
    PhaseUnreachableError,
    WaitTimeoutError,
)
from ..requests import get, path
from ..timing import Deadline
from ..watch_state import Change, ChangeType
from .jobs import get_job, phases
from .paging import consume
from .scopes import Collection, ObjectRef
from .watching import watch


def watch_jobs(
    jobs: Collection,
    *,
    namespace: str | None = None,
    all_namespaces: bool = False,
    phase: str | Iterable[str] | None = None,
    queue: str | None = None,
    label_selector: str | None = None,
) -> Stream[Change[JobSummary]]:
    """Emit the jobs that match as added, then every change; never ends.

    A job that matches no longer is reported as deleted.

    Raises:
        UnreachableError: the server is not reachable for all attempts of a call.
    """
    target = jobs.list_path(
        namespace=namespace,
        all_namespaces=all_namespaces,
        prefix=("watch",),
        query={"phase": phases(phase), "queue": queue, "label_selector": label_selector},
    )
    return watch(jobs.session, target, JobSummary)


def watch_job(job: ObjectRef) -> Stream[Change[JobSummary]]:
    """Emit the current state of a job as added, then every change; never ends.

    Raises:
        NotFoundError: it does not exist.
    """
    yield from get_job(job)
    yield from watch(job.session, _target(job), JobSummary)


def wait(
    job: ObjectRef,
    phase: str | Iterable[str] | None = None,
    *,
    condition: Callable[[JobSummary], bool] | None = None,
    timeout: float | None = None,
    on_change: Callable[[JobSummary], object] | None = None,
) -> Operation[JobSummary]:
    """Wait until a job has finished, is in one of the phases, or meets a condition.

    Args:
        job: which one.
        phase: one or several phases.
        condition: called with each state of the job.
        timeout: seconds; without it there is no limit.
        on_change: called with each state of the job, to show progress.

    Raises:
        WaitTimeoutError: the timeout passed.
        PhaseUnreachableError: it has finished in another phase.
        JobDeletedError: it was deleted.
        NotFoundError: it does not exist.
        ValueError: there is no such phase.
    """
    if phase is not None and condition is not None:
        raise ValueError("give either phases or a condition")
    waiter = _Waiter(job, phases(phase), condition, on_change)
    deadline = Deadline(job.session.timing, timeout)
    attempt = 0
    while True:
        # Read before it is watched: the watch of a job that does not exist waits for it.
        current = yield from waiter.read(deadline)
        if waiter.accept(current) is not None:
            return current
        changes = watch(job.session, _target(job), JobSummary, deadline=deadline, known=current)
        found = yield from consume(changes, waiter.accept_change)
        if found is None:
            raise WaitTimeoutError(f"{job} is {current.phase} after {timeout} s", waiter.last)
        if not waiter.is_deleted:
            return found
        # The server's cache may not contain a new job yet: only a read decides.
        attempt += 1
        yield from sleep(job.session.retries.delay(attempt, job.session.timing))


@dataclass(slots=True)
class _Waiter:
    """What is waited for, and the last state of the job."""

    job: ObjectRef
    phases: list[str] | None
    condition: Callable[[JobSummary], bool] | None
    on_change: Callable[[JobSummary], object] | None
    last: JobSummary | None = None
    is_deleted: bool = False
    """Whether the watch has reported that the job was deleted."""

    def read(self, deadline: Deadline) -> Operation[JobSummary]:
        """Read the job.

        Raises:
            NotFoundError: it does not exist.
            JobDeletedError: it did, or another one has its name now.
            WaitTimeoutError: the deadline passed.
        """
        limit = self.job.session.timeout
        session = replace(self.job.session, timeout=min(limit, max(deadline.remaining, 0.0)))
        try:
            found = yield from call(session, get(self.job.path()), JobSummary)
        except NotFoundError:
            if self.last is None:
                raise
            raise self._deleted(self.last) from None
        except DeadlineError as error:
            if session.timeout == limit:
                raise
            raise WaitTimeoutError(f"cannot read {self.job}: {error}", self.last) from None
        uid = self.last.uid if self.last is not None else self.job.uid
        if uid not in ("", found.uid):
            raise self._deleted(self.last or found)
        return found

    def accept_change(self, change: Change[JobSummary]) -> JobSummary | None:
        """Return the state of the job if it is the one that is waited for, or the last one.

        Raises:
            PhaseUnreachableError: it will not be reached.
        """
        self.is_deleted = change.type is ChangeType.DELETED
        found = self.accept(change.object)
        if found is not None:
            self.is_deleted = False
        return change.object if self.is_deleted else found

    def accept(self, state: JobSummary) -> JobSummary | None:
        """Return the state if it is the one that is waited for.

        Raises:
            PhaseUnreachableError: it will not be reached.
        """
        if self.on_change is not None and state != self.last:
            self.on_change(state)
        self.last = state
        if self._is_met(state):
            return state
        if self.phases is not None and state.is_finished:
            expected = " or ".join(self.phases)
            text = f"{self.job} has finished as {state.phase}, not {expected}: {state.message}"
            raise PhaseUnreachableError(text, state)
        return None

    def _is_met(self, state: JobSummary) -> bool:
        if self.condition is not None:
            return self.condition(state)
        return state.is_finished if self.phases is None else state.phase in self.phases

    def _deleted(self, state: JobSummary) -> JobDeletedError:
        return JobDeletedError(f"{self.job} was deleted in phase {state.phase}", state)


def _target(job: ObjectRef) -> str:
    return path("watch", "namespaces", job.namespace, job.collection.kind, job.name)
