"""What a pod shows and what it needs next, told by events alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent import BACK_OFF, START, Story, after, container, manifest, pod_of

from batholith.agent.state.pod_actions import (
    DeadlineExceeded,
    FinalizePod,
    StartContainer,
    StopContainer,
)
from batholith.agent.state.status import (
    BackOff,
    Event,
    Exited,
    PodTermination,
    ProbeFailed,
    ProbeResult,
    Started,
    StartFailed,
    phase_of,
    state_from_status,
)
from batholith.model.pod import FINISHED


def conditions(story: Story) -> dict[str, str]:
    return {one["type"]: one["status"] for one in story.status()["conditions"]}


def ran(code: int, *, name: str = "c", begin: float = 0, end: float = 1) -> tuple[Event, Event]:
    return Started(name, after(begin)), Exited(name, after(end), code)


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        ("Never", 0, "Succeeded"),
        ("Never", 3, "Failed"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 3, "Running"),
        ("Always", 0, "Running"),
        ("Always", 3, "Running"),
    ],
)
def test_the_phase_after_the_end_follows_the_restart_policy(
    policy: str, code: int, phase: str
) -> None:
    story = Story(pod_of(manifest(restartPolicy=policy)), *ran(code))
    assert story.status()["phase"] == phase


def test_a_pod_is_pending_until_each_container_ran_and_running_while_one_does() -> None:
    story = Story(pod_of(manifest("p", container(name="a"), container(name="b"))))
    assert story.status()["phase"] == "Pending"
    story.tell(Started("a", START))
    assert story.status()["phase"] == "Pending"
    story.tell(Started("b", START), Exited("a", after(1), 0))
    assert story.status()["phase"] == "Running"


def test_a_finished_container_says_how_it_ended() -> None:
    status = Story(pod_of(manifest(restartPolicy="Never")), *ran(143)).status()
    shown = status["containerStatuses"][0]
    assert shown["state"] == {
        "terminated": {
            "exitCode": 143,
            "reason": "Error",
            "startedAt": "2026-01-02T03:04:05Z",
            "finishedAt": "2026-01-02T03:04:06Z",
        }
    }
    assert (shown["ready"], shown["restartCount"]) == (False, 0)
    conditions = {c["type"]: (c["status"], c.get("reason")) for c in status["conditions"]}
    assert conditions["Ready"] == ("False", "PodFailed")
    assert conditions["Initialized"] == ("True", None)
    assert status["podIP"] == "127.64.0.9"


def test_restarts_come_at_once_then_after_10_20_40_up_to_300_seconds() -> None:
    story = Story(pod_of(manifest(restartPolicy="OnFailure")))
    time, waits = 0.0, []
    for _ in range(8):
        story.tell(*ran(1, begin=time, end=time + 1))
        time += 1
        due = story.due(time)
        wait = (due.wake_at - after(time)).total_seconds() if due.wake_at else 0.0
        assert bool(due.actions) == (wait == 0)
        waits.append(wait)
        time += wait
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    shown = story.status()["containerStatuses"][0]
    assert shown["restartCount"] == 7
    assert shown["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert shown["state"]["waiting"]["message"].startswith("back-off 5m0s restarting failed")
    assert shown["lastState"]["terminated"]["exitCode"] == 1


def test_a_long_run_starts_the_back_off_afresh() -> None:
    story = Story(pod_of(manifest()), *ran(1), *ran(1, begin=1, end=2))
    assert not story.due(2).actions
    story.tell(*ran(1, begin=12, end=612))
    assert story.due(612).actions == (StartContainer("c"),)


def test_init_containers_run_in_order_before_the_others() -> None:
    inits = [container(name="i1"), container(name="i2")]
    story = Story(pod_of(manifest(initContainers=inits, restartPolicy="Never")))
    assert story.due().actions == (StartContainer("i1"),)
    assert story.status()["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"
    story.tell(*ran(0, name="i1"))
    assert story.due(1).actions == (StartContainer("i2"),)
    assert story.status()["phase"] == "Pending"
    story.tell(*ran(0, name="i2"))
    assert story.due(1).actions == (StartContainer("c"),)


def test_a_failed_init_container_fails_the_pod_only_where_nothing_restarts() -> None:
    inits = [container(name="i")]
    never = Story(pod_of(manifest(restartPolicy="Never", initContainers=inits)), *ran(1, name="i"))
    assert (never.status()["phase"], never.due(1).actions) == ("Failed", (FinalizePod(),))
    always = Story(pod_of(manifest(initContainers=inits)), *ran(1, name="i"))
    assert (always.status()["phase"], always.due(1).actions) == ("Pending", (StartContainer("i"),))


def test_a_sidecar_starts_first_stays_up_and_is_stopped_last() -> None:
    sidecar = container(name="s", restartPolicy="Always")
    pod = pod_of(manifest(initContainers=[sidecar], restartPolicy="Never"))
    story = Story(pod)
    assert story.due().actions == (StartContainer("s"),)
    story.tell(Started("s", START))
    assert story.due().actions == (StartContainer("c"),)
    story.tell(*ran(0))
    assert story.status()["phase"] == "Succeeded"
    assert story.due(1).actions == (StopContainer("s", after(31)),)
    story.tell(Exited("s", after(2), 143))
    assert story.status()["phase"] == "Succeeded"
    assert story.due(2).actions == (FinalizePod(),)


def test_a_sidecar_lets_others_start_once_its_own_start_went_well() -> None:
    probed = {"exec": {"command": ["true"]}}
    side = container(name="side", restartPolicy="Always", startupProbe=probed)
    pod = pod_of(manifest("p", container("x"), initContainers=[side]))
    story = Story(pod, Started("side", START, started=False, ready=False))
    assert story.due().actions == ()
    assert story.status()["initContainerStatuses"][0]["started"] is False
    story.tell(ProbeResult("side", started=True, ready=False))
    assert story.due().actions == (StartContainer("c"),)
    assert conditions(story)["Initialized"] == "True"


def test_a_container_is_ready_as_its_probe_says_and_only_while_it_runs() -> None:
    story = Story(pod_of(manifest()), Started("c", START, started=False, ready=False))
    assert story.status()["phase"] == "Running"
    assert conditions(story)["Ready"] == "False"
    story.tell(ProbeResult("c", started=True, ready=True))
    assert conditions(story)["Ready"] == "True"
    story.tell(Exited("c", after(1), 1), ProbeResult("c", started=True, ready=True))
    assert conditions(story)["Ready"] == "False"


def test_a_container_that_is_unwell_is_stopped_once_and_starts_afresh() -> None:
    story = Story(pod_of(manifest()), Started("c", START), ProbeFailed("c", after(30)))
    story.tell(ProbeFailed("c", after(60)))
    assert story.due().actions == (StopContainer("c", after(30)),)
    story.tell(Exited("c", after(2), 143))
    assert story.due(2).actions == (StartContainer("c"),)
    story.tell(Started("c", after(3)))
    assert story.due(3).actions == ()


def test_a_deadline_ends_the_pod_for_its_reason() -> None:
    story = Story(pod_of(manifest(activeDeadlineSeconds=5)), Started("c", START))
    assert story.due(4).wake_at == after(5)
    (expire,) = story.due(5).actions
    assert isinstance(expire, DeadlineExceeded)
    story.tell(expire.termination)
    assert story.due(5).actions == (StopContainer("c", after(35)),)
    story.tell(Exited("c", after(6), 0))
    assert (story.status()["phase"], story.status()["reason"]) == ("Failed", "DeadlineExceeded")


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (143, "Failed")])
def test_a_deleted_pod_ends_by_its_exit_codes_whatever_its_policy(code: int, phase: str) -> None:
    story = Story(
        pod_of(manifest()), Started("c", START), PodTermination(at=after(1), grace_period=30)
    )
    assert story.status()["phase"] == "Running"
    assert story.due(1).actions == (StopContainer("c", after(31)),)
    story.tell(Exited("c", after(2), code))
    assert story.status()["phase"] == phase
    assert story.due(2).actions == (FinalizePod(),)


def test_a_second_deletion_may_shorten_the_grace_but_not_lengthen_it() -> None:
    story = Story(
        pod_of(manifest()), Started("c", START), PodTermination(at=after(1), grace_period=30)
    )
    story.tell(PodTermination(at=after(3), grace_period=1))
    assert story.due(3).actions == (StopContainer("c", after(4)),)
    story.tell(PodTermination(at=after(3), grace_period=90))
    assert story.due(3).actions == (StopContainer("c", after(4)),)


def test_a_pod_deleted_before_it_ran_fails_and_says_that_nothing_was_found() -> None:
    story = Story(pod_of(manifest()), PodTermination(at=after(1), grace_period=30))
    assert story.due(1).actions == (FinalizePod(),)
    status = story.status()
    assert status["phase"] == "Failed"
    shown = status["containerStatuses"][0]["state"]["terminated"]
    assert (shown["exitCode"], shown["reason"]) == (137, "ContainerStatusUnknown")


def test_what_keeps_a_container_from_starting_is_shown() -> None:
    blocked = StartFailed("c", "CreateContainerConfigError", 'configmap "x" not found')
    waiting = Story(pod_of(manifest()), blocked).status()["containerStatuses"][0]["state"]
    assert waiting == {
        "waiting": {"reason": "CreateContainerConfigError", "message": 'configmap "x" not found'}
    }


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    text = manifest() | {
        "status": {
            "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "2025-01-01T00:00:00Z"},
                {
                    "type": "Initialized",
                    "status": "False",
                    "lastTransitionTime": "2025-01-01T00:00:00Z",
                },
            ]
        }
    }
    times = {c["type"]: c["lastTransitionTime"] for c in Story(pod_of(text)).status()["conditions"]}
    assert times["Ready"] == "2025-01-01T00:00:00Z"
    assert times["Initialized"] == "2026-01-02T03:20:45Z"


@given(
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    codes=st.lists(st.sampled_from([0, 1]), min_size=1, max_size=6),
)
def test_what_is_shown_is_enough_to_go_on_from(policy: str, codes: list[int]) -> None:
    """Phase, restart count and whether a start is due survive the way through the API."""
    story = Story(pod_of(manifest(restartPolicy=policy)))
    for code in codes:
        if phase_of(story.pod, story.state) in FINISHED:
            break
        story.tell(*ran(code))
    shown = story.status()
    again = Story(pod_of(manifest(restartPolicy=policy) | {"status": shown}))
    again.state = state_from_status(again.pod)
    assert again.status()["phase"] == shown["phase"]
    assert again.due(2000).actions == story.due(2000).actions
    counts = [s.status()["containerStatuses"][0]["restartCount"] for s in (story, again)]
    assert counts[0] == counts[1]


@given(st.integers(1, 200))
def test_the_back_off_never_shrinks_nor_exceeds_its_cap(streak: int) -> None:
    back_off = BackOff(initial_delay=10, max_delay=300)
    assert back_off.delay(streak) <= back_off.delay(streak + 1) <= BACK_OFF.max_delay
