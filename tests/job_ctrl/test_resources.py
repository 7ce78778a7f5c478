"""``minResources``: which pods are in the minimum of the gang, and what they count for."""

from typing import Any

import pytest
from support.jobs import job, task

from batholith.job_ctrl import podgroups
from batholith.model.job_podgroup import desired_spec
from batholith.model.min_resources import min_resources


def template(cpu: str, priority: str = "", **pod: Any) -> dict[str, Any]:
    return {
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
            "priorityClassName": priority,
            **pod,
        }
    }


def minimum(*tasks: dict[str, Any], gang: int) -> dict[str, str]:
    spec = job(*tasks).spec
    return min_resources(spec.tasks, gang, priorities={"high": 10})


@pytest.mark.parametrize(
    ("gang", "master", "worker", "first", "cpu"),
    [
        (2, 1, 1, "", "150m"), (2, 1, 2, "", "100m"), (2, 2, 1, "", "100m"),
        (3, 2, 2, "", "200m"), (3, 1, 1, "", "200m"), (3, 1, 1, "master", "200m"),
        (3, 1, 1, "worker", "250m"), (3, 1, 2, "", "250m"), (3, 0, 1, "worker", "250m"),
        (4, 1, 1, "worker", "300m"), (4, 2, 1, "worker", "300m"),
    ],
)  # fmt: skip
def test_minimum_of_the_gang_counts_the_right_pods(
    gang: int, master: int, worker: int, first: str, cpu: str
) -> None:
    tasks = [
        task(name, 2, minAvailable=least, template=template(each, "high" if name == first else ""))
        for name, least, each in (("master", master, "50m"), ("worker", worker, "100m"))
    ]
    needed = minimum(*tasks, gang=gang)
    assert (needed["cpu"], needed["requests.cpu"]) == (cpu, cpu)
    assert needed["pods"] == needed["count/pods"] == str(gang)


def test_init_containers_sidecars_and_overhead_count_at_their_peak() -> None:
    def asks(cpu: str, **fields: Any) -> dict[str, Any]:
        return {"name": "x", "resources": {"requests": {"cpu": cpu}}, **fields}

    pod = template(
        "1",
        initContainers=[asks("200m", restartPolicy="Always"), asks("3")],
        overhead={"cpu": "100m"},
    )
    assert minimum(task(replicas=1, template=pod), gang=1)["cpu"] == "3300m"
    pod["spec"]["initContainers"].pop()
    assert minimum(task(replicas=1, template=pod), gang=1)["cpu"] == "1300m"


def test_quota_names_of_limits_and_of_extended_resources() -> None:
    pod = template("1")
    pod["spec"]["containers"][0]["resources"] = {
        "requests": {"memory": "1Gi", "nvidia.com/gpu": 2, "kubernetes.io/odd": 1},
        "limits": {"cpu": 2, "nvidia.com/gpu": 2},
    }
    assert minimum(task(replicas=2, template=pod), gang=2) == {
        "count/pods": "2",
        "pods": "2",
        "limits.cpu": "4",
        "memory": "2Gi",
        "requests.memory": "2Gi",
        "nvidia.com/gpu": "4",
        "requests.nvidia.com/gpu": "4",
    }


def test_a_podgroup_is_changed_only_where_the_job_may_change_it() -> None:
    small, large = (
        desired_spec(job(task(replicas=n), queue=queue), priorities={})
        for n, queue in ((2, "default"), (3, "other"))
    )
    assert podgroups.spec_patch(small, small) == {}
    assert podgroups.spec_patch(small, large) == {
        "minMember": 3,
        "minResources": {"count/pods": "3", "pods": "3"},
        "minTaskMember": {"t": 3},
    }
