"""A scenario in which the training controller needs all of its rights, on a real API server."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from support.embedded_apiserver import MERGE
from support.rbac import service_account
from support.realkube import RealServer
from support.training_manifests import BY_KIND, template, training_job

from batholith.model.names import (
    CONFIGMAPS,
    PODS,
    SERVICEACCOUNTS,
    SERVICES,
    TRAINING_JOB_NAME,
    TRAINING_OPERATOR_NAME,
    TRAINING_REPLICA_INDEX,
    TRAINING_REPLICA_TYPE,
    Resource,
)
from batholith.training_ctrl.pods import job_labels

Json = dict[str, Any]

NAMESPACE = "default"
RBAC_GROUP = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC_GROUP, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(RBAC_GROUP, "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource(RBAC_GROUP, "v1", "clusterroles", "ClusterRole", namespaced=False)
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
ROLE = "batholith-training-jobs"
MASTERS = {"PyTorchJob": "Master", "XGBoostJob": "Master", "MPIJob": "Launcher"}
"""Replica types without which a job of that kind is invalid or incomplete; others have workers."""

GRANTED_ONLY = "pods/exec"
"""The controllers only grant this right, to launchers; the API server looks it up."""

Wait = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class TrainingRights:
    """Creates the jobs, and changes their objects."""

    server: RealServer
    wait: Wait
    """Waits until a query is true."""

    async def run(self) -> None:
        """Jobs of all kinds fail, others have objects that lose their labels."""
        await asyncio.gather(
            *(self._run_failing_job(kind) for kind in BY_KIND),
            self._run_launcher(),
            self._run_elastic_job(),
        )

    async def run_without_lookup_rights(self) -> None:
        """Neither a launcher's Role nor owned objects can be created without rights for them."""
        await self._remove_rule(GRANTED_ONLY)
        await self.server.request("DELETE", ROLES.path(NAMESPACE, "launched-launcher"))
        await self._wait_denied({("roles", "launched-launcher")})
        await self._remove_rule("/finalizers")
        for kind in BY_KIND:
            await self._create_job(kind, f"minus-{kind.lower()}", "exit 0")
        await self._wait_denied({("podgroups", f"minus-{kind.lower()}") for kind in BY_KIND})

    async def _run_failing_job(self, kind: str) -> None:
        """It adopts a pod and a Service, restarts a pod, and is removed by its time."""
        name = f"failing-{kind.lower()}"
        labels = {
            **job_labels(BY_KIND[kind].kind, name),
            TRAINING_REPLICA_TYPE: "worker",
            TRAINING_REPLICA_INDEX: "9",
        }
        meta: Json = {"name": f"orphan-{kind.lower()}", "labels": labels}
        container = {"name": "main", "image": "busybox"}
        pod: Json = {"schedulerName": "none", "containers": [container]}
        await self.server.create(PODS.path(NAMESPACE), {"metadata": meta, "spec": pod})
        service: Json = {"clusterIP": "None", "selector": labels}
        await self.server.create(SERVICES.path(NAMESPACE), {"metadata": meta, "spec": service})
        limits = {"backoffLimit": 1, "ttlSecondsAfterFinished": 0}
        await self._create_job(kind, name, "exit 130", policy="ExitCode", runPolicy=limits)
        await self._wait_deleted(BY_KIND[kind].kind.resource.path(NAMESPACE, name))

    async def _run_launcher(self) -> None:
        """The objects of an MPIJob are found without the labels by which they are watched."""
        await self._create_job("MPIJob", "launched", "sleep 3600")
        for resource, name in (
            (SERVICEACCOUNTS, "launched-launcher"),
            (CONFIGMAPS, "launched-config"),
            (ROLES, "launched-launcher"),
            (ROLE_BINDINGS, "launched-launcher"),
        ):
            await self._remove_labels(resource.path(NAMESPACE, name))

    async def _run_elastic_job(self) -> None:
        """The autoscaler of a job is removed when the job is suspended."""
        metric = {
            "type": "Resource",
            "resource": {
                "name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 80},
            },
        }
        elastic = {"minReplicas": 1, "maxReplicas": 2, "metrics": [metric]}
        body = training_job(
            "PyTorchJob",
            {"Worker": _replicas("PyTorchJob", "sleep 3600")},
            name="elastic",
            elasticPolicy=elastic,
        )
        path = BY_KIND["PyTorchJob"].kind.resource.path(NAMESPACE)
        await self.server.create(path, body)
        autoscaler = AUTOSCALERS.path(NAMESPACE, "elastic")
        await self._remove_labels(autoscaler)
        suspended = {"spec": {"runPolicy": {"suspend": True}}}
        await self.server.request("PATCH", f"{path}/elastic", suspended, content_type=MERGE)
        await self._wait_deleted(autoscaler)

    async def _create_job(
        self, kind: str, name: str, script: str, *, policy: str = "Never", **spec: Any
    ) -> None:
        types = {
            each: _replicas(kind, script) | {"restartPolicy": policy}
            for each in sorted({MASTERS.get(kind, "Worker"), "Worker"})
        }
        path = BY_KIND[kind].kind.resource.path(NAMESPACE)
        await self.server.create(path, training_job(kind, types, name=name, **spec))

    async def _remove_labels(self, path: str) -> None:
        """Remove the labels that select an object, and wait until they are back."""
        labels = (TRAINING_OPERATOR_NAME, TRAINING_JOB_NAME)

        async def is_labelled() -> bool:
            found = await self.server.request("GET", path)
            return found.status == 200 and all(
                name in found.body["metadata"].get("labels", {}) for name in labels
            )

        await self.wait(is_labelled, f"{path} has its labels")
        patch: Json = {"metadata": {"labels": dict.fromkeys(labels)}}
        done = await self.server.request("PATCH", path, patch, content_type=MERGE)
        assert done.status == 200, done.body
        await self.wait(is_labelled, f"{path} has its labels again")

    async def _wait_deleted(self, path: str) -> None:
        async def is_deleted() -> bool:
            return (await self.server.request("GET", path)).status == 404

        await self.wait(is_deleted, f"{path} is deleted")

    async def _remove_rule(self, resource: str) -> None:
        """Remove the rule about *resource* from the role of the controllers."""
        path = CLUSTER_ROLES.path(name=ROLE)
        role = await self.server.get(path)
        left = [rule for rule in role["rules"] if resource not in str(rule["resources"])]
        assert len(left) == len(role["rules"]) - 1
        done = await self.server.request("PUT", path, role | {"rules": left})
        assert done.status == 200, done.body

    async def _wait_denied(self, objects: set[tuple[str, str]]) -> None:
        """Wait until the controllers were denied to create all *objects*."""

        async def are_denied() -> bool:
            return objects <= set(self._denied())

        await self.wait(are_denied, "all are denied")

    def _denied(self) -> Iterator[tuple[str, str]]:
        for line in self.server.kube.audit():
            if line.get("responseStatus", {}).get("code") == 403 and line["user"][
                "username"
            ] == service_account("controllers"):
                about = line["objectRef"]
                yield about["resource"], about.get("name", "")


def _replicas(kind: str, script: str) -> Json:
    command = ["sh", "-c", script]
    resources = {"requests": {"cpu": "100m"}}
    return {"replicas": 1, "template": template(kind, command=command, resources=resources)}
