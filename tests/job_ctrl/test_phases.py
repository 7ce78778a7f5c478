"""The phase table, cell by cell, and the transitions that follow from the pods."""

import msgspec
import pytest
from support.jobs import job, job_view, make_command, pod_info, task

from batholith.job_ctrl.decide import decide
from batholith.job_ctrl.effects import DeleteCommand, Effect, SetStatus
from batholith.job_ctrl.status import next_status
from batholith.job_ctrl.status.job_view import JobView
from batholith.job_ctrl.status.phases import RULES
from batholith.model.job import Action, Job, JobPhase, JobState, JobStatus
from batholith.model.job_actions import Transition
from batholith.model.pod import PodPhase

P, A = JobPhase, Action
FINISHED = (P.COMPLETED, P.FAILED, P.TERMINATED)
STOP = {A.ABORT_JOB: P.ABORTING, A.COMPLETE_JOB: P.COMPLETING, A.TERMINATE_JOB: P.TERMINATING}
RESTART = (A.RESTART_JOB, A.RESTART_TASK, A.RESTART_POD, A.RESTART_PARTITION)
PARTIAL_RESTART = RESTART[1:]

# (phase, action) -> (next phase, retries used up, versions raised); all other cells do nothing.
TABLE = {
    **{(p, a): (then, 0, 1) for p in (P.PENDING, P.RUNNING, P.RESTARTING)
       for a, then in STOP.items()},
    **{(p, a): (P.RESTARTING, 1, int(a is A.RESTART_JOB)) for p in (P.PENDING, P.RUNNING)
       for a in RESTART},
    **{(P.RESTARTING, a): (P.RESTARTING, 0, int(a is A.RESTART_JOB)) for a in RESTART},
    **{(p, A.RESUME_JOB): (P.RESTARTING, 0, 0) for p in (P.ABORTING, P.ABORTED)},
}  # fmt: skip


