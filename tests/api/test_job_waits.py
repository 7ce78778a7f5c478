"""The reason why a job waits, and its timeline: tables over statuses."""

import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.api.jobs.explanations import decode_explanation
from batholith.api.jobs.kinds import BATCH, KINDS, VOLCANO, JobKind
from batholith.api.jobs.pod_views import JobPod
from batholith.api.jobs.timeline import pods_by_phase, timeline
from batholith.api.jobs.waits import WaitView, described_podgroup, explain_wait
from batholith.model.job import JobPhase
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.scheduler.framework.explanations import GangExplanation
from batholith.scheduler.state.gangs.diagnosis import (
    BudgetUse,
    Diagnosis,
    FitError,
    NearestNode,
    NodeFit,
    Shortage,
    Stage,
)
from batholith.scheduler.state.gangs.start_estimate import StartBasis, StartEstimate
from batholith.wire.jobs import Explanation, JobKindName, WaitReason

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
OPEN = {"metadata": {"name": "default"}, "status": {"state": "Open"}}
WHY = '{"stage":"quota","message":"no quota left"}'
PYTORCH = KINDS[JobKindName.PYTORCHJOBS]


def wait_of(
    status: dict[str, Any],
    *,
    podgroup: dict[str, Any] | None = None,
    why: str = "",
    queue: dict[str, Any] | None = OPEN,
    kind: JobKind = VOLCANO,
    **spec: Any,
) -> tuple[bool, str, str]:
    """Whether the job waits, the reason, and the summary."""
    volcano = {"queue": "default", "tasks": [{"name": "w", "replicas": 2}]}
    meta = {"name": "train", "uid": "u", **spec.pop("metadata", {})}
    body = {"metadata": meta, "spec": (volcano if kind is VOLCANO else {}) | spec, "status": status}
    groups = []
    if podgroup is not None:
        annotations = {"batholith.io/why": why} if why else {}
        created = {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations}
        groups.append(msgspec.convert({"metadata": created, "status": podgroup}, PodGroup))
    view = WaitView(
        job=kind.summarize(msgspec.convert(body, kind.view)),
        podgroups=tuple(groups),
        queue=msgspec.convert(queue, Queue) if queue is not None else None,
        now=NOW,
    )
    found = explain_wait(view)
    return found.waiting, found.reason, found.summary


def state(phase: str, **more: Any) -> dict[str, Any]:
    return {"state": {"phase": phase, **more}}


