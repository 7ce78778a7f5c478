"""Wait until a job meets a condition, by watching it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..effects import Operation, Stream
from ..errors import JobDeletedError, PhaseUnreachableError, WaitTimeoutError
from ..requests import path
from ..timing import Deadline
from ..types.jobs import JobSummary
from ..watch_state import Change, ChangeType
from .jobs import texts
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
        query={"phase": texts(phase), "queue": queue, "label_selector": label_selector},
    )
    return watch(jobs.session, target, JobSummary)


def watch_job(job: ObjectRef) -> Stream[Change[JobSummary]]:
    """Emit the current state of a job, then every change; never ends.

    Raises:
        NotFoundError: it does not exist.
    """
    return watch(job.session, _target(job), JobSummary)


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
    """
    if phase is not None and condition is not None:
        raise ValueError("give either phases or a condition")
    waiter = _Waiter(job, texts(phase), condition, on_change)
    deadline = Deadline(job.session.timing, timeout)
    changes = watch(job.session, _target(job), JobSummary, deadline=deadline)
    found = yield from consume(changes, waiter.accept)
    if found is None:
        known = f"is {waiter.last.phase}" if waiter.last is not None else "has not been read"
        raise WaitTimeoutError(f"{job} {known} after {timeout} s", waiter.last)
    return found


@dataclass(slots=True)
class _Waiter:
    """What is waited for, and the last state of the job."""

    job: ObjectRef
    phases: list[str] | None
    condition: Callable[[JobSummary], bool] | None
    on_change: Callable[[JobSummary], object] | None
    last: JobSummary | None = None

    def accept(self, change: Change[JobSummary]) -> JobSummary | None:
        """Return the state of the job if it is the one that is waited for.

        Raises:
            JobDeletedError, PhaseUnreachableError: it will not be reached.
        """
        state = self.last = change.object
        if self.on_change is not None:
            self.on_change(state)
        if self._is_met(state):
            return state
        if change.type is ChangeType.DELETED:
            raise JobDeletedError(f"{self.job} was deleted in phase {state.phase}", state)
        if self.phases is not None and state.is_finished:
            expected = " or ".join(self.phases)
            text = f"{self.job} has finished as {state.phase}, not {expected}: {state.message}"
            raise PhaseUnreachableError(text, state)
        return None

    def _is_met(self, state: JobSummary) -> bool:
        if self.condition is not None:
            return self.condition(state)
        return state.is_finished if self.phases is None else state.phase in self.phases


def _target(job: ObjectRef) -> str:
    return path("watch", "namespaces", job.namespace, job.collection.kind, job.name)