def status_in(phase: JobPhase, **fields: object) -> JobStatus:
    """The status of a job in *phase*."""
    return JobStatus(state=JobState(phase=phase), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", JobPhase)
@pytest.mark.parametrize("action", Action)
def test_each_action_leads_to_the_phase_in_the_table(phase: JobPhase, action: Action) -> None:
    seen = job_view(job(status=status_in(phase, version=4, retry_count=1)))
    go = RULES[phase].transitions(seen).get(action)
    assert (go is not None) == ((phase, action) in TABLE)
    if go is not None:
        then, retries, versions = TABLE[phase, action]
        moved = next_status.apply_transition(seen, go, reason=action)
        assert moved.state.phase == then
        assert (moved.retry_count, moved.version) == (1 + retries, 4 + versions)
        assert moved.conditions[-1].status == then


@pytest.mark.parametrize("phase", JobPhase)
def test_each_phase_has_its_rules(phase: JobPhase) -> None:
    assert RULES[phase].phase is phase


def written_phase(effects: list[Effect]) -> JobPhase | None:
    """The phase that is written, if any."""
    for effect in effects:
        if isinstance(effect, SetStatus) and effect.immediate:
            return JobPhase(effect.status.state.phase)
    return None


@pytest.mark.parametrize("phase", JobPhase)
@pytest.mark.parametrize("action", Action)
def test_command_in_each_phase_follows_the_table(phase: JobPhase, action: Action) -> None:
    seen = job_view(job(status=status_in(phase, min_available=2)), pod_info("t-0"), pod_info("t-1"))
    effects = decide(seen, make_command(action))
    then = TABLE.get((phase, action)) if action not in PARTIAL_RESTART else None
    assert written_phase(effects) == (then[0] if then else None)
    assert effects[-1] == DeleteCommand()


def failed_in(phase: JobPhase, action: Action) -> JobView:
    """A pod of a job in *phase* has just failed, and a policy has *action*."""
    policy = {"action": action, "event": "PodFailed"}
    of = job(
        task("t", 2, partitionPolicy={"totalPartitions": 2, "partitionSize": 1}),
        policies=[policy],
        maxRetry=9,
        status=status_in(phase, min_available=2),
    )
    podgroup = "Running" if phase in (P.PENDING, P.RUNNING) else None
    failed = pod_info("t-0", PodPhase.FAILED, exit_code=1, partition="0")
    return job_view(of, failed, pod_info("t-1", partition="1"), podgroup=podgroup)


@pytest.mark.parametrize("phase", JobPhase)
@pytest.mark.parametrize("action", Action)
def test_policy_in_each_phase_follows_the_table(phase: JobPhase, action: Action) -> None:
    seen = failed_in(phase, action)
    independent = job_view(msgspec.structs.replace(seen.job, spec=job(maxRetry=9).spec),
                     pod_info("t-0", PodPhase.FAILED), pod_info("t-1"),
                     podgroup="Running" if seen.podgroup else None)  # fmt: skip
    then = TABLE.get((phase, action))
    expected = then[0] if then else written_phase(decide(independent))
    assert written_phase(decide(seen)) == expected


def running_job(job: Job, **pods: str) -> JobView:
    """A Running job whose pods are in the phases given as letters: ``t="PRSFU"``."""
    letters = {phase.value[0]: phase for phase in PodPhase}
    return job_view(
        job,
        *(
            pod_info(f"{name}-{index}", letters[letter])
            for name, phases in pods.items()
            for index, letter in enumerate(phases)
        ),
    )


def final_phase(seen: JobView) -> JobPhase | None:
    go = RULES[seen.phase].next_transition(seen)
    return go.to if go else None


RUNNING = status_in(P.RUNNING)


@pytest.mark.parametrize(
    ("pods", "then"),
    [("RR", None), ("RS", None), ("RF", None), ("SS", P.COMPLETED), ("FF", P.FAILED),
     ("SF", P.FAILED), ("PR", P.PENDING), ("UU", None), ("S", None)],
)  # fmt: skip
def test_a_running_job_of_two_follows_its_pods(pods: str, then: JobPhase | None) -> None:
    assert final_phase(running_job(job(task(replicas=2), status=RUNNING), t=pods)) == then


@pytest.mark.parametrize(
    ("minimum", "pods", "then"),
    [(1, "SF", P.COMPLETED), (1, "FF", P.FAILED), (1, "PP", P.PENDING), (1, "PR", None)],
)
def test_an_elastic_job_is_content_with_its_minimum(
    minimum: int, pods: str, then: JobPhase | None
) -> None:
    of = job(task(replicas=2, minAvailable=1), minAvailable=minimum, status=RUNNING)
    assert final_phase(running_job(of, t=pods)) == then


@pytest.mark.parametrize(
    ("pods", "then"), [("SRR", P.COMPLETED), ("FRR", None), ("FFF", P.FAILED), ("SFF", P.COMPLETED)]
)
def test_min_success_ends_a_job_early_or_fails_it(pods: str, then: JobPhase | None) -> None:
    of = job(task(replicas=3), minAvailable=2, minSuccess=1, status=RUNNING)
    assert final_phase(running_job(of, t=pods)) == then


@pytest.mark.parametrize(
    ("a", "b", "then"),
    [("SSS", "F", P.FAILED), ("SSF", "S", P.COMPLETED), ("SFF", "S", P.FAILED)],
)
def test_each_tasks_own_minimum_must_succeed(a: str, b: str, then: JobPhase) -> None:
    of = job(task("a", 3, minAvailable=2), task("b", 1), minAvailable=3, status=RUNNING)
    assert final_phase(running_job(of, a=a, b=b)) == then


def test_a_pending_job_runs_when_its_minimum_runs_or_has_ended() -> None:
    of = job(task(replicas=3), minAvailable=2, status=status_in(P.PENDING))
    assert final_phase(running_job(of, t="RPP")) is None
    assert final_phase(running_job(of, t="RSP")) == P.RUNNING
    assert final_phase(running_job(of, t="FRP")) == P.RUNNING


def test_a_job_of_no_pods_stays_as_it_is() -> None:
    assert final_phase(running_job(job(task(replicas=0), minAvailable=0, status=RUNNING))) is None


@pytest.mark.parametrize("phase", FINISHED)
@pytest.mark.parametrize("pods", ["", "RR", "SS", "FP"])
def test_nothing_leads_out_of_the_last_phases(phase: JobPhase, pods: str) -> None:
    seen = running_job(job(status=status_in(phase)), t=pods)
    assert final_phase(seen) is None
    assert RULES[phase].transitions(seen) == {}


@pytest.mark.parametrize(
    ("phase", "then"),
    [(P.ABORTING, P.ABORTED), (P.COMPLETING, P.COMPLETED), (P.TERMINATING, P.TERMINATED)],
)
def test_a_job_that_was_stopped_has_stopped_when_no_pod_is_alive(
    phase: JobPhase, then: JobPhase
) -> None:
    of = job(status=status_in(phase, version=1))
    assert final_phase(running_job(of, t="SR")) is None  # its deletion is not requested yet
    assert final_phase(job_view(of, pod_info(terminating=True))) is None
    assert final_phase(job_view(of, pod_info("t-1", PodPhase.SUCCEEDED, terminating=True))) is None
    assert final_phase(running_job(of, t="SF")) == then
    assert final_phase(job_view(of)) == then


def test_restart_waits_for_min_available_and_checks_retries_first() -> None:
    state = JobState(phase=P.RESTARTING, reason=A.RESTART_JOB)
    three = JobStatus(state=state, version=1, retry_count=3, min_available=2)
    assert RULES[P.RESTARTING].next_transition(job_view(job(status=three))) == Transition(
        to=P.FAILED, bumps_version=True
    )
    two = JobStatus(state=state, version=1, retry_count=2, min_available=2)
    assert final_phase(job_view(job(status=two), pod_info(terminating=True))) is None
    assert final_phase(job_view(job(status=two))) == P.PENDING


def test_job_scaled_down_while_stopped_is_not_blocked() -> None:
    state = JobState(phase=P.RESTARTING, reason=A.RESUME_JOB)
    smaller = job(task(replicas=1), status=JobStatus(state=state, version=1, min_available=3))
    assert final_phase(job_view(smaller)) == P.PENDING
    assert final_phase(job_view(smaller, pod_info(terminating=True))) is None


def test_a_resume_costs_no_retry_and_never_fails_the_job() -> None:
    state = JobState(phase=P.RESTARTING, reason=A.RESUME_JOB)
    used_up = JobStatus(state=state, version=1, retry_count=3, min_available=2)
    assert final_phase(job_view(job(status=used_up))) == P.PENDING
