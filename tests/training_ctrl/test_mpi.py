"""MPIJobs: the launcher's objects and pods."""

from typing import Any

import msgspec
from support.polling import wait_for
from support.running_controller import running
from support.training_harness import TrainingHarness, job, replica
from support.training_jobs import built, conditions, decided, environment, pod, typed

from batholith.model.names import CONFIGMAPS, SERVICEACCOUNTS
from batholith.testing import RequestMatcher
from batholith.training_ctrl import effects as fx
from batholith.training_ctrl.frameworks._mpi_objects import ROLE_BINDINGS, ROLES

MPI = "MPIJob"


def mpi(workers: int = 2, policy: str = "Never", **fields: Any) -> Any:
    types: Any = {
        "Launcher": replica(MPI, policy=policy),
        "Worker": replica(MPI, workers, policy=policy),
    }
    return job(MPI, **types, **fields)


def given(workers: int = 2, policy: str = "Never", **fields: Any) -> Any:
    body = mpi(workers, policy, **fields)["spec"]
    types = body.pop("mpiReplicaSpecs")
    body.pop("runPolicy")
    return typed(MPI, **types, **body)


def desired(typed_job: Any, *pods: Any) -> dict[str, Any]:
    result = decided(typed_job, *pods)
    return {
        each.desired.resource.kind: each.desired
        for each in result.writes
        if isinstance(each, fx.CreateObject)
    }


async def test_objects_precede_workers_and_launcher(world: TrainingHarness) -> None:
    async with running(world.controller()):
        await world.create(mpi())
        await wait_for(lambda: len(world.pods) == 3)
        await world.phase("Running")
        await wait_for(lambda: world.is_true("Running", MPI))
        discover = "#!/bin/sh\necho j-worker-0:1\necho j-worker-1:1\n"
        await wait_for(lambda: _data(world)["discover_hosts.sh"] == discover)
        await world.patch(MPI, {"mpiReplicaSpecs": {"Worker": {"replicas": 1}}})
        await wait_for(lambda: _data(world)["hostfile"] == "j-worker-0 slots=1\n")
        await wait_for(lambda: world.pods == ["j-launcher", "j-worker-0"])
        await world.phase("Succeeded", "j-launcher")
        await wait_for(lambda: world.is_true("Succeeded", MPI))
    kinds = [
        change.object["kind"]
        for change in world.api.changes
        if change.type == "ADDED" and change.object["metadata"]["name"].startswith("j")
    ]
    assert kinds == [
        MPI,
        "ServiceAccount",
        "ConfigMap",
        "Role",
        "RoleBinding",
        *["Pod"] * 3,
    ]
    created = [
        change.object["metadata"]["name"]
        for change in world.api.changes
        if change.type == "ADDED" and change.object["kind"] == "Pod"
    ]
    assert created[-1] == "j-launcher"
    assert world.services == []
    for resource in (SERVICEACCOUNTS, CONFIGMAPS, ROLES, ROLE_BINDINGS):
        name = "j-config" if resource is CONFIGMAPS else "j-launcher"
        (owner,) = world.api.objects(resource)[f"d/{name}"]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["controller"]) == (MPI, True)
    rules = world.api.objects(ROLES)["d/j-launcher"]["rules"]
    assert rules[-1]["resourceNames"] == ["j-worker-0"]


def _data(world: TrainingHarness) -> dict[str, str]:
    data: dict[str, str] = world.api.objects(CONFIGMAPS)["d/j-config"]["data"]
    return data


async def test_object_of_another_owner_is_reported(world: TrainingHarness) -> None:
    world.api.put(CONFIGMAPS, "j-config", data={"mine": "x"})
    async with running(world.controller()):
        await world.create(mpi())
        await wait_for(lambda: "ErrResourceExists" in world.reasons())
        assert world.pods == []
        assert _data(world) == {"mine": "x"}
        world.api.remove(CONFIGMAPS, "j-config")
        await world.advance_until(lambda: len(world.pods) == 3)


async def test_lost_response_of_an_object_is_repaired(world: TrainingHarness) -> None:
    for path in ("/configmaps", "/roles", "/serviceaccounts"):
        world.api.faults.lose_response(RequestMatcher("create", path=path))
    async with running(world.controller()):
        await world.create(mpi())
        await world.advance_until(lambda: len(world.pods) == 3)


