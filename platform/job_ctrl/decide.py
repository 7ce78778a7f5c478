"""What must happen to a job. Pure: it says what to do, and does none of it.

The controller asks again after each round of effects, until there is nothing left to do; so each
answer is one step, and a controller that dies between two steps finds the next one from the caches
alone. The order within an answer matters: a new phase is written before anything is deleted, and a
Command is removed after it has been obeyed.
"""

from collections.abc import Iterator
from functools import partial

from ..model import times
from ..model.job import Action, JobPhase
from ..model.pod import PodPhase
from . import podgroups, policies, status
from .effects import (
    CreatePodGroup,
    CreatePods,
    DeleteCommand,
    DeleteJob,
    DeletePodGroup,
    DeletePods,
    Effect,
    EnsureClaims,
    EnsureObjects,
    Forget,
    LookAgain,
    PutOff,
    Reason,
    RecordEvent,
    RemoveObjects,
    SetStatus,
    UpdatePodGroup,
)
from .job_view import Order, View
from .phases import FINAL, RULES, Go, Upkeep
from .pod_tracker import Entry, Happening
from .restarts import SUSPENDED, Target

_TURNED = {True: "suspended", False: "goes on"}


def decide(view: View, order: Order | None = None) -> list[Effect]:
    """The next step for the job that *view* shows: first the *order*, if there is one."""
    if view.job.metadata.deletion_timestamp is not None:
        return [DeleteCommand()] if order else []  # the rest goes with the job
    if not view.job.status.state.phase:
        return [SetStatus(status.first(view), urgent=True), *_warn(view)]
    if order is not None and order.uid in view.job.status.state.message:
        return [DeleteCommand()]  # it was obeyed before a crash, or could not be deleted
    if view.phase is JobPhase.RESTARTING and (failed := _fail(view)):
        return failed
    if turned := _suspend(view):
        return turned
    if order is not None:
        return _obey(view, order)
    upkeep = RULES[view.phase].upkeep
    if upkeep is Upkeep.CLEAR:
        return _clear(view)
    asides, move = _react(view)
    step = move or _settle(view) or (_serve(view) if upkeep is Upkeep.SERVE else _end(view))
    return [*asides, *step]


def _suspend(view: View) -> list[Effect]:
    """Do what ``spec.suspend`` says, if it is not done: stop the job, or have it go on."""
    state, wanted = view.job.status.state, view.job.spec.suspend
    done = state.reason == SUSPENDED and Action.RESUME_JOB in RULES[view.phase].on
    if wanted == done:
        return []
    if wanted:
        rest = Go(then=view.phase) if Action.RESUME_JOB in RULES[view.phase].on else None
        go, reason, said = RULES[view.phase].on.get(Action.ABORT_JOB) or rest, SUSPENDED, "true"
    else:
        go, reason, said = RULES[view.phase].on[Action.RESUME_JOB], Action.RESUME_JOB, "false"
    if go is None:
        return []  # it has ended, or is about to
    message = f"spec.suspend is {said}"
    return [
        SetStatus(status.moved(view, go, reason=reason, message=message), urgent=True),
        RecordEvent(Reason.EXECUTE_ACTION, f"Job {_TURNED[wanted]}: {message}"),
    ]


def _edge(view: View, action: str) -> Go | None:
    """Where *action* leads; nothing but ``spec.suspend`` itself resumes what it has stopped."""
    if action == Action.RESUME_JOB and view.job.spec.suspend:
        return None
    return RULES[view.phase].on.get(Action(action))


def _obey(view: View, order: Order) -> list[Effect]:
    """Carry a Command out."""
    go = _edge(view, order.action) if order.action in policies.ORDERS else None
    effects: list[Effect] = []
    if go is not None:
        message = f"Command {order.name} ({order.uid})"
        moved = status.moved(view, go, reason=order.action, message=message)
        effects.append(SetStatus(moved, urgent=True))
    done = "carried out" if go else _why_nothing(view, order)
    return [
        *effects,
        RecordEvent(Reason.COMMAND_ISSUED, f"Command {order.action} received: {done}"),
        RecordEvent(Reason.EXECUTE_ACTION, f"Action {order.action} by Command {order.name}"),
        DeleteCommand(),
    ]


