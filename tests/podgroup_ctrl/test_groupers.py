"""Gangs of other kinds: the PodGroup of a pod, and the gang that an object describes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from batholith.cli.controller_flags import parse_groupers
from batholith.cli.flag_groups import FlagError
from batholith.local.apiserver.authorization import bootstrap_policy
from batholith.local.apiserver.authorization.bootstrap_policy import COMPONENTS_FILE as ROLES
from batholith.podgroup_ctrl.build import build, gang_patch
from batholith.podgroup_ctrl.core_types import Pod
from batholith.podgroup_ctrl.groupers.base import Gang
from batholith.podgroup_ctrl.groupers.registry import GROUPERS, Grouping
from batholith.podgroup_ctrl.suspendable_kinds import KINDS

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gangs.md"
JOBSET, LWS = "jobset.sigs.k8s.io", "leaderworkerset.sigs.k8s.io"
MPI = {"training.kubeflow.org/operator-name": "mpi-operator"}


def examples() -> dict[str, Json]:
    """The manifests of the page by kind."""
    blocks = PAGE.read_text().split("```yaml\n")[1:]
    found = (each for block in blocks for each in yaml.safe_load_all(block.split("```")[0]))
    return {each["kind"]: each for each in found}


def pod(
    name: str = "p",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    controller: Json | None = None,
) -> Pod:
    metadata = {
        "name": name,
        "namespace": "d",
        "uid": f"{name}-uid",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
        "ownerReferences": [] if controller is None else [{**controller, "controller": True}],
    }
    container = {"name": "main", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"schedulerName": "volcano", "containers": [container]}
    return msgspec.json.decode(json.dumps({"metadata": metadata, "spec": spec}), type=Pod)


def gang_of(name: str, owner: Json, *pods: Pod) -> Gang:
    grouper = GROUPERS[name]
    body = {**owner, "metadata": {"uid": "u", "namespace": "d", **owner["metadata"]}}
    decoded = msgspec.json.decode(json.dumps(body), type=grouper.view)
    return grouper.gang(decoded, pods)


def wire(name: str, owner: Json, *pods: Pod) -> Json:
    """The PodGroup of a gang as the API server gets it."""
    found = gang_of(name, owner, *pods)
    group = build(pods[0] if pods else pod(), found.annotations, name="g", gang=found)
    decoded: Json = json.loads(msgspec.json.encode(group))
    return decoded


def sizes(policy: Json) -> tuple[str, int, int]:
    """Name, pods of a sub-group, and number of sub-groups; one is the default of the CRD."""
    return policy["name"], policy.get("subGroupSize", 1), policy["minSubGroups"]


def member(role: str) -> Pod:
    labels = {f"{JOBSET}/jobset-name": "train", f"{JOBSET}/jobset-uid": "u"}
    return pod(role, {**labels, f"{JOBSET}/replicatedjob-name": role})


PODS = {
    "jobset": (
        pod("a", {f"{JOBSET}/jobset-name": "train", f"{JOBSET}/jobset-uid": "1-2"}),
        "podgroup-jobset-train",
    ),
    "leaderworkerset": (
        pod("a", {f"{LWS}/name": "serve", f"{LWS}/group-index": "2"}),
        "podgroup-lws-serve-2",
    ),
    "ray": (
        pod(
            "a",
            controller={"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r", "uid": "7"},
        ),
        "podgroup-7",
    ),
    "spark": (pod("a", {"sparkoperator.k8s.io/app-name": "pi"}), "podgroup-spark-pi"),
    "mpijob": (
        pod(
            "a",
            MPI | {"training.kubeflow.org/job-name": "m", "training.kubeflow.org/job-role": "x"},
        ),
        "podgroup-mpijob-m",
    ),
    "argo": (
        pod(
            "a",
            {"workflows.argoproj.io/workflow": "w"},
            controller={"kind": "Workflow", "uid": "w"},
        ),
        "podgroup-a-uid",
    ),
    "annotation": (pod("a", annotations={"batholith.io/gang": "pair"}), "podgroup-gang-pair"),
}


def test_the_controllers_of_an_embedded_cluster_may_do_what_groupers_and_suspension_need() -> None:
    rules = json.loads((Path(bootstrap_policy.__file__).parent / "data" / ROLES).read_bytes())
    allowed = {
        (group, resource, verb)
        for rule in rules["controllers"]["cluster"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    read = [(each.resource, "get") for each in GROUPERS.values() if each.resource]
    resumed = [(each.resource, verb) for each in KINDS for verb in ("list", "watch", "patch")]
    needed = {(resource.group, resource.plural, verb) for resource, verb in (*read, *resumed)}
    assert needed <= allowed


def test_each_grouper_has_an_example() -> None:
    assert PODS.keys() == GROUPERS.keys()
    table = PAGE.read_text()
    assert all(f"| `{name}` |" in table for name in GROUPERS)


@pytest.mark.parametrize("name", GROUPERS)
def test_the_podgroup_is_named_by_the_enabled_grouper_alone(name: str) -> None:
    found, expected = PODS[name]
    assert Grouping([name]).name_of(found) == expected
    assert Grouping([*GROUPERS]).key_of(found) == f"d/{expected}"
    others = [other for other in GROUPERS if other != name]
    assert Grouping(others).name_of(found) == found.generated_podgroup_name


@pytest.mark.parametrize("label", ["", "UPPER", "a/b", "..", "x" * 300])
def test_labels_that_are_no_names_do_not_name_a_podgroup(label: str) -> None:
    found = pod("a", {f"{JOBSET}/jobset-name": label, f"{JOBSET}/jobset-uid": "1-2"})
    assert Grouping([*GROUPERS]).name_of(found) == "podgroup-a-uid"
    found = pod("a", annotations={"batholith.io/gang": label})
    assert Grouping([*GROUPERS]).name_of(found) == "podgroup-a-uid"


def test_a_jobset_is_one_gang_of_all_its_pods() -> None:
    group = wire("jobset", examples()["JobSet"])
    assert group["spec"]["minMember"] == 9
    assert group["spec"]["queue"] == "research"
    assert group["spec"]["minResources"]["cpu"] == "900m"
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train"}
    assert group["metadata"]["ownerReferences"] == [{**owner, "uid": "u", "controller": True}]
    driver, workers = group["spec"]["subGroupPolicy"]
    assert sizes(driver) == ("driver", 1, 1)
    assert sizes(workers) == ("workers", 4, 2)
    labels = {f"{JOBSET}/replicatedjob-name": "workers"}
    assert workers["labelSelector"] == {"matchLabels": labels}
    assert workers["matchLabelKeys"] == [f"{JOBSET}/job-index"]


def staged(**policy: Any) -> Json:
    """A JobSet of one initializer and four trainers."""
    spec = {"parallelism": 4, "completions": 9, "template": {"spec": {}}}
    jobs: list[Json] = [{"name": "init", "template": {"spec": {"template": {"spec": {}}}}}]
    jobs.append({"name": "train", "template": {"spec": spec}, **policy.pop("train", {})})
    return {"metadata": {"name": "train"}, "spec": {"replicatedJobs": jobs, **policy}}


@pytest.mark.parametrize(
    "jobset",
    [
        staged(train={"dependsOn": [{"name": "init", "status": "Complete"}]}),
        staged(startupPolicy={"startupPolicyOrder": "InOrder"}),
    ],
)
def test_jobs_that_wait_for_others_are_not_in_the_minimum_before_they_start(jobset: Json) -> None:
    assert gang_of("jobset", jobset).size == 1
    assert gang_of("jobset", jobset, member("init")).size == 1
    assert gang_of("jobset", jobset, member("init"), member("train")).size == 5
    assert gang_of("jobset", jobset, member("train")).size == 4


def test_jobs_that_start_together_are_in_the_minimum_before_their_pods_exist() -> None:
    assert gang_of("jobset", staged(), member("init")).size == 5


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({}, 1),
        ({"parallelism": 3}, 3),
        ({"parallelism": 3, "completions": 2}, 2),
        ({"completions": 5}, 1),
        ({"parallelism": 0}, 1),
    ],
)
def test_pods_of_a_job_of_a_jobset(spec: Json, pods: int) -> None:
    job = {"name": "j", "template": {"spec": spec}}
    jobset = {"metadata": {"name": "s"}, "spec": {"replicatedJobs": [job]}}
    assert gang_of("jobset", jobset).size == pods


def test_each_group_of_a_leader_and_its_workers_is_a_gang() -> None:
    leader = pod("serve-0", {f"{LWS}/worker-index": "0"})
    group = wire("leaderworkerset", examples()["LeaderWorkerSet"], leader)
    assert group["spec"]["minMember"] == 4
    assert group["spec"]["minResources"]["cpu"] == "400m"
    (owner,) = group["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Pod", "serve-0-uid")
    worker = pod("serve-0-1", {f"{LWS}/worker-index": "1"})
    (owner,) = wire("leaderworkerset", examples()["LeaderWorkerSet"], worker)["metadata"][
        "ownerReferences"
    ]
    assert owner["kind"] == "LeaderWorkerSet"


def test_a_leader_that_must_be_ready_first_starts_alone() -> None:
    found = examples()["LeaderWorkerSet"]
    late = {**found, "spec": found["spec"] | {"startupPolicy": "LeaderReady"}}
    group = wire("leaderworkerset", late)
    assert group["spec"]["minMember"] == 1
    assert group["spec"]["minResources"]["cpu"] == "100m"


def test_a_raycluster_needs_its_head_and_the_minimum_of_each_group() -> None:
    cluster = examples()["RayCluster"]
    group = wire("ray", cluster)
    assert group["spec"]["minMember"] == 3
    assert group["spec"]["queue"] == "research"
    assert group["spec"]["minResources"]["cpu"] == "400m"
    policies = group["spec"]["subGroupPolicy"]
    assert [*map(sizes, policies)] == [("head", 1, 1), ("small", 2, 1)]
    assert all(each["matchLabelKeys"] for each in policies)
    fixed = {**cluster, "spec": cluster["spec"] | {"enableInTreeAutoscaling": False}}
    assert gang_of("ray", fixed).size == 4
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    for change, size in (({"numOfHosts": 2}, 5), ({"suspend": True}, 1), ({"minReplicas": 0}, 1)):
        changed = cluster["spec"] | {"workerGroupSpecs": [workers | change]}
        assert gang_of("ray", {**cluster, "spec": changed}).size == size, change


def test_a_spark_driver_starts_alone_with_capacity_for_its_executors() -> None:
    found = examples()["SparkApplication"]
    group = wire("spark", found)
    assert group["spec"]["minMember"] == 1
    assert group["spec"]["queue"] == "research"
    # The driver has 1 core and 512 MiB, each executor 2 and 1 GiB; both have 384 MiB of overhead.
    assert group["spec"]["minResources"]["cpu"] == "5"
    assert group["spec"]["minResources"]["memory"] == "3712Mi"
    assert "subGroupPolicy" not in group["spec"]
    dynamic = {"enabled": True, "initialExecutors": 1, "minExecutors": 0, "maxExecutors": 9}
    changed = {**found, "spec": found["spec"] | {"dynamicAllocation": dynamic}}
    assert wire("spark", changed)["spec"]["minResources"]["cpu"] == "3"


@pytest.mark.parametrize(
    ("given", "memory"),
    [
        ({"memory": "10g"}, "11Gi"),
        ({"memory": "10g", "memoryOverhead": "1g"}, "11Gi"),
        ({"memory": "4096m"}, "4505Mi"),
        ({}, "1408Mi"),
        ({"memory": "much"}, None),
    ],
)
def test_memory_of_spark_is_that_of_the_jvm_and_the_overhead(
    given: Json, memory: str | None
) -> None:
    spec = {"driver": given, "executor": {"instances": 0}}
    body = {"metadata": {"name": "s"}, "spec": spec}
    assert wire("spark", body)["spec"]["minResources"].get("memory") == memory


def test_an_mpijob_is_its_launcher_and_its_workers() -> None:
    found = examples()["MPIJob"]
    group = wire("mpijob", found)
    assert (group["spec"]["minMember"], group["spec"]["queue"]) == (3, "research")
    assert [each["name"] for each in group["spec"]["subGroupPolicy"]] == ["launcher", "worker"]
    late = {**found, "spec": found["spec"] | {"launcherCreationPolicy": "WaitForWorkersReady"}}
    assert gang_of("mpijob", late).size == 2
    policy = {"schedulingPolicy": {"minAvailable": 2, "priorityClass": "high"}}
    less = wire("mpijob", {**found, "spec": found["spec"] | {"runPolicy": policy}})
    assert (less["spec"]["minMember"], less["spec"]["priorityClassName"]) == (2, "high")
    assert "subGroupPolicy" not in less["spec"]
    assert less["spec"]["minResources"]["cpu"] == "200m"


def test_pods_of_a_workflow_are_alone() -> None:
    group = json.loads(
        msgspec.json.encode(
            build(pod(), {}, name="podgroup-p-uid", gang=GROUPERS["argo"].gang(None, [pod()]))
        )
    )
    assert group["spec"]["minMember"] == 1
    assert group["metadata"]["ownerReferences"][0]["kind"] == "Pod"


@pytest.mark.parametrize(
    ("sizes", "expected"), [(("2", "2"), 2), (("2", "5"), 5), (("x", ""), 1), (("0", "-3"), 1)]
)
def test_the_annotation_of_pods_says_how_large_their_gang_is(
    sizes: tuple[str, str], expected: int
) -> None:
    pods = [
        pod(f"p{n}", annotations={"batholith.io/gang": "g", "batholith.io/gang-size": size})
        for n, size in enumerate(sizes)
    ]
    assert GROUPERS["annotation"].gang(None, pods).size == expected


def annotated(owner: Json, **annotations: str) -> Json:
    return {**owner, "metadata": owner["metadata"] | {"annotations": annotations}}


def test_annotations_of_the_owner_take_precedence() -> None:
    size = {"scheduling.volcano.sh/group-min-member": "4"}
    group = wire("jobset", annotated(examples()["JobSet"], **size))
    assert group["spec"]["minMember"] == 4
    assert group["spec"]["minResources"]["cpu"] == "400m"
    assert "subGroupPolicy" not in group["spec"]
    topology = {
        "volcano.sh/network-topology-mode": "hard",
        "volcano.sh/network-topology-highest-tier": "2",
    }
    group = wire("jobset", annotated(examples()["JobSet"], **topology))
    assert group["spec"]["networkTopology"] == {"mode": "hard", "highestTierAllowed": 2}


def test_a_patch_has_what_the_owner_has_changed_alone() -> None:
    owner = examples()["RayCluster"]
    before, after = (
        build(pod(), {}, name="g", gang=gang_of("ray", {**owner, "spec": spec}))
        for spec in (owner["spec"], owner["spec"] | {"enableInTreeAutoscaling": False})
    )
    patch = gang_patch(before, after)
    assert patch["spec"].keys() == {"minMember", "minResources", "subGroupPolicy"}
    assert gang_patch(after, after) == {}


def flags() -> Iterator[tuple[str, list[str]]]:
    yield "*", [*GROUPERS]
    yield "annotation", ["annotation"]
    yield "jobset, ray", ["jobset", "ray"]
    yield "", []


@pytest.mark.parametrize(("text", "expected"), list(flags()))
def test_groupers_are_enabled_by_name(text: str, expected: list[str]) -> None:
    assert parse_groupers(text) == expected


def test_an_unknown_grouper_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(FlagError, match="'jobsets' is none of annotation, jobset"):
        parse_groupers("jobsets")


def test_the_component_has_the_rights_of_all_groupers() -> None:
    path = ROOT / "manifests" / "components" / "groupers" / "groupers.yaml"
    role = next(yaml.safe_load_all(path.read_text()))
    found = {
        (group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if rule["verbs"] == ["get"]
    }
    read = (each.resource for each in GROUPERS.values() if each.resource is not None)
    assert found == {(each.group, each.plural) for each in read}
