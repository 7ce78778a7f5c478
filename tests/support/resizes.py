"""Requests to resize pods, and what their status shows of them."""

from typing import Any

from support.agent_cluster import AgentCluster

from batholith.kube.client.client import PatchType
from batholith.model.names import PODS

Json = dict[str, Any]


def requests(cpu: str = "1", memory: str = "64Mi") -> Json:
    return {"requests": {"cpu": cpu, "memory": memory}}


def resize_conditions(seen: Json) -> dict[str, tuple[str, str]]:
    kinds = ("PodResizePending", "PodResizeInProgress")
    return {
        each["type"]: (each.get("reason", ""), each.get("message", ""))
        for each in seen["status"].get("conditions", ())
        if each["type"] in kinds
    }


async def resize(cluster: AgentCluster, name: str, given: Json) -> Json:
    """Ask for other resources of a pod's container."""
    return await cluster.client.patch(
        PODS,
        name,
        {"spec": {"containers": [{"name": "c", "resources": given}]}},
        namespace=cluster.namespace,
        subresource="resize",
        kind=PatchType.STRATEGIC,
        view=dict,
    )


def is_resized(seen: Json, cpu: str) -> bool:
    """Return whether the agent has observed the spec, and the container runs with it."""
    status, meta = seen["status"], seen["metadata"]
    found = (status.get("containerStatuses") or [{}])[0]
    return (
        status.get("observedGeneration") == meta["generation"]
        and not resize_conditions(seen)
        and "running" in found["state"]
        and found.get("resources", {}).get("requests", {}).get("cpu") == cpu
    )