def test_hostfile_and_rules_follow_the_workers() -> None:
    found = desired(given(2, slotsPerWorker=4, mainContainer="main"))
    data = found["ConfigMap"].content["data"]
    assert data["hostfile"] == "j-worker-0 slots=4\nj-worker-1 slots=4\n"
    assert "--container main -- " in data["kubexec.sh"]
    assert found["Role"].content["rules"][1] == {
        "apiGroups": [""],
        "resources": ["pods/exec"],
        "resourceNames": ["j-worker-0", "j-worker-1"],
        "verbs": ["create"],
    }


def test_launcher_without_workers_may_not_run_commands_in_any_pod() -> None:
    rules = desired(given(0))["Role"].content["rules"]
    assert [each["resources"] for each in rules] == [["pods"]]


def test_launcher_with_gpus_is_a_host() -> None:
    body = replica(MPI)
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    body["template"]["spec"]["containers"][0] |= limits
    found = typed(MPI, Launcher=body, Worker=replica(MPI))
    data = desired(found)["ConfigMap"].content["data"]
    assert data["hostfile"].splitlines()[0] == "j-launcher slots=1"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(built(found, "Launcher", 0))


def test_service_account_of_the_template_is_used() -> None:
    body = replica(MPI, serviceAccountName="mine")
    found = typed(MPI, Launcher=body, Worker=replica(MPI))
    objects = desired(found)
    assert "ServiceAccount" not in objects
    assert objects["RoleBinding"].content["subjects"][0]["name"] == "mine"
    assert built(found, "Launcher", 0)["spec"]["serviceAccountName"] == "mine"


def test_launcher_pod() -> None:
    found = built(given(), "Launcher", 0)
    assert found["metadata"]["name"] == "j-launcher"
    assert "training.kubeflow.org/replica-index" not in found["metadata"]["labels"]
    assert environment(found) == {
        "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": "/etc/mpi/kubexec.sh",
    }
    (delivery,) = found["spec"]["initContainers"]
    assert delivery["name"] == "kubectl-delivery"
    assert delivery["env"] == [
        {"name": "TARGET_DIR", "value": "/opt/kube"},
        {"name": "NAMESPACE", "value": "d"},
    ]
    mounts = [each["mountPath"] for each in found["spec"]["containers"][0]["volumeMounts"]]
    assert mounts == ["/opt/kube", "/etc/mpi"]
    items = found["spec"]["volumes"][1]["configMap"]["items"]
    assert {each["key"]: each["mode"] for each in items} == {
        "kubexec.sh": 0o555,
        "hostfile": 0o444,
        "discover_hosts.sh": 0o555,
    }


def test_worker_without_command_sleeps() -> None:
    container = built(given(), "Worker", 1)["spec"]["containers"][0]
    assert (container["command"], container["args"]) == (["sleep"], ["365d"])
    body = replica(MPI)
    body["template"]["spec"]["containers"][0]["args"] = ["serve"]
    found = typed(MPI, Launcher=replica(MPI), Worker=body)
    container = built(found, "Worker", 0)["spec"]["containers"][0]
    assert "command" not in container and container["args"] == ["serve"]


def test_running_needs_launcher_and_all_workers() -> None:
    found = given(2)
    launcher, first = pod(found, "Launcher", 0), pod(found, "Worker", 0)
    assert "Running" not in conditions(decided(found, launcher, first))
    both = conditions(decided(found, launcher, first, pod(found, "Worker", 1)))
    assert both["Running"] == ("True", "MPIJobRunning")


def test_evicted_pod_fails_the_job_with_its_reason() -> None:
    found = given(1)
    evicted = pod(found, "Worker", 0, "Failed")
    status = msgspec.structs.replace(evicted.status, reason="Evicted")
    result = decided(
        found, pod(found, "Launcher", 0), msgspec.structs.replace(evicted, status=status)
    )
    assert conditions(result)["Failed"] == ("True", "MPIJobEvicted")


def test_failed_launcher_is_created_again_for_a_retryable_code() -> None:
    found = given(1, "ExitCode")
    worker = pod(found, "Worker", 0)
    result = decided(found, pod(found, "Launcher", 0, "Failed", code=137), worker)
    deleted = [each for each in result.writes if isinstance(each, fx.DeletePods)]
    assert [each.metadata.name for each in deleted[0].pods] == ["j-launcher"]
    assert conditions(result)["Restarting"] == ("True", "MPIJobRestarting")
    failed = decided(found, pod(found, "Launcher", 0, "Failed", code=1), worker)
    assert conditions(failed)["Failed"] == ("True", "MPIJobFailed")


def test_terminating_worker_does_not_fail_the_job() -> None:
    found = given(1)
    lost = pod(found, "Worker", 0, deletionTimestamp="2026-01-01T09:00:00Z")
    assert "Failed" not in conditions(decided(found, pod(found, "Launcher", 0), lost))