def _why_nothing(view: View, order: Order) -> str:
    """Why the Command changes nothing."""
    if order.action not in set(Action):
        return "there is no such action"
    if order.action in policies.ACTIONS - policies.ORDERS:
        return "it changes nothing, as a Command cannot say of which pods"
    if order.action == Action.RESUME_JOB and view.job.spec.suspend:
        return "it changes nothing as long as spec.suspend is true"
    return f"it changes nothing in phase {view.phase}"


def _react(view: View) -> tuple[list[Effect], list[Effect]]:
    """Ask the policies about what happened; the first action that this phase knows is taken.

    Returns what is to be noted in any case, and the move to another phase, if there is one.
    """
    if not view.ledger.has_happenings:
        return [], []
    judged: list[Happening] = []
    waits: dict[Happening, float] = {}
    pods, terms = view.pods, policies.terms(view.job)
    due, later = view.ledger.due(view.uptime, terms=terms)
    for happening in due:
        policy = policies.answer(view.job, happening, pods)
        go, target = None, None
        if policy is not None and not policies.is_over(view.ledger, happening, policy):
            go = _edge(view, policy.action)
            target = Target.of(Action(policy.action), happening)
        if policy is None or go is None or target is None:
            judged.append(happening)
            continue
        until = happening.since + policies.delay(policy, happening.event)
        if until > view.uptime:
            waits[happening] = until
            continue
        why = target.message(_describe(happening))
        moved = status.moved(view, go, reason=policy.action, message=why)
        return [], [
            SetStatus(moved, urgent=True),
            Forget((*judged, happening)),
            RecordEvent(Reason.EXECUTE_ACTION, f"Action {policy.action} after {why}"),
        ]
    return [*_put_away(judged, waits, terms=terms), *_look_at(view, later, *waits.values())], []


def _put_away(
    judged: list[Happening], waits: dict[Happening, float], *, terms: object
) -> Iterator[Effect]:
    """What need not be judged at the next look, if nothing happens before."""
    if judged:
        yield Forget(tuple(judged))
    waiting = {one: until for one, until in waits.items() if one.event not in policies.COUNTING}
    if waiting:
        yield PutOff(waiting, terms)


def _look_at(view: View, *moments: float | None) -> Iterator[Effect]:
    """Look again at the first of these moments of the monotonic clock."""
    first = min((one for one in moments if one is not None), default=None)
    if first is not None:
        yield LookAgain(first - view.uptime)


def _describe(happening: Happening) -> str:
    about = f" of {happening.pod}" if happening.pod else ""
    code = f" with exit code {happening.exit_code}" if happening.exit_code else ""
    return f"{happening.event}{about}{code}"


def _settle(view: View) -> list[Effect]:
    """Move on to the phase that the pods ask for."""
    go = RULES[view.phase].settle(view)
    if go is None:
        return []
    moved = status.moved(view, go, reason=go.reason, message=go.message)
    return [SetStatus(moved, urgent=True)]


def _fail(view: View) -> list[Effect]:
    """End a job that restarts with no retries left.

    No order comes before that: a job that is stopped and resumed now would go on past its limit.
    """
    go = RULES[view.phase].settle(view)
    return _settle(view) if go is not None and go.then in FINAL else []


def _serve(view: View) -> Iterator[Effect]:
    """Pending and Running: see to it that everything is there that should be."""
    # First, as the rest may fail (again), which ends this look and puts off the next one.
    yield from _recount(view, urgent=bool(view.obstacles))
    if view.claims_due and view.phase is JobPhase.PENDING:
        yield EnsureClaims()
        return
    if view.objects_due:
        yield EnsureObjects()
    if view.podgroup is None:
        yield CreatePodGroup(view.gang)
    elif not view.podgroup_leaving:
        changes = podgroups.changes(view.podgroup.spec, view.gang)
        if changes:
            yield UpdatePodGroup(changes, view.podgroup.metadata)
        yield from _complain(view)
    unwanted = (*view.ledger.outdated(view.job.status.version), *view.ledger.surplus())
    if unwanted:
        yield DeletePods(unwanted)
    if view.admitted:
        yield from _populate(view)


