"""The order in which pods are deleted."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.children import Pod

from batholith.machinery.pod_ranking import deletion_order
from batholith.model import times

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_names = iter(range(10**9))


def at(age: float) -> str:
    return times.format(NOW - timedelta(seconds=age))


def ranked(
    *,
    node: str = "node-1",
    phase: str = "Running",
    ready: bool | None = True,
    ready_age: float | None = 100,
    restarts: int = 0,
    sidecar_restarts: int = 0,
    init_restarts: int = 0,
    age: float | None = 1000,
    name: str = "",
) -> Pod:
    """Return a pod, by default one that is ready."""
    metadata: dict[str, Any] = {"name": name or f"pod-{next(_names)}"}
    if age is not None:
        metadata["creationTimestamp"] = at(age)
    condition: dict[str, Any] = {"type": "Ready", "status": str(ready)}
    if ready_age is not None:
        condition["lastTransitionTime"] = at(ready_age)
    body = {
        "metadata": metadata,
        "spec": {
            "nodeName": node,
            "initContainers": [{"name": "init"}, {"name": "proxy", "restartPolicy": "Always"}],
        },
        "status": {
            "phase": phase,
            "conditions": [] if ready is None else [condition],
            "containerStatuses": [
                {"name": "first", "restartCount": 0},
                {"name": "main", "restartCount": restarts},
            ],
            "initContainerStatuses": [
                {"name": "init", "restartCount": init_restarts},
                {"name": "proxy", "restartCount": sidecar_restarts},
            ],
        },
    }
    return msgspec.convert(body, Pod)


def first_of(*pods: Pod) -> Pod:
    forwards = deletion_order(pods)
    assert forwards == deletion_order(reversed(pods))
    return forwards[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"node": "", "ready": False, "phase": "Pending"}, {"ready": False, "phase": "Pending"}),
        ({"phase": "Pending", "age": 9}, {"phase": "Unknown", "age": 1}),
        ({"phase": "Unknown"}, {"phase": "Running", "ready": False}),
        ({"ready": False, "restarts": 0}, {"ready": True, "restarts": 9}),
        ({"ready": None}, {"ready": True}),
        ({"ready_age": None}, {"ready_age": 1}),
        ({"ready_age": 10, "restarts": 0}, {"ready_age": 11, "restarts": 9}),
        ({"restarts": 2, "sidecar_restarts": 0}, {"restarts": 1, "sidecar_restarts": 9}),
        ({"sidecar_restarts": 1, "age": 9}, {"sidecar_restarts": 0, "age": 1}),
        ({"age": 1}, {"age": 2, "init_restarts": 9}),
        ({"age": None}, {"age": 1}),
        ({"ready": False, "ready_age": 20, "restarts": 1}, {"ready": False, "ready_age": 10}),
        ({"name": "pod-a"}, {"name": "pod-b"}),
    ],
)
def test_rules_in_their_order(first: dict[str, Any], second: dict[str, Any]) -> None:
    one, other = ranked(**first), ranked(**second)
    assert first_of(one, other) is one


def test_malformed_time_counts_as_missing() -> None:
    broken = msgspec.structs.replace(
        ranked(),
        metadata=msgspec.structs.replace(ranked().metadata, creation_timestamp="yesterday"),
    )
    assert first_of(broken, ranked(age=0)) is broken


PODS = st.builds(
    ranked,
    node=st.sampled_from(["", "node-1", "node-2"]),
    phase=st.sampled_from(["Pending", "Running", "Unknown", "Succeeded", "Other"]),
    ready=st.sampled_from([True, False, None]),
    ready_age=st.sampled_from([None, 1.0, 5.0, 6.0]),
    restarts=st.integers(0, 2),
    sidecar_restarts=st.integers(0, 1),
    age=st.sampled_from([None, 10.0, 20.0, 21.0]),
)


def precedes(one: Pod, other: Pod) -> bool:
    return deletion_order([other, one])[0] is one


@given(pods=st.lists(PODS, min_size=3, max_size=3))
def test_inv_rk_1_order_is_a_strict_weak_order(pods: list[Pod]) -> None:
    """INV-RK-1."""
    a, b, c = pods
    assert precedes(a, b) != precedes(b, a)
    if precedes(a, b) and precedes(b, c):
        assert precedes(a, c)


def _is_ready(pod: Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)


def _first_rules(pod: Pod) -> tuple[bool, int, bool]:
    phases = {"Pending": 0, "Unknown": 1, "Running": 2}
    return bool(pod.spec.node_name), phases.get(pod.status.phase, 0), _is_ready(pod)


@given(pods=st.lists(PODS, max_size=8), count=st.integers(0, 8))
def test_inv_rk_2_kept_pods_are_at_least_as_useful(pods: list[Pod], count: int) -> None:
    """INV-RK-2."""
    ordered = deletion_order(pods)
    assert all(_first_rules(one) <= _first_rules(two) for one, two in pairwise(ordered))
    deleted, kept = ordered[:count], ordered[count:]
    for one in deleted:
        assert not any(_first_rules(two) < _first_rules(one) for two in kept)
