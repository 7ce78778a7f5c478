"""What the plugins give reaches the programs in the pods: each variable and file as recorded."""

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.embedded_cluster import EmbeddedCluster, embedded_cluster

from batholith.model.job import Job
from batholith.model.names import JOBS, NAMESPACES, PODS, SECRETS

pytestmark = pytest.mark.process

Json = dict[str, Any]

CREATED: Json = json.loads(
    (Path(__file__).parents[1] / "data" / "job_ctrl" / "created-objects.json").read_text()
)
SCENARIOS = (
    "plugin-env-svc", "plugin-hcclrank", "plugin-mpi", "plugin-pytorch", "plugin-ssh",
    "plugin-ssh-path", "plugin-svc-args", "plugin-tensorflow", "plugin-tensorflow-names",
)  # fmt: skip
"""Not among them: ray, which runs its own program, and waiting, which takes a master's port."""

OURS = re.compile(r"V[CK]_\w+|TF_CONFIG|MPI_HOST|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK")
PROGRAM = """
import json, os, sys
root = os.environ.get("BATHOLITH_ROOT", "")
files = {}
for directory in sys.argv[1:]:
    for name in os.listdir(root + directory):
        if name.startswith(".."):
            continue  # by which files change in one step
        with open(f"{root}{directory}/{name}", "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o7777
            files[f"{directory}/{name}"] = [mode, file.read().decode()]
print(json.dumps({"env": dict(os.environ), "files": files}))
"""


def reporting_job(scenario: str) -> Json:
    """The job of a scenario, with containers that print their environment and files."""
    spec = json.loads(json.dumps(CREATED[scenario]["Job"]["spec"]))
    directories = [
        mount["mountPath"]
        for mount in CREATED[scenario]["Pod"][0]["spec"]["containers"][0].get("volumeMounts", ())
    ]
    for task in spec["tasks"]:
        for container in task["template"]["spec"]["containers"]:
            container["command"] = ["python3", "-c", PROGRAM, *directories]
    return {"metadata": {"name": "j"}, "spec": spec}


async def run_scenario(cluster: EmbeddedCluster, scenario: str) -> None:
    """Run the job of a scenario, in a namespace that is called like it, to its end."""
    await cluster.client.create(NAMESPACES, {"metadata": {"name": scenario}})
    await cluster.client.create(JOBS, reporting_job(scenario), namespace=scenario)
    async for event in cluster.client.watch(JOBS, namespace=scenario, view=Job):
        if event.object.status.state.phase == "Completed":
            return


async def keys(cluster: EmbeddedCluster, scenario: str) -> dict[str, str]:
    """The entries of the job's Secret, decoded; it is deleted when the job ends."""
    async for event in cluster.client.watch(SECRETS, namespace=scenario, view=dict):
        entries = event.object["data"].items()
        return {key: base64.b64decode(text).decode() for key, text in entries}
    raise AssertionError("the watch ended")


def variables(recorded: Json, scenario: str) -> dict[str, str]:
    """What the recorded pod's variables are worth."""
    values = {}
    for one in recorded["spec"]["containers"][0].get("env", ()):
        source = one.get("valueFrom", {}).get("configMapKeyRef")
        text = CREATED[scenario]["ConfigMap"]["data"][source["key"]] if source else one["value"]
        values[one["name"]] = text
    return values


def files(recorded: Json, scenario: str, secret: Json) -> Iterator[tuple[str, list[Any]]]:
    """Path, mode and content of each file that the recorded pod mounts."""
    volumes = {volume["name"]: volume for volume in recorded["spec"].get("volumes", ())}
    for mount in recorded["spec"]["containers"][0].get("volumeMounts", ()):
        volume = volumes[mount["name"]]
        if "configMap" in volume:
            mode = volume["configMap"].get("defaultMode", 0o644)
            for name, text in CREATED[scenario]["ConfigMap"]["data"].items():
                yield f"{mount['mountPath']}/{name}", [mode, text]
        else:
            for item in volume["secret"]["items"]:
                name = item["path"].removeprefix(f"{mount['subPath']}/")
                yield (
                    f"{mount['mountPath']}/{name}",
                    [volume["secret"]["defaultMode"], secret[item["key"]]],
                )


async def check(cluster: EmbeddedCluster, scenario: str, secret: Json) -> None:
    """Compare the output of each pod with its recording."""
    there = (await cluster.client.list(PODS, namespace=scenario, view=dict)).items
    pods = {pod["metadata"]["name"]: pod for pod in there}
    recorded = {pod["metadata"]["name"]: pod for pod in CREATED[scenario]["Pod"]}
    assert pods.keys() >= recorded.keys(), scenario
    for name, pod in recorded.items():
        report = json.loads(await cluster.log(name, namespace=scenario))
        given = {key: text for key, text in report["env"].items() if OURS.fullmatch(key)}
        assert given == variables(pod, scenario), (scenario, name)
        assert report["files"] == dict(files(pod, scenario, secret)), (scenario, name)
        assert report["env"]["HOSTNAME"] == pod["spec"].get("hostname", name)
        rank = pod["metadata"]["annotations"].get("hccl/rankIndex")
        assert pods[name]["metadata"]["annotations"].get("hccl/rankIndex") == rank


@pytest.mark.timeout(500)
async def test_programs_see_the_variables_and_files_that_were_recorded(tmp_path: Path) -> None:
    with_keys = [scenario for scenario in SCENARIOS if "Secret" in CREATED[scenario]]
    assert len(with_keys) == 3
    async with embedded_cluster(tmp_path / "data") as cluster, asyncio.timeout(400):
        async with asyncio.TaskGroup() as group:
            secrets = {one: group.create_task(keys(cluster, one)) for one in with_keys}
            for scenario in SCENARIOS:
                group.create_task(run_scenario(cluster, scenario))
        for scenario in SCENARIOS:
            secret = secrets[scenario].result() if scenario in secrets else {}
            await check(cluster, scenario, secret)
        for scenario in with_keys:
            recorded = CREATED[scenario]["Secret"]["data"]["config"]
            assert secrets[scenario].result()["config"] == base64.b64decode(recorded).decode()
