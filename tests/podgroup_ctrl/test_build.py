"""The PodGroup of a pod, field by field, and the resources of a pod."""

import json
from typing import Any

import msgspec
import pytest

from batholith.model.pod_resources import PodResources, quota_usage
from batholith.model.podgroup import PodGroup, min_member
from batholith.podgroup_ctrl.build import (
    build,
    ineffective_queue,
    ineffective_size,
    merge_owners,
    merge_patch,
)
from batholith.podgroup_ctrl.core_types import Pod
from batholith.podgroup_ctrl.groupers.registry import Grouping

REQUESTS = {"requests": {"cpu": "100m", "memory": "64Mi"}}


def pod(**fields: Any) -> Pod:
    """A bare pod named p; *fields* are merged into metadata, spec and status."""
    whole = {
        "metadata": {"name": "p", "namespace": "d", "uid": "u1", **fields.pop("metadata", {})},
        "spec": {
            "schedulerName": "volcano",
            "containers": [{"name": "main", "resources": REQUESTS}],
            **fields.pop("spec", {}),
        },
        **fields,
    }
    return msgspec.json.decode(json.dumps(whole), type=Pod)


def owner(kind: str, uid: str, *, controller: bool = True) -> dict[str, Any]:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {
        "apiVersion": version,
        "kind": kind,
        "name": "o",
        "uid": uid,
        "controller": controller,
        "blockOwnerDeletion": True,
    }


def wire(group: object) -> Any:
    return json.loads(msgspec.json.encode(group))


def test_bare_pod_owns_a_podgroup_of_one() -> None:
    """As recorded for the pod p of scenario bare-pod."""
    assert wire(build(pod(), {})) == {
        "metadata": {
            "name": "podgroup-u1",
            "namespace": "d",
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": "p",
                    "uid": "u1",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "minMember": 1,
            "minResources": {
                "count/pods": "1",
                "pods": "1",
                "cpu": "100m",
                "requests.cpu": "100m",
                "memory": "64Mi",
                "requests.memory": "64Mi",
            },
        },
        "status": {"phase": "Pending"},
    }


def test_podgroup_inherits_queue_priority_and_listed_annotations_of_the_pod() -> None:
    """As recorded for the pod q of scenario bare-pod: the size on the pod has no effect."""
    annotations = {
        "scheduling.volcano.sh/queue-name": "team",
        "scheduling.volcano.sh/group-min-member": "3",
        "volcano.sh/preemptable": "true",
        "volcano.sh/other": "x",
    }
    labels = {"a": "b", "volcano.sh/cooldown-time": "60s"}
    given = pod(
        metadata={"annotations": annotations, "labels": labels},
        spec={"priorityClassName": "system-cluster-critical"},
    )
    group = build(given, {})
    assert group.metadata.annotations == {"volcano.sh/preemptable": "true"}
    assert group.metadata.labels == {"volcano.sh/cooldown-time": "60s"}
    assert (group.spec.queue, group.spec.min_member) == ("team", 1)
    assert group.spec.priority_class_name == "system-cluster-critical"
    assert ineffective_size(given, group.spec.min_member) == "3"
    assert ineffective_size(given, 3) == ""


def test_owner_determines_name_owner_references_size_and_annotations() -> None:
    """As recorded in scenario statefulset: minMember 2, resources doubled."""
    given = pod(metadata={"ownerReferences": [owner("StatefulSet", "s1")]})
    inherited = {
        "scheduling.volcano.sh/group-min-member": "2",
        "scheduling.volcano.sh/queue-name": "ignored",
        "volcano.sh/preemptable": "true",
        "team": "a",
    }
    group = build(given, inherited)
    assert group.metadata.name == "podgroup-s1"
    assert [each.uid for each in group.metadata.owner_references] == ["s1"]
    assert group.metadata.annotations == {"volcano.sh/preemptable": "true"}
    assert group.spec.queue == ""
    assert ineffective_queue(given, inherited) == "ignored"
    assert group.spec.min_member == 2
    assert group.spec.min_resources == {
        "count/pods": "2",
        "pods": "2",
        "cpu": "200m",
        "requests.cpu": "200m",
        "memory": "128Mi",
        "requests.memory": "128Mi",
    }


