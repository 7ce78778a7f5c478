"""Status and next actions of a pod, from events alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent import BACKOFF, START, PodStatusSimulator, after, container, decode_pod, manifest

from batholith.local.agent.state.pod_actions import (
    DeadlineExceeded,
    FinalizePod,
    RestartAll,
    StartContainer,
    StopContainer,
)
from batholith.local.agent.state.status import (
    AllRestarted,
    BackOff,
    Event,
    Exited,
    PodTermination,
    ProbeFailed,
    ProbeResult,
    Started,
    StartFailed,
    phase_of,
)
from batholith.local.agent.state.status_reader import state_from_status
from batholith.model.pod import FINISHED


def conditions(story: PodStatusSimulator) -> dict[str, str]:
    return {one["type"]: one["status"] for one in story.status()["conditions"]}


def terminated_state(
    code: int, *, name: str = "c", begin: float = 0, end: float = 1
) -> tuple[Event, Event]:
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
def test_final_phase_follows_the_restart_policy(policy: str, code: int, phase: str) -> None:
    story = PodStatusSimulator(decode_pod(manifest(restartPolicy=policy)), *terminated_state(code))
    assert story.status()["phase"] == phase


def test_a_pod_is_pending_until_each_container_ran_and_running_while_one_does() -> None:
    story = PodStatusSimulator(decode_pod(manifest("p", container(name="a"), container(name="b"))))
    assert story.status()["phase"] == "Pending"
    story.apply(Started("a", START))
    assert story.status()["phase"] == "Pending"
    story.apply(Started("b", START), Exited("a", after(1), 0))
    assert story.status()["phase"] == "Running"


def test_terminated_state_reports_the_exit() -> None:
    status = PodStatusSimulator(
        decode_pod(manifest(restartPolicy="Never")), *terminated_state(143)
    ).status()
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


def test_restart_delays_are_0_then_10_20_40_up_to_300_seconds() -> None:
    story = PodStatusSimulator(decode_pod(manifest(restartPolicy="OnFailure")))
    time, waits = 0.0, []
    for _ in range(8):
        story.apply(*terminated_state(1, begin=time, end=time + 1))
        time += 1
        due = story.next_actions(time)
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


def test_long_run_resets_the_backoff() -> None:
    story = PodStatusSimulator(
        decode_pod(manifest()), *terminated_state(1), *terminated_state(1, begin=1, end=2)
    )
    assert not story.next_actions(2).actions
    story.apply(*terminated_state(1, begin=12, end=612))
    assert story.next_actions(612).actions == (StartContainer("c"),)


def test_init_containers_run_in_order_before_the_others() -> None:
    inits = [container(name="i1"), container(name="i2")]
    story = PodStatusSimulator(decode_pod(manifest(initContainers=inits, restartPolicy="Never")))
    assert story.next_actions().actions == (StartContainer("i1"),)
    for kind in ("initContainerStatuses", "containerStatuses"):
        waiting = [each["state"]["waiting"]["reason"] for each in story.status()[kind]]
        assert set(waiting) == {"PodInitializing"}
    story.apply(*terminated_state(0, name="i1"))
    assert story.next_actions(1).actions == (StartContainer("i2"),)
    assert story.status()["phase"] == "Pending"
    story.apply(*terminated_state(0, name="i2"))
    assert story.next_actions(1).actions == (StartContainer("c"),)


def test_failed_init_container_fails_the_pod_only_without_restarts() -> None:
    inits = [container(name="i")]
    never = PodStatusSimulator(
        decode_pod(manifest(restartPolicy="Never", initContainers=inits)),
        *terminated_state(1, name="i"),
    )
    assert (never.status()["phase"], never.next_actions(1).actions) == ("Failed", (FinalizePod(),))
    always = PodStatusSimulator(
        decode_pod(manifest(initContainers=inits)), *terminated_state(1, name="i")
    )
    assert (always.status()["phase"], always.next_actions(1).actions) == (
        "Pending",
        (StartContainer("i"),),
    )


def test_a_sidecar_starts_first_stays_up_and_is_stopped_last() -> None:
    sidecar = container(name="s", restartPolicy="Always")
    pod = decode_pod(manifest(initContainers=[sidecar], restartPolicy="Never"))
    story = PodStatusSimulator(pod)
    assert story.next_actions().actions == (StartContainer("s"),)
    story.apply(Started("s", START))
    assert story.next_actions().actions == (StartContainer("c"),)
    story.apply(*terminated_state(0))
    assert story.status()["phase"] == "Succeeded"
    assert story.next_actions(1).actions == (StopContainer("s", after(31)),)
    story.apply(Exited("s", after(2), 143))
    assert story.status()["phase"] == "Succeeded"
    assert story.next_actions(2).actions == (FinalizePod(),)


def test_next_container_starts_after_the_sidecar_has_started() -> None:
    probed = {"exec": {"command": ["true"]}}
    side = container(name="side", restartPolicy="Always", startupProbe=probed)
    pod = decode_pod(manifest("p", container("x"), initContainers=[side]))
    story = PodStatusSimulator(pod, Started("side", START, started=False, ready=False))
    assert story.next_actions().actions == ()
    assert story.status()["initContainerStatuses"][0]["started"] is False
    story.apply(ProbeResult("side", started=True, ready=False))
    assert story.next_actions().actions == (StartContainer("c"),)
    assert conditions(story)["Initialized"] == "True"


def test_container_is_ready_by_its_probe_and_only_while_running() -> None:
    story = PodStatusSimulator(
        decode_pod(manifest()), Started("c", START, started=False, ready=False)
    )
    assert story.status()["phase"] == "Running"
    assert conditions(story)["Ready"] == "False"
    story.apply(ProbeResult("c", started=True, ready=True))
    assert conditions(story)["Ready"] == "True"
    story.apply(Exited("c", after(1), 1), ProbeResult("c", started=True, ready=True))
    assert conditions(story)["Ready"] == "False"


def test_failed_probe_stops_the_container_once_and_restarts_it() -> None:
    story = PodStatusSimulator(
        decode_pod(manifest()), Started("c", START), ProbeFailed("c", after(30))
    )
    story.apply(ProbeFailed("c", after(60)))
    assert story.next_actions().actions == (StopContainer("c", after(30)),)
    story.apply(Exited("c", after(2), 143))
    assert story.next_actions(2).actions == (StartContainer("c"),)
    story.apply(Started("c", after(3)))
    assert story.next_actions(3).actions == ()


def test_active_deadline_terminates_the_pod_with_its_reason() -> None:
    story = PodStatusSimulator(decode_pod(manifest(activeDeadlineSeconds=5)), Started("c", START))
    assert story.next_actions(4).wake_at == after(5)
    (expire,) = story.next_actions(5).actions
    assert isinstance(expire, DeadlineExceeded)
    story.apply(expire.termination)
    assert story.next_actions(5).actions == (StopContainer("c", after(35)),)
    story.apply(Exited("c", after(6), 0))
    assert (story.status()["phase"], story.status()["reason"]) == ("Failed", "DeadlineExceeded")


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (143, "Failed")])
def test_phase_of_a_deleted_pod_follows_from_exit_codes(code: int, phase: str) -> None:
    story = PodStatusSimulator(
        decode_pod(manifest()), Started("c", START), PodTermination(at=after(1), grace_period=30)
    )
    assert story.status()["phase"] == "Running"
    assert story.next_actions(1).actions == (StopContainer("c", after(31)),)
    story.apply(Exited("c", after(2), code))
    assert story.status()["phase"] == phase
    assert story.next_actions(2).actions == (FinalizePod(),)


def test_second_deletion_may_only_shorten_the_grace_period() -> None:
    story = PodStatusSimulator(
        decode_pod(manifest()), Started("c", START), PodTermination(at=after(1), grace_period=30)
    )
    story.apply(PodTermination(at=after(3), grace_period=1))
    assert story.next_actions(3).actions == (StopContainer("c", after(4)),)
    story.apply(PodTermination(at=after(3), grace_period=90))
    assert story.next_actions(3).actions == (StopContainer("c", after(4)),)


def test_pod_deleted_before_it_ran_fails_with_unknown_container_status() -> None:
    story = PodStatusSimulator(decode_pod(manifest()), PodTermination(at=after(1), grace_period=30))
    assert story.next_actions(1).actions == (FinalizePod(),)
    status = story.status()
    assert status["phase"] == "Failed"
    shown = status["containerStatuses"][0]["state"]["terminated"]
    assert (shown["exitCode"], shown["reason"]) == (137, "ContainerStatusUnknown")


def test_start_failure_is_reported() -> None:
    blocked = StartFailed("c", "CreateContainerConfigError", 'configmap "x" not found')
    waiting = PodStatusSimulator(decode_pod(manifest()), blocked).status()["containerStatuses"][0][
        "state"
    ]
    assert waiting == {
        "waiting": {"reason": "CreateContainerConfigError", "message": 'configmap "x" not found'}
    }


def test_condition_keeps_its_transition_time() -> None:
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
    times = {
        c["type"]: c["lastTransitionTime"]
        for c in PodStatusSimulator(decode_pod(text)).status()["conditions"]
    }
    assert times["Ready"] == "2025-01-01T00:00:00Z"
    assert times["Initialized"] == "2026-01-02T03:20:45Z"


@given(
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    codes=st.lists(st.sampled_from([0, 1]), min_size=1, max_size=6),
)
def test_state_can_be_rebuilt_from_the_status(policy: str, codes: list[int]) -> None:
    """Phase, restart count and pending starts survive a round trip through the API."""
    story = PodStatusSimulator(decode_pod(manifest(restartPolicy=policy)))
    for code in codes:
        if phase_of(story.pod, story.state) in FINISHED:
            break
        story.apply(*terminated_state(code))
    shown = story.status()
    again = PodStatusSimulator(decode_pod(manifest(restartPolicy=policy) | {"status": shown}))
    again.state = state_from_status(again.pod)
    assert again.status()["phase"] == shown["phase"]
    assert again.next_actions(2000).actions == story.next_actions(2000).actions
    counts = [s.status()["containerStatuses"][0]["restartCount"] for s in (story, again)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("length", [200, 300])
def test_images_of_volumes_survive_a_round_trip_through_the_api(length: int) -> None:
    """With their digest alone if the API would not permit the whole name."""
    mounts = [{"name": "model", "mountPath": path} for path in ("/a", "/b")]
    mounts.append({"name": "other", "mountPath": "/c"})
    body = manifest("p", container("x", volumeMounts=mounts), restartPolicy="Never")
    digest = f"sha256:{'0' * 64}"
    name = f"{'n' * (length - len(digest) - 1)}@{digest}"
    started = Started("c", START, volume_images={"model": name})
    shown = PodStatusSimulator(decode_pod(body), started, Exited("c", after(1), 0)).status()
    again = PodStatusSimulator(decode_pod(body | {"status": shown}))
    again.state = state_from_status(again.pod)
    reference = {"volumeStatus": {"image": {"imageRef": name if length <= 256 else digest}}}
    expected = [*({**mount, **reference} for mount in mounts[:2]), mounts[2]]
    for status in (shown, again.status()):
        assert status["containerStatuses"][0]["volumeMounts"] == expected


@given(st.integers(1, 200))
def test_backoff_never_decreases_nor_exceeds_its_maximum(streak: int) -> None:
    back_off = BackOff(initial_delay=10, max_delay=300)
    assert back_off.delay(streak) <= back_off.delay(streak + 1) <= BACKOFF.max_delay


@pytest.mark.parametrize(
    ("policy", "own", "rules", "code", "restarts"),
    [
        ("Never", "", [], 3, False),
        ("Never", "OnFailure", [], 3, True),
        ("Never", "OnFailure", [], 0, False),
        ("Never", "Always", [], 0, True),
        ("Always", "Never", [], 3, False),
        ("Never", "Never", [("In", [3, 4])], 3, True),
        ("Never", "Never", [("In", [3, 4])], 5, False),
        ("Never", "Never", [("NotIn", [3])], 5, True),
        ("Never", "Never", [("NotIn", [3])], 3, False),
        ("Never", "Never", [("In", [1]), ("In", [0])], 0, True),
    ],
)
def test_rules_and_policy_of_a_container_precede_those_of_the_pod(
    policy: str, own: str, rules: list[tuple[str, list[int]]], code: int, restarts: bool
) -> None:
    more = {"restartPolicy": own} if own else {}
    listed = [
        {"action": "Restart", "exitCodes": {"operator": operator, "values": values}}
        for operator, values in rules
    ]
    text = manifest("p", container(**more, restartPolicyRules=listed), restartPolicy=policy)
    pod = PodStatusSimulator(decode_pod(text), Started("c", after(0)), Exited("c", after(1), code))
    assert (StartContainer("c") in pod.next_actions(1000).actions) is restarts
    final = "Succeeded" if code == 0 else "Failed"
    assert pod.status()["phase"] == ("Running" if restarts else final)


def test_an_init_container_with_its_own_policy_is_retried_or_fails_the_pod() -> None:
    for own, phase in (("OnFailure", "Pending"), ("Never", "Failed")):
        first = container(name="first", restartPolicy=own)
        opposite = {"OnFailure": "Never", "Never": "Always"}[own]
        text = manifest("p", container(), initContainers=[first], restartPolicy=opposite)
        pod = PodStatusSimulator(decode_pod(text), Started("first", after(0)))
        assert pod.apply(Exited("first", after(1), 1)).status()["phase"] == phase


def test_a_ready_pod_has_the_conditions_of_its_readiness_gates() -> None:
    text = manifest("p", container(), readinessGates=[{"conditionType": "a.io/b"}])

    def conditions(*stored: dict[str, str]) -> dict[str, tuple[str, str, str]]:
        decoded = decode_pod({**text, "status": {"conditions": list(stored)}})
        shown = PodStatusSimulator(decoded, Started("c", after(0))).status()["conditions"]
        return {
            each["type"]: (each["status"], each.get("reason", ""), each.get("message", ""))
            for each in shown
        }

    missing = 'corresponding condition of pod readiness gate "a.io/b" does not exist.'
    found = conditions()
    assert found["ContainersReady"][0] == "True"
    assert found["Ready"] == ("False", "ReadinessGatesNotReady", missing)
    unmet = 'the status of pod readiness gate "a.io/b" is not "True", but False'
    found = conditions({"type": "a.io/b", "status": "False"})
    assert found["Ready"] == ("False", "ReadinessGatesNotReady", unmet)
    assert "a.io/b" not in found
    assert conditions({"type": "a.io/b", "status": "True"})["Ready"] == ("True", "", "")


def restarting_all(*codes: int) -> list[dict[str, object]]:
    exit_codes = {"operator": "In", "values": list(codes)}
    return [{"action": "RestartAllContainers", "exitCodes": exit_codes}]


def test_an_exit_may_restart_all_containers_init_containers_first() -> None:
    main = container(name="m", restartPolicy="Never", restartPolicyRules=restarting_all(42))
    others = [container(name="i"), container(name="s", restartPolicy="Always")]
    pod = decode_pod(
        manifest("p", main, container(name="o"), initContainers=others, restartPolicy="Never")
    )
    story = PodStatusSimulator(pod, *terminated_state(0, name="i"))
    story.apply(Started("s", START), Started("m", START), Started("o", START))
    assert conditions(story)["AllContainersRestarting"] == "False"
    story.apply(Exited("m", after(5), 42))
    assert conditions(story)["AllContainersRestarting"] == "True"
    stops = story.next_actions(5).actions
    assert stops == (StopContainer("s", after(5)), StopContainer("o", after(5)))
    story.apply(Exited("s", after(6), 137), Exited("o", after(6), 137))
    assert story.status()["phase"] == "Running"
    assert story.next_actions(6).actions == (RestartAll(("m",)),)
    story.apply(AllRestarted())
    assert conditions(story)["AllContainersRestarting"] == "False"
    assert story.next_actions(6).actions == (StartContainer("i"),)
    story.apply(*terminated_state(0, name="i", begin=6, end=7))
    assert story.next_actions(7).actions == (StartContainer("s"),)
    story.apply(Started("s", after(7)))
    assert story.next_actions(7).actions == (StartContainer("m"), StartContainer("o"))
    story.apply(Started("m", after(7)), Started("o", after(7)), Exited("m", after(8), 1))
    counts = [each["restartCount"] for each in story.status()["containerStatuses"]]
    assert counts == [1, 1]
    assert story.next_actions(8).actions == ()


def test_a_pod_that_ends_is_not_restarted_as_a_whole() -> None:
    main = container(restartPolicy="Never", restartPolicyRules=restarting_all(42))
    story = PodStatusSimulator(decode_pod(manifest("p", main)), Started("c", START))
    story.apply(PodTermination(at=START, grace_period=5), Exited("c", after(1), 42))
    assert story.next_actions(1).actions == (FinalizePod(),)


def test_status_lists_the_mounts_of_a_container_that_waits_too() -> None:
    mounts = [
        {"name": "data", "mountPath": "/data"},
        {"name": "config", "mountPath": "/etc/app", "readOnly": True},
    ]
    pod = decode_pod(manifest("p", container("true", volumeMounts=mounts)))
    assert PodStatusSimulator(pod).status()["containerStatuses"][0]["volumeMounts"] == [
        {"name": "data", "mountPath": "/data"},
        {
            "name": "config",
            "mountPath": "/etc/app",
            "readOnly": True,
            "recursiveReadOnly": "Disabled",
        },
    ]
