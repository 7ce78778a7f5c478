"""Volumes in memory: their size, what they hold, and that nothing of them remains."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, decode_pod, manifest
from support.agent_cluster import AgentCluster, agent_cluster
from support.api_servers import EmbeddedServerFactory
from support.polling import wait_for
from support.sandbox import detected_isolation

from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.runtime.memory_volumes import (
    is_in_memory,
    mount_volume,
    unmount_volumes,
)
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.local.agent.volumes.volumes import memory_volume_size

MIB = 1 << 20
MOUNTS = [{"name": "v", "mountPath": "/v"}]


@pytest.mark.parametrize(
    ("size_limit", "limits", "size"),
    [
        ("", (None,), 128 * MIB),
        ("4Mi", (None,), 4 * MIB),
        ("4Gi", (None,), 1024 * MIB),
        ("", ("8Mi", "8Mi"), 16 * MIB),
        ("64Mi", ("8Mi", "8Mi"), 16 * MIB),
        ("", ("8Mi", None), 128 * MIB),
        ("1", (None,), MIB),
    ],
)
def test_a_volume_is_at_most_as_large_as_its_limit_and_that_of_the_pod(
    size_limit: str, limits: tuple[str | None, ...], size: int
) -> None:
    containers = [
        container(name=f"c{number}", resources={"limits": {"memory": each}} if each else {})
        for number, each in enumerate(limits)
    ]
    source = {"medium": "Memory"} | ({"sizeLimit": size_limit} if size_limit else {})
    pod = decode_pod(manifest("p", *containers, volumes=[{"name": "v", "emptyDir": source}]))
    assert memory_volume_size(pod, pod.spec.volumes[0], node_memory=1024 * MIB) == size


def test_a_directory_with_files_is_not_covered(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not mount_volume(tmp_path, size=MIB, owner=None)
    assert not is_in_memory(tmp_path)


@pytest.fixture
def can_mount(tmp_path: Path) -> None:
    """Skip the test where this process cannot mount."""
    if os.geteuid() != 0 or detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("only root with a sandbox has volumes in memory")
    directory = tmp_path / "probe" / "v"
    directory.mkdir(parents=True)
    if not mount_volume(directory, size=MIB, owner=None):
        pytest.skip("this machine permits no mounts")
    unmount_volumes(directory.parent)
    assert not is_in_memory(directory)


async def write(cluster: AgentCluster, name: str, *, command: str) -> dict[str, Any]:
    volumes = [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}]
    first = container("sh", "-c", "echo kept > /v/file", name="first", volumeMounts=MOUNTS)
    main = container("sh", "-c", command, volumeMounts=MOUNTS)
    await cluster.run(
        manifest(name, main, initContainers=[first], volumes=volumes, restartPolicy="Never")
    )
    return await cluster.phase(name, "Succeeded", "Failed", "Running")


@pytest.mark.process
@pytest.mark.usefixtures("can_mount")
async def test_containers_share_a_volume_in_memory_that_outlives_the_agent_and_cannot_be_overfilled(
    tmp_path: Path,
) -> None:
    async with agent_cluster(EmbeddedServerFactory(), tmp_path) as cluster:
        async with cluster.agent():
            script = (
                "dd if=/dev/zero of=/v/large bs=1M count=64; cat /v/file; du -m /v/large; "
                "grep ' /v ' /proc/mounts; echo done; exec sleep 600"
            )
            await write(cluster, "p", command=script)
            await cluster.phase("p", "Running")
            log = await cluster.wait_log("p", "done")
            assert "No space left on device" in log
            assert "kept" in log
            assert " tmpfs " in log
            ((pod_dir, _),) = PodDir.all(cluster.settings.data_dir)
            volume = pod_dir.path / "volumes" / "v"
            assert is_in_memory(volume)
        async with cluster.agent():
            assert (volume / "file").read_text() == "kept\n"
            await cluster.delete("p", grace=0)
            await cluster.wait_pod_deleted("p")
            await wait_for(lambda: not pod_dir.path.exists())