def _populate(view: View) -> Iterator[Effect]:
    """Make the pods that are missing and may start."""
    missing = {
        task.name: tuple(view.ledger.missing(task.name))
        for task in view.job.spec.tasks
        if view.ledger.present(task.name) < task.replicas
        and podgroups.may_start(task, partial(_started, view))
    }
    if any(missing.values()):
        yield CreatePods(missing)


def _clear(view: View) -> list[Effect]:
    """Restarting: let the old go, then move on. Nothing is made in this phase."""
    unwanted = tuple(_outgoing(view))
    if unwanted:
        return [DeletePods(unwanted)]
    if view.restart.everything and view.podgroup is not None:
        # The new run is admitted by a PodGroup of its own; until the old one is gone the job
        # stays here, so that no PodGroup seen in this phase can be the new one.
        uid = view.podgroup.metadata.uid
        gone: list[Effect] = [] if view.podgroup_leaving else [DeletePodGroup(uid)]
        return [*gone, *_recount(view)]
    asides, move = _react(view)
    return [*asides, *(move or _settle(view) or _recount(view))]


def _end(view: View) -> Iterator[Effect]:
    """The other phases: let everything go but the finished pods."""
    unwanted = (*view.ledger.live(), *view.ledger.surplus())
    if unwanted:
        yield DeletePods(unwanted)
    if view.podgroup is not None and not view.podgroup_leaving:
        yield DeletePodGroup(view.podgroup.metadata.uid)
    counted = status.recounted(view)
    unmarked = status.without_marks(counted)
    if unmarked != counted:
        yield RemoveObjects()
    if unmarked != view.job.status:
        yield SetStatus(unmarked, urgent=False)
    yield from _expire(view)


def _outgoing(view: View) -> Iterator[Entry]:
    """The pods that a restart lets go, as far as they have not been asked to."""
    version, target = view.job.status.version, view.restart
    yield from view.ledger.outdated(version)
    yield from view.ledger.surplus()
    yield from view.outgoing()
    if target.everything and not view.resuming:
        yield from (pod for pod in view.ledger.done() if pod.version < version)


def _started(view: View, name: str) -> bool:
    """Whether the task of that name has its minimum; one that the job does not have always has."""
    task = next((task for task in view.job.spec.tasks if task.name == name), None)
    if task is None or task.min_available is None:
        return True
    pods = view.pods
    succeeded = pods.tasks.get(name, {}).get(PodPhase.SUCCEEDED, 0)
    return succeeded + pods.ready.get(name, 0) >= task.min_available


def _warn(view: View) -> Iterator[Effect]:
    """Say at the start what will have no effect."""
    for event in policies.dead(view.job):
        said = f"a policy waits for {event}, which never happens"
        yield RecordEvent(Reason.POLICY_VOID, said, warning=True)


def _complain(view: View) -> Iterator[Effect]:
    """Say why the gang waits: what the scheduler found, and what it cannot know."""
    found = podgroups.complaint(view.podgroup) if view.podgroup else None
    if found is not None:
        meta = view.job.metadata
        said = f"PodGroup {meta.namespace}:{meta.name} {found.type.lower()}: {found.message}"
        yield RecordEvent(Reason.PODGROUP_PENDING, said, warning=True)
    if view.broken:
        yield RecordEvent(Reason.GANG_BROKEN, view.broken, warning=True)
    for task in view.job.spec.tasks:
        failed = view.pods.tasks.get(task.name, {}).get(PodPhase.FAILED)
        if failed and policies.waits_in_vain(view.job, task):
            said = (
                f"a pod of task {task.name} has failed, but no policy for TaskFailed will act: it"
                " counts restarts of containers, and the task's restartPolicy is Never"
            )
            yield RecordEvent(Reason.POLICY_VOID, said, warning=True)


def _recount(view: View, *, urgent: bool = False) -> Iterator[Effect]:
    counted = status.recounted(view)
    if counted != view.job.status:
        yield SetStatus(counted, urgent=urgent)


def _expire(view: View) -> Iterator[Effect]:
    """Remove a job whose time after its end is over."""
    ttl, ended = view.job.spec.ttl_seconds_after_finished, view.job.status.state
    if ttl is None or view.phase not in FINAL or not ended.last_transition_time:
        return
    left = (times.parse(ended.last_transition_time) - view.now).total_seconds() + ttl
    yield LookAgain(left) if left > 0 else DeleteJob()
