"""The training controller on both API servers: what it writes is accepted and has its effect."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.api_servers import ServerFactory, add_namespace
from support.controller_api import NAMESPACE
from support.embedded_apiserver import Server
from support.polling import wait_until_equal, wait_until_true
from support.running_controller import FakeRecorder, running
from support.training_harness import RESOURCES, job, replica

from batholith.kube.client.client import Client, PatchType
from batholith.kube.errors import NotFoundError
from batholith.model import crds
from batholith.model.names import CONFIGMAPS, PODGROUPS, PODS, SERVICES, Resource
from batholith.training_ctrl.controller import TrainingController
from batholith.training_ctrl.frameworks._mpi_objects import ROLES
from batholith.training_ctrl.frameworks.pytorch import HORIZONTAL_POD_AUTOSCALERS
from batholith.training_ctrl.settings import TrainingSettings

Json = dict[str, Any]
PYTORCH, MPI = "PyTorchJob", "MPIJob"
REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)


@dataclass
class World:
    """A server, and what a kubelet and a scheduler do."""

    client: Client
    recorder: FakeRecorder

    def controller(self, **settings: Any) -> TrainingController:
        wanted = TrainingSettings(kinds=[PYTORCH, MPI], served_interval=0.2, **settings)
        return TrainingController(self.client, settings=wanted, recorder=self.recorder)

    async def create(self, body: Json) -> None:
        await self.client.create(RESOURCES[body["kind"]], body, namespace=NAMESPACE)

    async def get(self, resource: Resource, name: str = "j") -> Json:
        try:
            return await self.client.get(resource, name, namespace=NAMESPACE, view=Json)
        except NotFoundError:
            return {}

    async def patch(self, resource: Resource, name: str, body: Json, subresource: str = "") -> None:
        await self.client.patch(resource, name, body, namespace=NAMESPACE, subresource=subresource)

    async def names(self, resource: Resource, job: str) -> list[str]:
        selector = f"training.kubeflow.org/job-name={job}" if resource != PODGROUPS else ""
        found = await self.client.list(
            resource, namespace=NAMESPACE, view=Json, label_selector=selector
        )
        return sorted(each["metadata"]["name"] for each in found.items)

    async def expect(self, resource: Resource, *names: str, job: str = "j") -> None:
        await wait_until_equal(lambda: self.names(resource, job), [*names])

    async def expect_condition(
        self, kind: str, condition: str, status: str = "True", *, name: str = "j"
    ) -> None:
        async def found() -> bool:
            job = await self.get(RESOURCES[kind], name)
            conditions = job.get("status", {}).get("conditions", [])
            return any((each["type"], each["status"]) == (condition, status) for each in conditions)

        await wait_until_true(found)

    async def phase(self, phase: str, *pods: str, code: int = 0) -> None:
        for name in pods:
            pod = await self.get(PODS, name)
            container = pod["spec"]["containers"][0]
            ended = {"terminated": {"exitCode": code}}
            state = {"running": {}} if phase == "Running" else ended
            common = {"image": "i", "imageID": "", "ready": False, "restartCount": 0}
            status = {"name": container["name"], "state": state, **common}
            body = {"status": {"phase": phase, "containerStatuses": [status]}}
            await self.client.patch(
                PODS,
                name,
                body,
                namespace=NAMESPACE,
                subresource="status",
                kind=PatchType.MERGE,
            )


async def test_writes_are_accepted_and_have_their_effect(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """INV-TJ-7. One test, because the definitions take long to install on the real server."""
    definitions = (*crds.load(), *crds.load_training()) if servers.name == "embedded" else ()
    async with servers.start(tmp_path, crds=definitions) as server, server.client() as client:
        await _prepare(server, installed=servers.name == "embedded")
        world = World(client, FakeRecorder())
        await _life_of_a_job_with_a_gang(world)
        await _orphans_are_adopted_and_others_released(world)
        await _objects_of_an_mpijob_and_of_an_elastic_job(world)
        if servers.name == "real":  # the embedded server has no roles
            await _launcher_may_exec_in_its_workers_alone(server)


async def _launcher_may_exec_in_its_workers_alone(server: Server) -> None:
    """The server authorizes its account by Role and RoleBinding, which outlive the pods."""
    exec_in = {"verb": "create", "resource": "pods", "subresource": "exec", "namespace": NAMESPACE}

    async def is_allowed(**request: str) -> bool:
        user = f"system:serviceaccount:{NAMESPACE}:m-launcher"
        spec = {"user": user, "resourceAttributes": request}
        body = {"kind": REVIEWS.kind, "apiVersion": REVIEWS.api_version, "spec": spec}
        return bool((await server.create(REVIEWS.path(), body))["status"]["allowed"])

    await wait_until_true(lambda: is_allowed(**exec_in, name="m-worker-0"))
    assert await is_allowed(verb="list", resource="pods", namespace=NAMESPACE)
    assert not await is_allowed(**exec_in, name="e-worker-0")
    assert not await is_allowed(**exec_in)
    assert not await is_allowed(verb="get", resource="secrets", namespace=NAMESPACE)


async def _prepare(server: Server, *, installed: bool) -> None:
    if not installed:
        await server.install_crds(*crds.load_training())
    await add_namespace(server, NAMESPACE)


async def _life_of_a_job_with_a_gang(world: World) -> None:
    master = replica(PYTORCH, policy="ExitCode")
    # A Service with this number and with that of the port that is added would be rejected.
    ports = [{"name": "rendezvous", "containerPort": 23456}]
    master["template"]["spec"]["containers"][0]["ports"] = ports
    body = job(
        PYTORCH,
        run_policy={"cleanPodPolicy": "All", "backoffLimit": 3},
        Master=master,
        Worker=replica(PYTORCH, policy="ExitCode"),
    )
    pods = ["j-master-0", "j-worker-0"]
    resource = RESOURCES[PYTORCH]
    async with running(world.controller(gang_scheduler_name="volcano")):
        await world.create(body)
        await world.expect(PODGROUPS, "j")
        await world.patch(PODGROUPS, "j", {"status": {"phase": "Inqueue"}})
        await world.expect(PODS, *pods)
        await world.expect(SERVICES, *pods)
        await world.phase("Running", *pods)
        await world.expect_condition(PYTORCH, "Running")
        old = (await world.get(PODS, "j-worker-0"))["metadata"]["uid"]
        await world.phase("Failed", "j-worker-0", code=137)

        async def recreated() -> bool:
            found = await world.get(PODS, "j-worker-0")
            return bool(found) and found["metadata"]["uid"] != old

        await wait_until_true(recreated)
        await world.patch(resource, "j", {"spec": {"runPolicy": {"suspend": True}}})
        await world.expect_condition(PYTORCH, "Suspended")
        await world.expect(PODS)
        await world.expect(SERVICES)
        await world.expect(PODGROUPS)
        await world.patch(resource, "j", {"spec": {"runPolicy": {"suspend": False}}})
        await world.expect(PODGROUPS, "j")
        await world.patch(PODGROUPS, "j", {"status": {"phase": "Inqueue"}})
        await world.expect(PODS, *pods)
        await world.phase("Succeeded", "j-master-0")
        await world.expect_condition(PYTORCH, "Succeeded")
        await world.expect(PODS)
        ttl = {"spec": {"runPolicy": {"ttlSecondsAfterFinished": 0}}}
        await world.patch(resource, "j", ttl)
        await wait_until_equal(lambda: world.get(resource), {})


async def _orphans_are_adopted_and_others_released(world: World) -> None:
    async with running(world.controller()):
        await world.create(job(PYTORCH, Master=replica(PYTORCH), Worker=replica(PYTORCH)))
        await world.expect(PODS, "j-master-0", "j-worker-0")
        for resource in (PODS, SERVICES):
            await world.expect(resource, "j-master-0", "j-worker-0")
            await world.patch(resource, "j-worker-0", {"metadata": {"ownerReferences": None}})

            async def owners(resource: Resource = resource) -> int:
                found = await world.get(resource, "j-worker-0")
                return len(found["metadata"].get("ownerReferences", ()))

            await wait_until_equal(owners, 1)
            other = {"training.kubeflow.org/job-name": "another"}
            await world.patch(resource, "j-worker-0", {"metadata": {"labels": other}})
            await wait_until_equal(owners, 0)


async def _objects_of_an_mpijob_and_of_an_elastic_job(world: World) -> None:
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
    }
    policy = {"minReplicas": 1, "maxReplicas": 2, "metrics": [metric]}
    elastic = job(PYTORCH, "e", elasticPolicy=policy, Worker=replica(PYTORCH))
    async with running(world.controller()):
        cleaned = {"cleanPodPolicy": "Running"}
        types = {"Launcher": replica(MPI), "Worker": replica(MPI, 2)}
        await world.create(job(MPI, "m", run_policy=cleaned, **types))
        await world.create(elastic)
        await world.expect(PODS, "m-launcher", "m-worker-0", "m-worker-1", job="m")
        await world.phase("Running", "m-worker-0")

        async def hosts() -> str:
            found: str = (await world.get(CONFIGMAPS, "m-config"))["data"]["discover_hosts.sh"]
            return found

        await wait_until_equal(hosts, "#!/bin/sh\necho m-worker-0:1\n")
        field = {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 1}}}}
        await world.patch(RESOURCES[MPI], "m", field)
        await world.expect(PODS, "m-launcher", "m-worker-0", job="m")

        async def workers() -> object:
            return (await world.get(ROLES, "m-launcher"))["rules"][-1]["resourceNames"]

        await wait_until_equal(workers, ["m-worker-0"])

        async def limits() -> object:
            found = await world.get(HORIZONTAL_POD_AUTOSCALERS, "e")
            return found.get("spec", {}).get("maxReplicas")

        await wait_until_equal(limits, 2)
        spec = {"spec": {"elasticPolicy": {"maxReplicas": 3}}}
        await world.patch(RESOURCES[PYTORCH], "e", spec)
        await wait_until_equal(limits, 3)
        await world.phase("Running", "m-launcher")
        await world.expect_condition(MPI, "Running", name="m")
        await world.phase("Succeeded", "m-launcher")
        await world.expect_condition(MPI, "Succeeded", name="m")
        await world.expect(PODS, "m-launcher", job="m")  # the worker would not end
    assert "ErrResourceExists" not in {reason for *_, reason, _ in world.recorder.events}