UNSCHEDULABLE = [
    {"type": "Scheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
    {
        "type": "Unschedulable",
        "status": "True",
        "message": "too big",
        "lastTransitionTime": "2026-01-01T00:00:02Z",
    },
]


@pytest.mark.parametrize(
    ("arguments", "waiting", "reason", "text"),
    [
        ({"status": state("Completed")}, False, "Finished", "Completed"),
        (
            {"status": state("Failed", reason="PodsFailed", message="1 of 1 pods failed: w-0")},
            False,
            "Finished",
            "the job has finished: Failed: 1 of 1 pods failed: w-0",
        ),
        (
            {
                "status": state("Running"),
                "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            },
            False,
            "Deleting",
            "deleted",
        ),
        ({"status": state("Aborting") | {"terminating": 2}}, False, "Stopping", "2 of its pods"),
        ({"status": state("Pending"), "suspend": True}, True, "Suspended", "is held"),
        ({"status": state("Aborted")}, True, "Aborted", "is held"),
        ({"status": state("Restarting")}, True, "Restarting", "restarts"),
        ({"status": state("Running")}, False, "NotWaiting", "the job runs"),
        ({"status": state("Running") | {"pending": 1}}, False, "NotWaiting", "1 are pending"),
        (
            {"status": state("Running"), "podgroup": {"phase": "Unknown"}, "why": WHY},
            True,
            "Unschedulable",
            "no quota left",
        ),
        ({"status": {}}, True, "NoPodGroup", "does not exist yet"),
        ({"status": {}, "queue": None}, True, "QueueNotFound", "'default' does not exist"),
        (
            {"status": {}, "queue": {"status": {"state": "Closing"}}},
            True,
            "QueueNotOpen",
            "is Closing",
        ),
        ({"status": {}, "queue": {}}, True, "NoPodGroup", ""),
        (
            {"status": state("Pending", reason="PVCError", message="no claim"), "podgroup": {}},
            True,
            "Blocked",
            "no claim",
        ),
        (
            {"status": state("Pending", reason="RestartJob", message="done"), "podgroup": {}},
            True,
            "NotReported",
            "since 60 s, and no scheduler (volcano) has reported",
        ),
        ({"status": {}, "podgroup": {"phase": "Pending"}}, True, "NotReported", "60 s"),
        (
            {"status": {}, "podgroup": {"phase": "Pending"}, "why": WHY},
            True,
            "Unschedulable",
            "no quota left",
        ),
        (
            {"status": {}, "podgroup": {"phase": "Inqueue", "conditions": UNSCHEDULABLE}},
            True,
            "Unschedulable",
            "too big",
        ),
        (
            {"status": {}, "podgroup": {"phase": "Inqueue", "conditions": UNSCHEDULABLE[:1]}},
            True,
            "Starting",
            "Inqueue: 0 of 2 pods exist",
        ),
        (
            {"status": {"pending": 1, "running": 1}, "podgroup": {"phase": "Running"}},
            True,
            "Starting",
            "2 of 2 pods exist, 1 run",
        ),
        ({"status": {}, "podgroup": {"phase": "Pending"}, "why": "junk"}, True, "NotReported", ""),
        ({"status": {"active": 1}, "kind": BATCH}, True, "NoGang", "one by one"),
        (
            {"status": {"active": 1, "ready": 1}, "kind": BATCH},
            False,
            "NotWaiting",
            "the job runs",
        ),
    ],
)
def test_reasons(arguments: dict[str, Any], waiting: bool, reason: str, text: str) -> None:
    found = wait_of(**arguments)
    assert found[:2] == (waiting, reason)
    assert text in found[2]


@given(
    phase=st.sampled_from(["", "?", *JobPhase]),
    podgroup=st.none()
    | st.fixed_dictionaries({"phase": st.sampled_from(["", "Pending", "Running"])}),
    why=st.sampled_from(["", WHY, "{", "[]", '{"stage":1}']),
    queue=st.sampled_from([None, OPEN, {}]),
    suspend=st.booleans(),
)
def test_every_state_has_a_reason(
    phase: str, podgroup: Any, why: str, queue: Any, suspend: bool
) -> None:
    found = wait_of(state(phase), podgroup=podgroup, why=why, queue=queue, suspend=suspend)
    assert found[1] in set(WaitReason)
    assert found[2]


def described_pod(
    name: str = "p",
    *,
    node: str = "",
    phase: str = "Pending",
    why: str = "",
    message: str = "",
    native: bool = False,
) -> JobPod:
    """A pod without a PodGroup, created at second 0, or later by the number in its name."""
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}]
    described = '{"spec":{"minMember":1,"queue":"default"}}'
    annotations = {
        "scheduling.k8s.io/group-name": "train-u",
        **({} if native else {"batholith.io/podgroup": described}),
        **({"batholith.io/why": why} if why else {}),
    }
    meta = {"name": name, "creationTimestamp": f"2026-01-01T00:00:0{len(name)}Z"}
    status = {"phase": phase, "conditions": conditions if message else []}
    group = {"podGroupName": "train-u"} if native else None
    spec = {"nodeName": node, "schedulingGroup": group}
    body = {"metadata": meta | {"annotations": annotations}, "spec": spec}
    return msgspec.convert(body | {"status": status}, JobPod)


