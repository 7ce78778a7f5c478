"""The writes for the jobs of a shape, sent by a client that does nothing else.

What they cost no faster controller and no better decision can save: only fewer or cheaper writes.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batholith.kube.client.client import Client
from batholith.model.names import JOBS, PLAN, PODGROUPS, PODS
from batholith.model.placement import Plan
from bench.components import SIMULATED
from bench.load import NAMESPACE, bind, in_parallel, job

Json = dict[str, Any]

RECORDED_JOB = "recorded-job"
RECORDED_PODS = 20
"""Maximum size of the job that is recorded: the bodies do not depend on it."""
_TASK_INDEX = "volcano.sh/task-index"
_OF_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
_OF_ADMISSION = ("tolerations", "priority", "preemptionPolicy", "serviceAccountName")
"""Fields of a pod's spec that admission adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What was written for one job, with its name and uid in the text."""

    job_uid: str
    podgroup: str | None
    """``None`` for a job without one."""
    pod: str
    job_status: Json

    def podgroup_of(self, name: str, uid: str) -> Json:
        """The PodGroup of another job."""
        assert self.podgroup is not None
        return self._for(self.podgroup, name, uid)

    def pod_of(self, name: str, uid: str) -> Json:
        """A pod of another job."""
        return self._for(self.pod, name, uid)

    def _for(self, text: str, name: str, uid: str) -> Json:
        found: Json = json.loads(text.replace(RECORDED_JOB, name).replace(self.job_uid, uid))
        return found


async def record(client: Client) -> Recording:
    """Return what the job :data:`RECORDED_JOB`, which runs, and its PodGroup and pods contain."""
    found = await client.get(JOBS, RECORDED_JOB, namespace=NAMESPACE, view=dict)
    podgroups = (await client.list(PODGROUPS, namespace=NAMESPACE, view=dict)).items
    pod = (await client.list(PODS, namespace=NAMESPACE, view=dict)).items[0]
    spec = {name: value for name, value in pod["spec"].items() if name not in _OF_ADMISSION}
    return Recording(
        job_uid=found["metadata"]["uid"],
        podgroup=json.dumps(_as_created(podgroups[0])) if podgroups else None,
        pod=json.dumps(_as_created(pod) | {"spec": spec}),
        job_status=found["status"],
    )


def _as_created(stored: Mapping[str, Any]) -> Json:
    body = {name: value for name, value in stored.items() if name != "status"}
    body["metadata"] = {
        name: value for name, value in stored["metadata"].items() if name not in _OF_SERVER
    }
    body["metadata"].get("annotations", {}).pop(PLAN, None)
    return body


async def send(client: Client, recording: Recording, *, jobs: int, pods: int, cpu: str) -> None:
    """Create *jobs* jobs of *pods* pods each, and write what the components write for them."""
    uids: dict[int, str] = {}
    left = [pods] * jobs

    async def create_job(number: int) -> None:
        name = f"b{number}"
        created = await client.create(
            JOBS, job(name, pods, cpu=cpu), namespace=NAMESPACE, view=dict
        )
        uids[number] = uid = created["metadata"]["uid"]
        if recording.podgroup is not None:
            await create_podgroup(number, name, uid)

    async def create_podgroup(number: int, name: str, uid: str) -> None:
        group = await client.create(
            PODGROUPS, recording.podgroup_of(name, uid), namespace=NAMESPACE, view=dict
        )
        plan = _plan(number, pods)
        meta = group["metadata"]
        written = {"resourceVersion": meta["resourceVersion"], "annotations": {PLAN: plan}}
        body = {"metadata": written, "status": {"phase": "Inqueue"}}
        await client.patch(PODGROUPS, meta["name"], body, namespace=NAMESPACE)

    async def create_pod(at: tuple[int, int]) -> None:
        number, index = at
        body = recording.pod_of(f"b{number}", uids[number])
        body["metadata"]["name"] = f"b{number}-t-{index}"
        for texts in (body["metadata"]["labels"], body["metadata"]["annotations"]):
            texts[_TASK_INDEX] = str(index)
        node = _node(number * pods + index)
        if recording.podgroup is not None:
            body["spec"]["nodeName"] = node
        else:
            del body["spec"]["nodeName"]
        await client.create(PODS, body, namespace=NAMESPACE)
        if recording.podgroup is None:
            await bind(client, body["metadata"]["name"], node)
        left[number] -= 1
        if not left[number]:
            await write_status(number)

    async def write_status(number: int) -> None:
        status = copy.deepcopy(recording.job_status)
        status["running"] = pods
        await client.patch(
            JOBS, f"b{number}", {"status": status}, namespace=NAMESPACE, subresource="status"
        )

    await in_parallel(range(jobs), create_job)
    await in_parallel(((job, pod) for job in range(jobs) for pod in range(pods)), create_pod)


def _plan(number: int, pods: int) -> str:
    nodes = {("t", index): _node(number * pods + index) for index in range(pods)}
    return Plan(id="18c-1", members="0" * 32, version=0, until=2**31, nodes=nodes).encode()


def _node(number: int) -> str:
    return f"sim-{number % SIMULATED}"
