"""Training jobs on an in-process API server: builders, and what a kubelet and a scheduler do."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry
from support.controller_api import NAMESPACE, ControllerApi, Json
from support.polling import wait_for, wait_until_true
from support.running_controller import FakeRecorder

from batholith.kube.client.client import Client
from batholith.machinery.testing import FakeClock
from batholith.model import crds
from batholith.model.names import PODGROUPS, PODS, SERVICES, TRAINING_GROUP, Resource
from batholith.training_ctrl.controller import TrainingController
from batholith.training_ctrl.frameworks import FRAMEWORKS
from batholith.training_ctrl.settings import TrainingSettings

KINDS = {each.kind.name: each.kind for each in FRAMEWORKS}
RESOURCES = {name: kind.resource for name, kind in KINDS.items()}
TFJOBS, PYTORCHJOBS = RESOURCES["TFJob"], RESOURCES["PyTorchJob"]
_DEFINITIONS = {each["metadata"]["name"]: each for each in crds.load_training()}


def definition(resource: Resource) -> Json:
    """The CRD of a training kind."""
    return _DEFINITIONS[f"{resource.plural}.{resource.group}"]


class TrainingApi(ControllerApi):
    """An API server that serves these kinds of training jobs and PodGroups."""

    def __init__(
        self, *resources: Resource, definitions: Iterable[Json] = (), **options: Any
    ) -> None:
        training = [definition(each) for each in resources if each.group == TRAINING_GROUP]
        super().__init__(PODGROUPS, definitions=[*training, *definitions], **options)


def template(container: str, *, image: str = "trainer", **spec: Any) -> Json:
    return {"spec": {"containers": [{"name": container, "image": image}], **spec}}


def replica(kind: str, replicas: int = 1, *, policy: str = "", **spec: Any) -> Json:
    """One entry of the replica map."""
    body: Json = {"replicas": replicas, "template": template(KINDS[kind].main_container, **spec)}
    return {**body, "restartPolicy": policy} if policy else body


def job(kind: str, name: str = "j", *, run_policy: Json | None = None, **spec: Any) -> Json:
    """A job; entries of its replica map begin with a capital letter."""
    types = {key: value for key, value in spec.items() if key[0].isupper()}
    fields = {key: value for key, value in spec.items() if not key[0].isupper()}
    body = {KINDS[kind].replica_field: types, "runPolicy": run_policy or {}, **fields}
    resource = RESOURCES[kind]
    return {
        "apiVersion": resource.api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": body,
    }


@dataclass
class TrainingHarness:
    """An API server, and controllers with a clock that tests advance."""

    api: TrainingApi
    client: Client
    recorder: FakeRecorder = field(default_factory=FakeRecorder)
    clock: FakeClock = field(default_factory=FakeClock)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def controller(self, **settings: Any) -> TrainingController:
        return TrainingController(
            self.client,
            settings=TrainingSettings(
                **{"registry": self.registry, "count_interval": 0.0, **settings}
            ),
            clock=self.clock,
            recorder=self.recorder,
        )

    async def create(self, body: Json) -> Json:
        return await self.api.create(RESOURCES[body["kind"]], body, namespace=NAMESPACE)

    async def patch(self, kind: str, spec: Json, name: str = "j") -> Json:
        resource = RESOURCES[kind]
        return await self.api.patch(resource, name, {"spec": spec}, namespace=NAMESPACE)

    def job(self, kind: str, name: str = "j") -> Json:
        return self.api.objects(RESOURCES[kind])[f"{NAMESPACE}/{name}"]

    def status(self, kind: str, name: str = "j") -> Json:
        found = self.api.objects(RESOURCES[kind]).get(f"{NAMESPACE}/{name}", {})
        status: Json = found.get("status", {})
        return status

    def conditions(self, kind: str, name: str = "j") -> dict[str, tuple[str, str]]:
        """Status and reason of each condition."""
        found = self.status(kind, name).get("conditions", [])
        return {each["type"]: (each["status"], each["reason"]) for each in found}

    def is_true(self, condition: str, kind: str, name: str = "j") -> bool:
        return self.conditions(kind, name).get(condition, ("", ""))[0] == "True"

    def count(self, kind: str, replica_type: str, field: str, name: str = "j") -> int:
        """A number of ``replicaStatuses``."""
        types: Json = self.status(kind, name).get("replicaStatuses", {})
        found: int = types.get(replica_type, {}).get(field, 0)
        return found

    def names(self, resource: Resource) -> list[str]:
        return [key.partition("/")[2] for key in self.api.objects(resource)]

    @property
    def pods(self) -> list[str]:
        return self.names(PODS)

    @property
    def services(self) -> list[str]:
        return [name for name in self.names(SERVICES) if name != "kubernetes"]

    def pod(self, name: str) -> Json:
        return self.api.objects(PODS)[f"{NAMESPACE}/{name}"]

    def uid(self, pod: str) -> str:
        uid: str = self.pod(pod)["metadata"]["uid"]
        return uid

    def env(self, pod: str) -> dict[str, str]:
        container = self.pod(pod)["spec"]["containers"][0]
        return {each["name"]: each.get("value", "") for each in container.get("env", [])}

    async def phase(self, phase: str, *pods: str, code: int | None = None) -> None:
        """What the kubelet reports of *pods*; of all of them by default."""
        for pod in pods or self.pods:
            await self.api.wait_for(PODS, pod, bool, namespace=NAMESPACE)  # is committed
            await self.api.set_pod_phase(pod, phase, namespace=NAMESPACE, exit_code=code)

    async def restarts(self, pod: str, number: int) -> None:
        """The kubelet has restarted the container of a running pod."""
        statuses = self.pod(pod)["status"]["containerStatuses"]
        body = {"status": {"containerStatuses": [{**statuses[0], "restartCount": number}]}}
        await self.api.patch(PODS, pod, body, namespace=NAMESPACE, subresource="status")

    async def advance_until(self, condition: Callable[[], object]) -> None:
        """Advance the clock, so that retries are due, until *condition* holds."""

        async def holds() -> bool:
            await self.clock.advance(1)
            return bool(condition())

        await wait_until_true(holds)

    async def admitted(self) -> None:
        """Wait for the PodGroup of job j, and admit it."""
        await wait_for(lambda: self.names(PODGROUPS) == ["j"])
        self.admit()

    async def create_admitted(self, body: Json) -> None:
        """Create job j with a gang, which is admitted."""
        await self.create(body)
        await self.admitted()

    def admit(self, name: str = "j", phase: str = "Inqueue") -> None:
        """What the scheduler does with a PodGroup."""
        self.api.put(PODGROUPS, name, status={"phase": phase})

    def reasons(self) -> list[str]:
        return [reason for _, _, _, reason, _ in self.recorder.events]

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0
