"""What an earlier agent left of a pod: read from its folder, or else from the object's status."""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ...machinery.clock import SteadyTime
from ..runtime.runs import Process, RunFolder, lost, sweep
from ..state import status
from ..state.core_types import Pod
from ..state.status import Exited, PodState, Started
from .container_worker import PodContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run that took place: its start, and the process that lives or how it ended."""

    started: Started
    process: Process | None = None
    exited: Exited | None = None


def find(context: PodContext, run: RunFolder) -> Found | None:
    """What became of *run*; ``None`` if it never started, and from now on never will."""
    if not run.was_intended():
        return None
    claim = run.claim()
    if claim is None and run.call_off():
        return None
    claim = run.claim()
    if claim is None or claim.pid == 0:
        return None
    begun, ready = _was_shown(context.pod(), context.identity(run))
    at = datetime.fromtimestamp(claim.at, UTC)
    started = context.started(run, at, begun=begun, ready=ready)
    process = _living(context, run)
    if process is not None:
        return Found(started=started, process=process)
    ended = run.ended()
    if ended is None:
        sweep(run.name)
        ended = lost(run)
    seen = context.machine.time.of(ended.moment)
    return Found(started=started, exited=context.exited(run, ended, seen=seen))


def _living(context: PodContext, run: RunFolder) -> Process | None:
    pid = run.process()
    if pid is None:
        return None
    with suppress(ProcessLookupError):
        process = Process(run, pid, clock=context.machine.clock)
        if run.process() is not None:
            return process
        process.let_go()  # it ended between two looks: the number may be another's
    return None


def _was_shown(pod: Pod, identity: str) -> tuple[bool, bool]:
    """Whether a run was said to have started well, and to be ready."""
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if one.container_id.endswith(f"//{identity}"):
            return bool(one.started), one.ready
    return False, False


def dated(state: PodState, time: SteadyTime) -> PodState:
    """What another process told by the wall clock, in steady time too."""
    known = {
        name: replace(each, exit=replace(each.exit, seen=time.of(each.exit.at)))
        for name, each in state.containers.items()
        if each.exit is not None
    }
    begun = time.of(state.started_at) if state.started_at else None
    return replace(state, containers={**state.containers, **known}, seen=begun)


def remembered(pod: Pod, *, now: datetime, time: SteadyTime) -> tuple[PodState, list[Exited]]:
    """For an agent without records: what the object shows, and the ends of what is lost."""
    if pod.status.start_time is None:
        return PodState(), []
    state = replace(status.restore(pod), prepared=False)
    state = dated(state, time)
    lost = (status.LOST_CODE, status.LOST_REASON, status.LOST_MESSAGE)
    ends = [
        Exited(name, now, *lost, time.now())
        for name, container in state.containers.items()
        if container.running
    ]
    return state, ends
