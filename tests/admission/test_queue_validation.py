"""Defaulting and validation of queues."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.admission import ObjectReaderStub, admit, check, denial, queue, stored_spec

from batholith.admission import AdmissionSettings, queue_validation
from batholith.model.admission import DeniedError

Json = dict[str, Any]

PATH, WEIGHTS = "volcano.sh/hierarchy", "volcano.sh/hierarchy-weights"


def hierarchy(path: str, weights: str) -> Json:
    return {PATH: path, WEIGHTS: weights}


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ({}, {"reclaimable": True, "weight": 1}),
        ({"weight": 0}, {"reclaimable": True, "weight": 1}),
        ({"weight": 7, "reclaimable": False}, {"reclaimable": False, "weight": 7}),
        ({"weight": "much"}, {"reclaimable": True, "weight": "much"}),
    ],
)
def test_defaults(sent: Json, stored: Json) -> None:
    assert stored_spec(queue_validation.set_defaults(queue("q", **sent))) == stored


def test_a_queue_without_a_spec_gets_one() -> None:
    sent = {"kind": "Queue", "metadata": {"name": "q"}}
    assert admit(sent)["spec"] == {"reclaimable": True, "weight": 1}


@pytest.mark.parametrize(
    ("path", "rooted"),
    [("sci/dev", "root/sci/dev"), ("root/sci", "root/sci"), ("rootless/x", "root/rootless/x")],
)
def test_quirk_q13_a_hierarchy_starts_at_root(path: str, rooted: str) -> None:
    weights = "1/" * path.count("/") + "2"
    stored = admit(queue("q", annotations=hierarchy(path, weights)))["metadata"]["annotations"]
    assert stored[PATH] == rooted
    assert stored[WEIGHTS].count("/") == rooted.count("/")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"capability": {"cpu": "-1"}}, 'requestBody.spec.capability.cpu: Invalid value: "-1"'),
        ({"capability": {"pods": "500m"}}, "requestBody.spec.capability.pods"),
        ({"deserved": {"a.b/gpu": "1500m"}}, "must be an integer"),
        ({"capability": {"cpu": "1e3.5"}}, "requestBody.spec.capability.cpu: Invalid value"),
        (
            {"guarantee": {"resource": {"cpu": 1}}},
            'requestBody.spec.deserved.cpu: Invalid value: "<nil>": deserved[cpu] must be >=',
        ),
        (
            {"deserved": {"memory": "2Gi"}, "capability": {"memory": "1Gi", "cpu": 1}},
            "deserved[memory]=2Gi must be <= capability[memory]=1Gi",
        ),
    ],
)
def test_quirk_q19_contradictory_resources_are_named(spec: Json, expected: str) -> None:
    assert expected in denial(queue("q", **spec))


def test_several_errors_are_joined_in_one_list() -> None:
    text = denial(queue("q", capability={"cpu": "-1", "memory": "-1"}))
    assert text.startswith("[requestBody.spec.capability.cpu")
    assert text.endswith("]")
    assert "requestBody.spec.capability.memory" in text


def test_a_new_queue_is_open_or_closed() -> None:
    for state in ("", "Open", "Closed"):
        admit(queue("q", state=state))
    error = 'requestBody.spec.state: Invalid value: "Closing": queue state must be in [Open Closed]'
    assert error in denial(queue("q", state="Closing"))


@pytest.mark.parametrize("state", ["Closing", "Unknown"])
def test_quirk_q2_a_closing_queue_can_be_updated(state: str) -> None:
    old = queue("q", state=state, weight=1)
    admit(queue("q", state=state, weight=2), ObjectReaderStub(old), old=old)


@pytest.mark.parametrize(
    ("path", "weights", "expected"),
    [
        ("root/a", "1/2", ""),
        ("", "1", "must have the same length with"),
        ("root/a", "1/nan", "nan in the 1/nan is invalid number: it must be finite"),
        ("root/a", "1/inf", "inf in the 1/inf is invalid number: it must be finite"),
        ("root/sc", "1/1", ""),
        ("root/sci/dev/x", "1/1/1/1", "root/sci/dev of queue dev: that queue is a leaf"),
        ("root/sci/devel", "1/1/1", ""),
    ],
)
def test_quirk_q13_the_annotations_of_a_hierarchy(path: str, weights: str, expected: str) -> None:
    reader = ObjectReaderStub(queue("dev", annotations=hierarchy("root/sci/dev", "1/1/1")))
    sent = queue("q", annotations=hierarchy(path, weights))
    check(expected, sent, reader)


def test_a_stored_queue_below_a_leaf_can_be_updated() -> None:
    old = queue("q", annotations=hierarchy("root/sci/dev/x", "1/1/1/1"))
    reader = ObjectReaderStub(queue("dev", annotations=hierarchy("root/sci/dev", "1/1/1")), old)
    admit(old | {"spec": {"weight": 2}}, reader, old=old)


def chain(*names: str) -> list[Json]:
    parents = ("root", *names)
    return [queue(name, parent=parent) for name, parent in zip(names, parents, strict=False)]


def test_the_maximum_depth_is_five() -> None:
    reader = ObjectReaderStub(*chain("a", "b", "c", "d"))
    admit(queue("e", parent="d"), reader)
    reader.put(queue("e", parent="d"))
    assert "6 levels deep" in denial(queue("f", parent="e"), reader)
    admit(queue("f", parent="e"), reader, settings=AdmissionSettings(max_queue_depth=6))


def test_quirk_q11_the_depth_of_a_moved_queue_includes_its_children() -> None:
    reader = ObjectReaderStub(*chain("a", "b", "c", "d"), *chain("x", "y"))
    moved = queue("x", parent="d")
    assert "6 levels deep" in denial(moved, reader, old=queue("x", parent="root"))
    admit(queue("x", parent="c"), reader, old=queue("x", parent="root"))


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        (queue("a", parent="b"), "cannot have parent b, its descendant"),
        (queue("a", parent="c"), "cannot have parent c, its descendant"),
        (queue("a", parent="nosuch"), "failed to get parent queue nosuch of queue a"),
    ],
)
def test_quirk_q10_invalid_parents_are_denied(moved: Json, expected: str) -> None:
    reader = ObjectReaderStub(*chain("a", "b", "c"))
    assert expected in denial(moved, reader, old=queue("a", parent="root"))


def test_a_cycle_among_stored_queues_is_named() -> None:
    reader = ObjectReaderStub(queue("a", parent="b"), queue("b", parent="a"))
    assert "cycle" in denial(queue("q", parent="a"), reader)


def test_a_missing_grandparent_is_named() -> None:
    reader = ObjectReaderStub(queue("b", parent="missing"))
    assert 'missing of queue b: queue.scheduling.volcano.sh "missing" not found' in denial(
        queue("q", parent="b"), reader
    )


def test_a_leaf_queue_with_running_pods_cannot_become_a_parent() -> None:
    busy = queue("busy")
    busy["status"]["allocated"] = {"cpu": "1", "pods": 2}
    assert "because it has allocated Pods: 2" in denial(
        queue("q", parent="busy"), ObjectReaderStub(busy)
    )
    admit(queue("q", parent="busy"), ObjectReaderStub(busy, queue("other", parent="busy")))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"capability": {"cpu": 4}}, ""),
        ({"capability": {"memory": "1Ti"}}, ""),
        ({"capability": {"requests.cpu": 99}}, ""),
        ({"deserved": {"cpu": 2}}, ""),
        ({"deserved": {"cpu": 3}}, "sum of children's deserved (cpu 4)"),
        (
            {"deserved": {"memory": "1Gi"}},
            "exceeds parent's deserved limit (memory not set)",
        ),
        ({"deserved": {"a.b/gpu": 0}}, "deserved (a.b/gpu 0)"),
        ({"deserved": {"cpu": 1}, "guarantee": {"resource": {"cpu": 1}}}, "guarantee (cpu 1)"),
    ],
)
def test_resources_of_a_child_are_limited_by_its_parent(spec: Json, expected: str) -> None:
    reader = ObjectReaderStub(
        queue("p", capability={"cpu": 4}, deserved={"cpu": 3}),
        queue("sibling", parent="p", deserved={"cpu": 1}),
    )
    sent = queue("q", parent="p", **spec)
    check(expected, sent, reader)


def test_the_nearest_ancestor_with_a_capability_applies() -> None:
    reader = ObjectReaderStub(
        queue("a", capability={"cpu": 2}),
        queue("b", parent="a", capability={"cpu": 4}),
        queue("c", parent="b", capability={"memory": "1Gi"}),
    )
    admit(queue("q", parent="c", capability={"cpu": 3}), reader)
    assert "ancestor's capability=4" in denial(
        queue("q", parent="c", capability={"cpu": 5}), reader
    )


def test_resources_of_a_parent_cover_its_children() -> None:
    old = queue("p", capability={"cpu": 8}, deserved={"cpu": 4})
    reader = ObjectReaderStub(
        old,
        queue("mid", parent="p"),
        queue("leaf", parent="mid", capability={"cpu": 6}),
        queue("other", parent="p", deserved={"cpu": 3}),
    )
    admit(queue("p", capability={"cpu": 6}, deserved={"cpu": 3}), reader, old=old)
    smaller = queue("p", capability={"cpu": 5})
    assert "smaller than its descendants' max capability=6" in denial(smaller, reader, old=old)
    poorer = queue("p", capability={"cpu": 8}, deserved={"cpu": 2})
    assert "deserved (cpu 3)" in denial(poorer, reader, old=old)


def test_unchanged_resources_are_not_validated() -> None:
    old = queue("q", parent="missing", capability={"cpu": 1})
    new = queue("q", parent="missing", capability={"cpu": "1000m"}, weight=3)
    admit(new, ObjectReaderStub(old), old=old)


def test_resources_of_root_are_immutable_while_protected() -> None:
    old = queue("root")
    new = queue("root", capability={"cpu": 1})
    assert "guarantee) cannot be modified" in denial(new, old=old)
    admit(new, old=old, settings=AdmissionSettings(root_queue_protection=False))
    admit(queue("root", weight=2), old=old)
    assert "has no parent" in denial(queue("root", parent="default"), old=old)


def test_quirk_q17_deletion_is_validated_by_the_deleted_queue() -> None:
    busy = queue("busy", parent="top")
    busy["status"]["allocated"] = {"pods": "1"}
    reader = ObjectReaderStub(queue("top"), busy)
    for name in ("default", "root"):
        assert "can not be deleted" in denial(None, reader, old=queue(name))
    assert "1 child queues: busy" in denial(None, reader, old=queue("top"))
    assert '"missing" not found' in denial(None, reader, old=queue("missing"))
    admit(None, reader, old=busy)
    strict = AdmissionSettings(queue_allocated_pods_check=True)
    assert "because it has allocated Pods: 1" in denial(None, reader, old=busy, settings=strict)


names = st.sampled_from("abcd")
moves = st.lists(st.tuples(names, st.sampled_from(["root", *"abcd"])), max_size=12)


@given(moves)
def test_quirks_q10_and_q11_no_sequence_of_moves_creates_a_cycle_or_too_deep_a_tree(
    given_moves: Any,
) -> None:
    reader = ObjectReaderStub()
    settings = AdmissionSettings(max_queue_depth=3)
    parents: dict[str, str] = {}
    for name, parent in given_moves:
        old = queue(name, parent=parents[name]) if name in parents else None
        new = queue(name, parent=parent)
        try:
            admit(copy.deepcopy(new), reader, old=old, settings=settings)
        except DeniedError:
            continue
        reader.put(new)
        parents[name] = parent
    for name in parents:
        steps, above = 0, name
        while above != "root":
            steps, above = steps + 1, parents[above]
            assert steps <= 3


shares = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 4), max_size=2)


@given(st.lists(st.tuples(names, shares), max_size=8), shares)
def test_deserved_of_children_never_exceeds_the_parents(changes: Any, parent: Json) -> None:
    top = queue("p", deserved=parent)
    reader = ObjectReaderStub(top)
    held: dict[str, Json] = {}
    for name, deserved in changes:
        new = queue(name, parent="p", deserved=deserved)
        try:
            admit(copy.deepcopy(new), reader, old=held.get(name))
        except DeniedError:
            continue
        reader.put(new)
        held[name] = new
    for resource in ("cpu", "memory"):
        total = sum(each["spec"]["deserved"].get(resource, 0) for each in held.values())
        assert total <= parent.get(resource, 0)