@pytest.mark.parametrize(
    ("pods", "reason", "text"),
    [
        ([described_pod()], "NotReported", "no scheduler"),
        ([described_pod(message="full")], "Unschedulable", "full"),
        ([described_pod(message="full", why=WHY)], "Unschedulable", "no quota left"),
        ([described_pod(why=WHY, node="n")], "Starting", "Running"),
        ([described_pod(phase="Failed", why=WHY), described_pod("pp")], "NotReported", "default"),
        ([described_pod(why=WHY), described_pod("pp", node="n")], "Starting", "Running"),
        ([described_pod(message="full", why=WHY, native=True)], "Unschedulable", "no quota left"),
        ([described_pod(phase="Failed")], "NoPodGroup", "does not exist"),
        ([], "NoPodGroup", "does not exist"),
    ],
)
def test_a_job_without_a_podgroup_waits_for_what_its_pod_reports(
    pods: list[JobPod], reason: str, text: str
) -> None:
    volcano = {"queue": "default", "tasks": [{"name": "w", "replicas": 1}]}
    body = {"metadata": {"name": "train", "uid": "u"}, "spec": volcano, "status": state("Pending")}
    group = described_podgroup(pods)
    view = WaitView(
        job=VOLCANO.summarize(msgspec.convert(body, VOLCANO.view)),
        podgroups=() if group is None else (group,),
        queue=msgspec.convert(OPEN, Queue),
        now=NOW,
    )
    found = explain_wait(view)
    assert (found.waiting, found.reason) == (True, reason)
    assert text in found.summary


def test_the_status_of_the_job_explains_if_its_pods_cannot_be_read() -> None:
    found = wait_of(state("Pending", reason="PodGroupPending", message="full"))
    assert found == (True, "Unschedulable", "full")


def test_explanations_of_the_scheduler_are_decoded() -> None:
    """What the scheduler writes is read without loss."""
    fit = NodeFit("m", 3, {"a": 1}, NearestNode("n1", {"cpu": (5000, 4000)}, "why"))
    owners = {"queue": "research", "resource_quota": "alice"}
    shortages = (Shortage("memory", 10, 20, 15, factor=1.5, **owners),)
    error = FitError("train-w-0", "u", "m", Stage.NODES, fit, shortages)
    budget = BudgetUse("default", "cpu", used=2000, limit=1000, until=1_800_000_000.0)
    diagnosis = Diagnosis(
        "NotEnough", fit_errors={"w": error}, fitting_uids=frozenset("x"), budget=budget
    )
    start = StartEstimate(
        1_800_000_000.0,
        1_800_000_600.0,
        StartBasis.LIMITS,
        expected=1_800_000_300.0,
        since=1_800_000_000.0,
    )
    written = GangExplanation(
        diagnosis, error, "2 pods", "default", 4, 3, 1, position=2, waiting=9, start=start
    ).encode()
    found = decode_explanation(written)
    assert found is not None
    sent = msgspec.json.encode(found).replace(b"overcommit_factor", b"overcommitFactor")
    sent = sent.replace(b"resource_quota", b"resourceQuota")
    assert msgspec.json.decode(sent) == msgspec.json.decode(written)


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_annotations_of_users_are_no_error(text: str) -> None:
    found = decode_explanation(text)
    assert found is None or isinstance(found, Explanation)
    assert decode_explanation("[" * 10_000) is None
    assert decode_explanation(f'{{"stage":"{"x" * 20_000}"}}') is None


def entries(kind: JobKind, status: dict[str, Any], **spec: Any) -> list[tuple[str, ...]]:
    meta = {"name": "train", "creationTimestamp": "t0"}
    text = msgspec.json.encode({"metadata": meta, "spec": spec, "status": status}).decode()
    text = re.sub('"t([0-9])"', r'"2026-01-01T00:00:0\1Z"', text)
    job: Any = msgspec.json.decode(text, type=kind.view)
    return [
        (each.phase, _short(each.entered_at), _short(each.left_at), each.reason)
        for each in timeline(job, kind.summarize(job))
    ]


def _short(time: datetime | None) -> str:
    """``t3`` for the third second."""
    return "" if time is None else f"t{time.second}"