def test_pod_without_controller_is_the_owner() -> None:
    given = pod(metadata={"ownerReferences": [owner("ReplicaSet", "r1", controller=False)]})
    group = build(given, {})
    assert group.metadata.name == "podgroup-u1"
    assert [each.kind for each in group.metadata.owner_references] == ["Pod"]


def test_pod_annotations_take_precedence_over_owners_and_first_budget_over_second() -> None:
    own = {
        "volcano.sh/preemptable": "false",
        "volcano.sh/jdb-min-available": "2",
        "volcano.sh/jdb-max-unavailable": "1",
    }
    inherited = {"volcano.sh/preemptable": "true", "volcano.sh/sla-waiting-time": "1h"}
    group = build(pod(metadata={"annotations": own}), inherited)
    assert group.metadata.annotations == {
        "volcano.sh/preemptable": "false",
        "volcano.sh/jdb-min-available": "2",
        "volcano.sh/sla-waiting-time": "1h",
    }


def test_run_time_and_user_are_those_of_the_pod_or_its_owners() -> None:
    own = {"batholith.io/time-limit": "1h"}
    inherited = {
        "batholith.io/time-limit": "2h",
        "batholith.io/running-estimate": "30m",
        "batholith.io/active-deadline-seconds": "5",
        "batholith.io/submitted-by": "eve",
        "batholith.io/other": "x",
    }
    group = build(pod(metadata={"annotations": own}), inherited)
    expected = {**inherited, **own}
    del expected["batholith.io/other"]
    assert group.metadata.annotations == expected


@pytest.mark.parametrize(
    ("own", "asked", "in_vain"),
    [("", "team", "team"), ("other", "team", "team"), ("team", "team", ""), ("", "default", ""),
     ("team", "default", "default"), ("team", "", "")],
)  # fmt: skip
def test_quirk_p1_queue_on_the_owner_is_ineffective_unless_it_is_the_pods(
    own: str, asked: str, in_vain: str
) -> None:
    key = "scheduling.volcano.sh/queue-name"
    given = pod(metadata={"annotations": {key: own} if own else {}})
    assert ineffective_queue(given, {key: asked} if asked else {}) == in_vain


def test_quirk_p11_podgroup_lives_as_long_as_its_pods() -> None:
    """The pods' owners are its owners, so it is deleted with the pods."""
    owners = [owner("StatefulSet", "s1"), owner("ConfigMap", "c1", controller=False)]
    group = build(pod(metadata={"ownerReferences": owners}), {})
    assert wire(group)["metadata"]["ownerReferences"] == owners


def test_first_owner_takes_precedence() -> None:
    assert merge_owners([{"a": "1"}, {"a": "2", "b": "2"}]) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("text", "size"),
    [("3", 3), ("0", 0), ("+4", 4), ("-1", 1), ("1.5", 1), ("many", 1), ("", 1), ("2147483648", 1)],
)
def test_gang_size_is_parsed(text: str, size: int) -> None:
    assert min_member({"scheduling.volcano.sh/group-min-member": text}) == size


def test_gang_of_size_zero_requests_nothing() -> None:
    group = build(pod(), {"scheduling.volcano.sh/group-min-member": "0"})
    assert wire(group)["spec"] == {"minResources": {}}


@pytest.mark.parametrize(
    ("annotations", "topology"),
    [
        ({"mode": "Soft", "highest-tier": "2"}, {"mode": "soft", "highestTierAllowed": 2}),
        ({"mode": "odd"}, {}),
        ({"highest-tier": "x"}, {}),
        ({"highest-tier": "1"}, {"highestTierAllowed": 1}),
    ],
)
def test_network_topology_is_parsed(annotations: dict[str, str], topology: dict[str, Any]) -> None:
    """A mode of ``hard`` is omitted: it is the schema's default."""
    own = {f"volcano.sh/network-topology-{key}": value for key, value in annotations.items()}
    group = build(pod(metadata={"annotations": own}), {})
    assert wire(group)["spec"]["networkTopology"] == topology
    assert build(pod(), {}).spec.network_topology is None


