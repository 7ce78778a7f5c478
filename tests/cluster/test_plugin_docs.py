"""The page for authors of plugins, followed step by step on an embedded cluster."""

import asyncio
import os
import random
import re
import shutil
import signal
import tomllib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.embedded_cluster import EmbeddedCluster, embedded_cluster
from support.packages import install
from support.polling import wait_for, wait_until_true

from batholith.job_ctrl.plugins.entry_points import GROUP
from batholith.kube.errors import ApiError
from batholith.model.job import Job
from batholith.model.names import CONFIGMAPS, EVENTS, JOBS

pytestmark = [pytest.mark.process, pytest.mark.timeout(500)]

Json = dict[str, Any]

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
RAISES = """
class Raises:
    def __init__(self, given):
        pass

    def on_pod_create(self, pod, job):
        raise ValueError("no such pod, please")
"""


def block(language: str) -> str:
    """The only block of the page in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


def install_from_docs(directory: Path) -> None:
    """Follow the instructions of the page."""
    project = tomllib.loads(block("toml"))["project"]
    modules, points = {"acme_plugins": block("python")}, project["entry-points"][GROUP]
    install(directory, project["name"], modules=modules, entry_points=points, group=GROUP)


def variant(name: str, **plugins: list[str]) -> Json:
    """The job of the page under another name, with other plugins."""
    job: Json = yaml.safe_load(block("yaml"))
    job["metadata"]["name"] = name
    job["spec"]["plugins"] = plugins
    return job


async def wait_job(cluster: EmbeddedCluster, name: str, is_so: Callable[[Job], object]) -> None:
    """Wait until a job is as wanted."""
    async with asyncio.timeout(100):
        async for event in cluster.client.watch(JOBS, namespace="default", view=Job):
            if event.object.metadata.name == name and is_so(event.object):
                return


async def warning(cluster: EmbeddedCluster, job: str) -> str:
    """Message of the first PluginError of a job."""
    message: list[str] = []

    async def has_warning() -> bool:
        events = (await cluster.client.list(EVENTS, namespace="default", view=dict)).items
        message.extend(
            event["message"]
            for event in events
            if (event["involvedObject"]["name"], event["reason"]) == (job, "PluginError")
        )
        return bool(message)

    await wait_until_true(has_warning)
    return message[0]


def wake(seconds: str) -> bool:
    """Kill the ``sleep`` of *seconds*; return whether there was one."""
    found = False
    for directory in Path("/proc").iterdir():
        with suppress(OSError):
            if (directory / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                os.kill(int(directory.name), signal.SIGKILL)
                found = True
    return found


def has_ended(job: Job) -> bool:
    return job.status.state.phase == "Completed"


async def test_the_plugin_of_the_page_serves_a_job_and_a_bad_one_harms_its_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    install_from_docs(packages)
    points = {"raises": "others:Raises", "lost": "nowhere:Lost"}
    install(packages, "others", modules={"others": RAISES}, entry_points=points, group=GROUP)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    async with embedded_cluster(tmp_path / "data") as cluster:
        client = cluster.client
        for bad in ("raises", "lost"):
            await client.create(JOBS, variant(bad, **{bad: []}), namespace="default")
        with pytest.raises(ApiError, match="unable to find job plugin: nosuch"):
            await client.create(JOBS, variant("refused", nosuch=[]), namespace="default")
        what = "job plugin 'raises' failed in on_pod_create: ValueError: no such pod, please"
        assert await warning(cluster, "raises") == what
        what = "job plugin 'lost' failed in nowhere:Lost of others 1.0: ModuleNotFoundError"
        assert what in await warning(cluster, "lost")

        await client.create(JOBS, yaml.safe_load(block("yaml")), namespace="default")
        await wait_job(cluster, "behind-a-proxy", has_ended)
        message = await cluster.log("behind-a-proxy-main-0")
        assert message == "http://gate.example:3128\npip.conf\n"

        async def tidy() -> bool:
            there = (await client.list(CONFIGMAPS, namespace="default", view=dict)).items
            return not any(one["metadata"]["name"] == "behind-a-proxy-proxy" for one in there)

        await wait_until_true(tidy)
        assert cluster.state.components["controllers"].restarts == 0
        assert "no such pod, please" in (cluster.data_dir.logs / "controllers.log").read_text()


async def test_a_job_whose_plugin_is_uninstalled_ends_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    install_from_docs(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    job = variant("left", proxy=[])
    (container,) = job["spec"]["tasks"][0]["template"]["spec"]["containers"]
    seconds = f"600.{random.getrandbits(48)}"  # that nothing else sleeps
    container["command"] = ["sh", "-c", f"sleep {seconds}; true"]
    root = tmp_path / "data"
    async with embedded_cluster(root) as cluster:
        await cluster.client.create(JOBS, job, namespace="default")
        await wait_job(cluster, "left", lambda job: job.status.running == 1)
        shutil.rmtree(packages / "acme_plugins-1.0.dist-info")
        cluster.kill("controllers")
        assert "'proxy' is not installed" in await warning(cluster, "left")
        await wait_for(partial(wake, seconds), "the pod runs")
        await wait_job(cluster, "left", has_ended)
        ended = await cluster.client.get(JOBS, "left", namespace="default", view=Job)
        assert ended.status.succeeded == 1