def volcano(*phases: tuple[str, str], version: int = 0, **state: str) -> dict[str, Any]:
    return {
        "state": {"phase": phases[-1][0], "lastTransitionTime": phases[-1][1], **state},
        "version": version,
        "conditions": [{"status": phase, "lastTransitionTime": at} for phase, at in phases],
    }


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        (VOLCANO, {}, [("Pending", "t0", "", "")]),
        (
            VOLCANO,
            volcano(("Pending", "t1"), ("Running", "t2"), reason="r"),
            [("Pending", "t1", "t2", ""), ("Running", "t2", "", "r")],
        ),
        (
            VOLCANO,
            volcano(("Pending", "t1"), ("Running", "t2"), ("Restarting", "t3"), version=1),
            [
                ("Pending", "t1", "t2", ""),
                ("Running", "t2", "t3", ""),
                ("Restarting", "t3", "", ""),
            ],
        ),
        (  # The first Running was replaced by the second: Pending was not left at t3.
            VOLCANO,
            volcano(("Pending", "t1"), ("Restarting", "t3"), ("Running", "t4"), version=1),
            [
                ("Pending", "t1", "", ""),
                ("Restarting", "t3", "t4", ""),
                ("Running", "t4", "", ""),
            ],
        ),
        (VOLCANO, volcano(("Odd", "t1")), [("Unknown", "t1", "", "")]),
        (
            BATCH,
            {
                "succeeded": 1,
                "conditions": [
                    {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": "t2"},
                    {
                        "type": "Complete",
                        "status": "True",
                        "lastTransitionTime": "t3",
                        "reason": "CompletionsReached",
                    },
                ],
            },
            [
                ("Pending", "t0", "", ""),
                ("Running", "", "t2", ""),
                ("Completing", "t2", "t3", ""),
                ("Completed", "t3", "", "CompletionsReached"),
            ],
        ),
        (
            BATCH,
            {
                "active": 1,
                "ready": 1,
                "conditions": [
                    {"type": "Suspended", "status": "False", "lastTransitionTime": "t2"}
                ],
            },
            [("Pending", "t0", "", ""), ("Suspended", "", "t2", ""), ("Running", "", "", "")],
        ),
        (
            PYTORCH,
            {
                "conditions": [
                    {"type": "Created", "status": "True", "lastTransitionTime": "t1"},
                    {"type": "Running", "status": "False", "lastTransitionTime": "t3"},
                    {
                        "type": "Succeeded",
                        "status": "True",
                        "lastTransitionTime": "t3",
                        "reason": "Done",
                    },
                ]
            },
            [
                ("Pending", "t1", "", ""),
                ("Running", "", "t3", ""),
                ("Completed", "t3", "", "Done"),
            ],
        ),
    ],
)
def test_timelines(kind: JobKind, status: dict[str, Any], expected: list[tuple[str, ...]]) -> None:
    assert entries(kind, status) == expected


@given(
    st.lists(
        st.tuples(st.sampled_from(list(JobPhase)), st.integers(0, 9)),
        max_size=6,
        unique_by=lambda pair: pair[0],
    ),
    st.integers(0, 3),
)
def test_the_current_phase_is_the_last_one_and_open(pairs: list[Any], version: int) -> None:
    phases = [(phase, f"t{at}") for phase, at in sorted(pairs, key=lambda pair: pair[1])]
    if not phases:
        return
    found = entries(VOLCANO, volcano(*phases, version=version))
    assert found[-1][:3] == (*phases[-1], "")
    assert [each[0] for each in found] == [phase for phase, _ in phases]
    for entry, following in pairwise(found):
        assert entry[2] in ("", following[1])


def test_pods_are_counted_over_all_tasks() -> None:
    status = {
        "taskStatusCount": {
            "a": {"phase": {"Running": 1, "Pending": 2}},
            "b": {"phase": {"Running": 3}},
        }
    }
    spec = {"tasks": [{"name": "a"}, {"name": "b"}]}
    job: Any = msgspec.convert({"spec": spec, "status": status}, VOLCANO.view)
    assert pods_by_phase(VOLCANO.summarize(job)) == {"Pending": 2, "Running": 4}
