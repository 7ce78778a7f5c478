"""Volumes with the files of images: what containers see of them, and why they wait for them."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.agent import container, manifest
from support.agent_cluster import AgentCluster, Json, agent_cluster
from support.api_servers import ServerFactory
from support.images import Layer, busybox, image, write_layout
from support.polling import wait_for
from support.registry_server import RegistryServer, registry_server
from support.sandbox import detected_isolation

from batholith.local.agent.images import archives
from batholith.local.agent.images.errors import ImageError
from batholith.local.agent.images.manager import ImageManager, RunMode
from batholith.local.agent.images.puller import Registry
from batholith.local.agent.images.store import ImageStore, StoredImage
from batholith.local.agent.pods.image_use import image_uses
from batholith.local.agent.runtime.runs import IsolationLevel

pytestmark = [pytest.mark.process, pytest.mark.cluster]

MODEL = "registry.example/model:1"


@pytest.fixture
async def stopped(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[AgentCluster]:
    """A cluster without an agent."""
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox no images are mounted")
    async with agent_cluster(servers, tmp_path) as created:
        yield created


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as server:
        yield server


def load(cluster: AgentCluster, *layers: Layer, name: str = MODEL) -> StoredImage:
    """Store an image."""
    data = cluster.settings.data_dir
    directory = Path(tempfile.mkdtemp(dir=data.parent))
    layout = write_layout(directory / "layout", name, image(layers, {}))
    return archives.load(ImageStore(data), layout)[0]


def pod(script: str, reference: str = MODEL, *, runs: str = "x", **mount: Any) -> Json:
    """A pod with an image volume at /model; its container runs a program of the image *runs*."""
    mounts = [{"name": "model", "mountPath": "/model", **mount}]
    one = container("sh", "-c", script, image=runs, volumeMounts=mounts)
    volume = {"name": "model", "image": {"reference": reference}}
    return manifest("p", one, restartPolicy="Never", volumes=[volume])


async def output(cluster: AgentCluster, body: Json) -> list[str]:
    """Run a pod to its end, and return the lines of its log."""
    await cluster.run(body)
    await cluster.phase("p", "Succeeded", "Failed")
    return (await cluster.logs("p")).splitlines()


async def waiting(cluster: AgentCluster, reason: str) -> str:
    """Wait until the container waits for *reason*; return the message."""

    def state(found: Json) -> Json:
        statuses = found["status"].get("containerStatuses") or [{}]
        result: Json = statuses[0].get("state", {}).get("waiting") or {}
        return result

    found = await cluster.wait_pod("p", lambda seen: state(seen).get("reason") == reason)
    return str(state(found)["message"])


@pytest.mark.parametrize("runs", ["x", "registry.example/app:1"], ids=["process", "image"])
@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "copy"])
async def test_container_reads_the_files_of_the_image_and_cannot_change_them(
    stopped: AgentCluster, monkeypatch: pytest.MonkeyPatch, runs: str, overlay: bool
) -> None:
    load(stopped, busybox(), name="registry.example/app:1")
    upper = (
        Layer().file("own", "new\n").file("dir/.wh.removed").file("run", "#!/bin/sh\n", mode=0o755)
    )
    load(
        stopped, Layer().file("own", "old\n").file("dir/removed", "1").file("dir/kept", "1"), upper
    )
    if not overlay:
        run_image = ImageManager.run_image
        monkeypatch.setattr(
            ImageManager,
            "run_image",
            lambda *args, **more: msgspec.structs.replace(run_image(*args, **more), overlay=False),
        )
    script = (
        "cat /model/own; ls /model/dir; echo 1 2>/dev/null > /model/own || echo read-only; "
        "/model/run 2>/dev/null || echo not executed; stat -c %u:%g /model/own"
    )
    async with stopped.agent():
        lines = await output(stopped, pod(script, runs=runs))
    assert lines == ["new", "kept", "read-only", "not executed", "0:0"]


async def test_sub_path_stays_in_the_image(stopped: AgentCluster) -> None:
    load(stopped, Layer().file("a/b/file", "found\n").link("out", "/etc"))
    async with stopped.agent():
        assert await output(stopped, pod("cat /model/file", subPath="a/b")) == ["found"]
        await stopped.delete("p", grace=0)
        await stopped.wait_pod_deleted("p")
        for missing in ("out", "none"):
            await stopped.run(pod("ls /model", subPath=missing))
            failed = await stopped.phase("p", "Failed")
            state = failed["status"]["containerStatuses"][0]["state"]["terminated"]
            assert state["reason"] == "StartError"
            assert state["message"].startswith(f"subPath '{missing}': ")
            await stopped.delete("p", grace=0)
            await stopped.wait_pod_deleted("p")


async def test_image_of_a_volume_is_pulled(stopped: AgentCluster, registry: RegistryServer) -> None:
    files = image([Layer().file("file", "pulled\n")], {})
    body = pod("cat /model/file", f"{registry.host}/model:1")
    async with stopped.agent(registries=(Registry(registry.host),), image_retry=0.5):
        await stopped.run(body)
        assert "not found" in await waiting(stopped, "ErrImagePull")
        await waiting(stopped, "ImagePullBackOff")
        registry.add("model", "1", files)
        await stopped.phase("p", "Succeeded")
        assert await stopped.logs("p") == "pulled\n"


async def test_all_images_of_a_container_are_pulled_once(
    stopped: AgentCluster, registry: RegistryServer
) -> None:
    app = registry.add("app", "1", image([busybox()], {}))
    model = registry.add("model", "2", image([Layer().file("file", "pulled\n")], {}))
    body = pod("cat /model/file", model, runs=app)
    body["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    body["spec"]["volumes"][0]["image"]["pullPolicy"] = "Always"
    async with stopped.agent(registries=(Registry(registry.host),)):
        assert await output(stopped, body) == ["pulled"]
    assert [len(registry.paths(f"manifests/{tag}")) for tag in (1, 2)] == [1, 1]


@pytest.mark.parametrize(
    ("source", "reason", "message"),
    [
        ({}, "ErrImagePull", "`batholith up --registry` permits to pull it"),
        ({"pullPolicy": "Never"}, "ErrImageNeverPull", "not present with pull policy of Never"),
        ({"reference": "UPPER"}, "InvalidImageName", "Failed to apply default image tag"),
    ],
)
async def test_container_waits_for_an_image_that_is_not_stored(
    stopped: AgentCluster, source: Json, reason: str, message: str
) -> None:
    body = pod("cat /model/file")
    body["spec"]["volumes"][0]["image"] |= source
    async with stopped.agent(run_mode=RunMode.PROCESSES, image_retry=0.1):
        await stopped.run(body)
        assert message in await waiting(stopped, reason)
        if reason != "InvalidImageName":
            load(stopped, Layer().file("file", "loaded\n"))
            await stopped.phase("p", "Succeeded")


async def test_without_a_sandbox_no_image_is_mounted(stopped: AgentCluster) -> None:
    load(stopped, Layer().file("file"))
    async with stopped.agent(sandbox=IsolationLevel.PLAIN):
        await stopped.run(pod("cat /model/file"))
        text = await waiting(stopped, "CreateContainerConfigError")
    assert text.startswith("volume model: images cannot be mounted here: no sandbox")


@pytest.mark.parametrize("servers", ["embedded"], indirect=True)
async def test_status_names_the_image_that_each_run_has(stopped: AgentCluster) -> None:
    """Also after the name was given to another image, and the agent started again.

    The real API server removes the names, without a feature gate.
    """

    def image_refs(found: Json) -> list[str]:
        statuses = found["status"].get("containerStatuses", ())
        mounts = (mount for status in statuses for mount in status.get("volumeMounts", ()))
        found_statuses = (each["volumeStatus"] for each in mounts if "volumeStatus" in each)
        return [each["image"]["imageRef"] for each in found_statuses]

    old = load(stopped, Layer().file("file", "old"))
    async with stopped.agent():
        body = pod("sleep 999", subPath="file", readOnly=True)
        body["spec"]["restartPolicy"] = "Always"
        await stopped.run(body)
        found = await stopped.wait_pod("p", image_refs)
        [status] = found["status"]["containerStatuses"]
        assert status["volumeMounts"][0] == {
            "name": "model", "mountPath": "/model", "readOnly": True,
            "recursiveReadOnly": "Disabled",
            "volumeStatus": {"image": {"imageRef": old.image_id}},
        }  # fmt: skip
    new = load(stopped, Layer().file("file", "new"))
    assert new.image_id != old.image_id
    async with stopped.agent():
        assert image_refs(await stopped.pod("p")) == [old.image_id]
        stopped.kill_orphaned_pods()  # its container starts again
        await stopped.wait_pod("p", lambda found: image_refs(found) == [new.image_id])
        await stopped.delete("p", grace=0)


async def test_image_of_a_volume_is_in_use(stopped: AgentCluster) -> None:
    stored = load(stopped, Layer().file("file"))
    data = stopped.settings.data_dir
    async with stopped.agent():
        await stopped.run(pod("sleep 60"))
        await stopped.phase("p", "Running")
        with pytest.raises(ImageError, match="in use by default/p"):
            ImageStore(data).remove(stored.name, uses=lambda: image_uses(data))
        await stopped.delete("p", grace=0)
        await wait_for(lambda: not list(image_uses(data)))
        ImageStore(data).remove(stored.name, uses=lambda: image_uses(data))