def test_pod_is_indexed_until_it_has_another_podgroup() -> None:
    group = "scheduling.k8s.io/group-name"
    assert Grouping().index(pod()) == ("d/podgroup-u1",)
    assert Grouping().index(pod(metadata={"annotations": {group: "podgroup-u1"}})) == (
        "d/podgroup-u1",
    )
    assert Grouping().index(pod(metadata={"annotations": {group: "mine"}})) == ()


def usage(**spec: Any) -> dict[str, str]:
    needs = msgspec.convert(spec, PodResources)
    return {name: str(amount) for name, amount in quota_usage(needs).items()}


def container(cpu: str, *, restart: str = "", limits: dict[str, str] | None = None) -> Any:
    asked = {"requests": {"cpu": cpu}, "limits": limits or {}}
    return {"resources": asked, "restartPolicy": restart}


def test_init_container_counts_if_it_requests_more_than_later_containers() -> None:
    assert usage(containers=[container("1")], initContainers=[container("3")])["cpu"] == "3"
    assert (
        usage(containers=[container("2"), container("2")], initContainers=[container("3")])["cpu"]
        == "4"
    )


def test_sidecar_counts_with_all_later_containers() -> None:
    inits = [container("1", restart="Always"), container("3"), container("1", restart="Always")]
    assert usage(containers=[container("1")], initContainers=inits)["cpu"] == "4"
    assert usage(containers=[container("5")], initContainers=inits)["cpu"] == "7"


def test_overhead_is_added_only_to_existing_limits() -> None:
    counted = usage(
        containers=[container("1", limits={"cpu": "2"})], overhead={"cpu": "100m", "memory": "1Gi"}
    )
    assert counted["cpu"] == "1100m"
    assert counted["limits.cpu"] == "2100m"
    assert counted["requests.memory"] == "1Gi"
    assert "limits.memory" not in counted


def test_extended_resources_and_huge_pages_count_under_two_names() -> None:
    asked = {"nvidia.com/gpu": "2", "hugepages-2Mi": "4Mi", "kubernetes.io/x": "1"}
    counted = usage(containers=[{"resources": {"requests": asked}}])
    assert counted == {
        "count/pods": "1",
        "pods": "1",
        "nvidia.com/gpu": "2",
        "requests.nvidia.com/gpu": "2",
        "hugepages-2Mi": "4Mi",
        "requests.hugepages-2Mi": "4Mi",
    }


def test_pod_level_resources_replace_those_of_containers() -> None:
    counted = usage(containers=[container("1")], resources={"requests": {"cpu": "8"}})
    assert counted["cpu"] == "8"


def test_finished_pod_counts_only_as_a_pod() -> None:
    needs = msgspec.convert({"containers": [container("1")]}, PodResources)
    assert {n: str(a) for n, a in quota_usage(needs, finished=True).items()} == {"count/pods": "1"}


def test_current_podgroup_needs_no_patch() -> None:
    inherited = {"scheduling.volcano.sh/group-min-member": "2", "volcano.sh/preemptable": "true"}
    group = build(pod(), inherited)
    there = PodGroup(metadata=group.metadata, spec=group.spec)
    assert merge_patch(there, group) == {}
    smaller = build(pod(spec={"containers": [{"name": "main"}]}), {"volcano.sh/x": "y"})
    assert merge_patch(there, smaller) == {
        "metadata": {"annotations": {"volcano.sh/x": "y"}},
        "spec": {
            "minMember": 1,
            "minResources": {
                "count/pods": "1",
                "pods": "1",
                "cpu": None,
                "requests.cpu": None,
                "memory": None,
                "requests.memory": None,
            },
        },
    }
