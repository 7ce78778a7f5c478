"""Recovery of a pod of an earlier agent: from its directory, or else from the pod's status."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ....machinery.clock import SteadyClock
from ..runtime.runs import ContainerProcess, RunDir, collect_exit
from ..runtime.shim import HOST_CHANGED
from ..state import status
from ..state.core_types import Pod
from ..state.status import Exited, PodState, Started, parse_time
from ..state.status_reader import state_from_status, with_steady_times
from .container_worker import PodContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRun:
    """A run that was started: its start, and its process or its exit."""

    started: Started
    process: ContainerProcess | None = None
    exited: Exited | None = None


def recover_run(context: PodContext, run: RunDir) -> RecoveredRun | None:
    """Recover *run*; return ``None`` if it never started, after cancelling it if necessary."""
    if not run.is_prepared():
        return None
    claim = run.claim_or_cancel()
    if claim is None:
        return None
    has_started, ready, reported_at = _reported_state(context.pod(), context.container_id(run))
    # The earlier agent has reported when it saw the start, which is later than the claim.
    at = reported_at or datetime.fromtimestamp(claim.at, UTC)
    started = context.started_event(run, at, has_started=has_started, ready=ready)
    shim = run.open_shim()
    if shim is not None:
        process = ContainerProcess(run, shim, clock=context.node.clock)
        return RecoveredRun(started=started, process=process)
    record = collect_exit(run)
    if record.reason == HOST_CHANGED:
        return None
    steady_at = context.node.steady_time.from_wall(record.finished_at)
    exited = context.exited_event(run, record, steady_at=steady_at)
    return RecoveredRun(started=started, exited=exited)


def _reported_state(pod: Pod, identity: str) -> tuple[bool, bool, datetime | None]:
    """Return whether the pod's status shows a run as started, and as ready, and its start."""
    for one in pod.status.all_container_statuses:
        if one.container_id.endswith(f"//{identity}"):
            state = one.state.running or one.state.terminated
            return bool(one.started), one.ready, parse_time(state.started_at) if state else None
    return False, False, None


def recover_from_status(
    pod: Pod, *, now: datetime, time: SteadyClock
) -> tuple[PodState, list[Exited]]:
    """Return the state that the pod's status shows, and the exits of its lost containers."""
    if pod.status.start_time is None:
        return PodState(), []
    state = replace(state_from_status(pod), prepared=False)
    state = with_steady_times(state, time.from_wall)
    lost = (status.LOST_CODE, status.LOST_REASON, status.LOST_MESSAGE)
    ends = [
        Exited(name, now, *lost, time.now())
        for name, container in state.containers.items()
        if container.running
    ]
    return state, ends
