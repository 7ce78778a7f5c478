"""Jobs and pods that a recorder of the history observes, and what it has recorded."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from support.rest import RestClient

from batholith.kube.client.client import Client
from batholith.model.names import JOBS, PODS


def job(name: str, **spec: object) -> dict[str, Any]:
    task = {"name": "t", "replicas": 1, "template": {"spec": {"containers": []}}}
    return {
        "metadata": {"name": name, "annotations": {"batholith.io/submitted-by": "ada"}},
        "spec": {"minAvailable": 1, "queue": "research", "tasks": [task], **spec},
    }


async def has_begun(directory: Path) -> bool:
    """Whether the recorder has listed what it records: two kinds of jobs, and pods."""
    with contextlib.closing(sqlite3.connect(directory / "api.db")) as database:
        try:
            found = database.execute("SELECT count(*) = 3 FROM history_streams").fetchone()
        except sqlite3.OperationalError:
            return False  # the schema is not migrated yet
        return bool(found[0])


async def set_phase(client: Client, name: str, phase: str, at: str) -> None:
    found = await client.get(JOBS, name, namespace="default", view=dict)
    known = found.get("status", {}).get("conditions", [])
    conditions = [*known, {"status": phase, "lastTransitionTime": at}]
    state = {"phase": phase, "reason": f"is {phase}", "lastTransitionTime": at}
    status = {"state": state, "conditions": conditions, "taskStatusCount": {"t": {"phase": {}}}}
    await client.patch(JOBS, name, {"status": status}, namespace="default", subresource="status")


async def run_pod(client: Client, name: str, owner: dict[str, Any]) -> None:
    """A pod of a job that runs for one minute with half a core."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    containers = [
        {
            "name": "main",
            "image": "busybox",
            "resources": {"requests": {"cpu": "500m", "memory": "1Ki"}},
        }
    ]
    body = {
        "metadata": {"name": name, "ownerReferences": [reference]},
        "spec": {"containers": containers},
    }
    await client.create(PODS, body, namespace="default")
    ended = {
        "name": "main",
        "state": {
            "terminated": {
                "exitCode": 0,
                "startedAt": "2030-01-02T12:59:30Z",
                "finishedAt": "2030-01-02T13:00:30Z",
            }
        },
    }
    status = {
        "phase": "Succeeded",
        "startTime": "2030-01-02T12:59:30Z",
        "containerStatuses": [ended],
    }
    await client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")


async def create(rest: RestClient, name: str, **spec: object) -> dict[str, Any]:
    created = await rest.client.create(JOBS, job(name, **spec), namespace="default", view=dict)
    found: dict[str, Any] = created
    return found


async def details(rest: RestClient, uid: str) -> dict[str, Any]:
    status, body = await rest.call("GET", f"/v1/history/jobs/{uid}")
    assert status in (200, 404), body
    return body if status == 200 else {}
