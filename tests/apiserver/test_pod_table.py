"""`kubectl get pods` of pods with sidecars, compared to a real server."""

from pathlib import Path
from typing import Any

from support.api_servers import ServerFactory
from support.embedded_apiserver import MERGE, PODS, pod

Json = dict[str, Any]
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
SINCE = {"startedAt": "2026-01-01T11:00:00Z"}


def one(name: str, *, ready: bool = False, count: int = 0, **state: Any) -> Json:
    started = "running" in state
    return {"name": name, "image": "i", "imageID": "", "ready": ready, "started": started,
            "restartCount": count, "state": state}  # fmt: skip


def ended(name: str, code: int, count: int = 0) -> Json:
    reason = "Error" if code else "Completed"
    return one(name, count=count, terminated={"exitCode": code, "reason": reason})


def status(phase: str, main: Json, *inits: Json, initialized: bool) -> Json:
    condition = {"type": "Initialized", "status": str(initialized)}
    return {"phase": phase, "conditions": [condition], "containerStatuses": [main],
            "initContainerStatuses": list(inits)}  # fmt: skip


CASES: dict[str, tuple[Json, list[object]]] = {
    "completed": (
        status("Succeeded", ended("c", 0), ended("side", 143), initialized=True),
        ["0/2", "Completed", "0"],
    ),
    "failed": (
        status("Failed", ended("c", 3), ended("side", 137), initialized=True),
        ["0/2", "Error", "0"],
    ),
    "killed-side": (
        status("Running", one("c", ready=True, running=SINCE), ended("side", 137, 2),
               initialized=True),
        ["1/2", "Init:Error", "2"],
    ),
    "both": (
        status("Running", one("c", ready=True, running=SINCE),
               one("side", ready=True, running=SINCE), initialized=True),
        ["2/2", "Running", "0"],
    ),
    "not-begun": (
        status("Pending", one("c", waiting={"reason": "PodInitializing"}), ended("side", 1),
               initialized=False),
        ["0/2", "Init:Error", "0"],
    ),
}  # fmt: skip


async def test_a_stopped_sidecar_is_not_a_failed_initialization(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        side = {"name": "side", "image": "i", "restartPolicy": "Always"}
        for name, (status, _) in CASES.items():
            await server.create(PODS, pod(name, initContainers=[side]))
            path = f"{PODS}/{name}/status"
            response = await server.request("PATCH", path, {"status": status}, content_type=MERGE)
            assert response.status == 200, response.body
        response = await server.request("GET", PODS, headers={"Accept": TABLE})
        rows = {row["cells"][0]: row["cells"][1:4] for row in response.body["rows"]}
    assert rows == {name: wanted for name, (_, wanted) in CASES.items()}
