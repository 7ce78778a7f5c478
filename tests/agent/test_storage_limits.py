"""Limits of the disk space of pods: what is measured, and the eviction of pods that exceed it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, decode_pod, manifest
from support.agent_cluster import AgentCluster
from support.polling import wait_for

from batholith.local.agent.pods.storage_limits import StorageUsage, has_limits, violation
from batholith.local.agent.runtime.disk_usage import UnmeasurableError, disk_usage

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

MIB = 1 << 20


@pytest.fixture(scope="module")
def agent_options() -> dict[str, Any]:
    return {"storage_interval": 0.1}


# --- measuring ------------------------------------------------------------------------------


async def test_blocks_are_counted_once_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 3 * MIB)
    directory = tmp_path / "volume"
    (directory / "a" / "b").mkdir(parents=True)
    empty = disk_usage(directory)
    (directory / "a" / "b" / "file").write_bytes(b"x" * MIB)
    os.link(directory / "a" / "b" / "file", directory / "same")
    (directory / "link").symlink_to(outside)
    (directory / "dir-link").symlink_to(tmp_path)
    with (directory / "sparse").open("wb") as file:
        file.truncate(50 * MIB)
    assert MIB <= disk_usage(directory) - empty < 2 * MIB
    assert disk_usage(tmp_path / "absent") == 0


async def test_what_cannot_be_measured_is_an_error(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(250):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    with pytest.raises(UnmeasurableError, match="more than 200 levels"):
        disk_usage(tmp_path)


def limited(size: str = "", **limits: str) -> dict[str, Any]:
    """A pod with a volume, and a container for each limit."""
    given = limits or {"c": ""}
    containers = [
        container(name=name, resources={"limits": {"ephemeral-storage": limit} if limit else {}})
        for name, limit in given.items()
    ]
    empty_dir = {"sizeLimit": size} if size else {}
    return manifest("p", *containers, volumes=[{"name": "v", "emptyDir": empty_dir}])


def cases() -> Iterator[tuple[dict[str, Any], StorageUsage, str]]:
    over = 'Usage of EmptyDir volume "v" exceeds the limit "1Mi". '
    yield limited("1Mi"), StorageUsage({"v": MIB + 1}), over
    yield limited("1Mi"), StorageUsage({"v": MIB}), ""
    yield limited(), StorageUsage({"v": 1 << 40}), ""
    total = "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
    yield limited(c="2Mi"), StorageUsage({"v": 2 * MIB}, {"c": 1}), total
    yield limited(c="2Mi"), StorageUsage({"v": MIB}, {"c": MIB}), ""
    own = 'Container a exceeded its local ephemeral storage limit "1Mi". '
    yield limited(a="1Mi", b="5Mi"), StorageUsage({}, {"a": 2 * MIB}), own


@pytest.mark.parametrize(("text", "usage", "message"), list(cases()))
async def test_messages_are_those_of_a_kubelet(
    text: dict[str, Any], usage: StorageUsage, message: str
) -> None:
    assert violation(decode_pod(text), usage) == message


async def test_only_pods_with_limits_are_measured() -> None:
    assert not has_limits(decode_pod(limited()))
    assert has_limits(decode_pod(limited("1Mi")))
    assert has_limits(decode_pod(limited(c="1Gi")))


# --- on a real node -------------------------------------------------------------------------

FILL = "while :; do head -c 262144 /dev/zero >> {}; sleep 0.02; done"


@pytest.mark.process
@pytest.mark.parametrize("what", ["volume", "log"])
async def test_a_pod_that_fills_the_disk_is_evicted_and_others_run_on(
    cluster: AgentCluster, what: str
) -> None:
    await cluster.run(manifest("other", container("sleep", "1000")))
    script = FILL.format("${BATHOLITH_ROOT}/v/file")
    limits = {"ephemeral-storage": "2Mi"} if what == "log" else {}
    if what == "log":
        script = "yes 0123456789012345678901234567890123456789"
    mounts = [{"name": "v", "mountPath": "/v"}]
    filling = container("sh", "-c", script, volumeMounts=mounts, resources={"limits": limits})
    empty_dir = {"sizeLimit": "2Mi"} if what == "volume" else {}
    volumes = [{"name": "v", "emptyDir": empty_dir}]
    await cluster.run(manifest("p", filling, volumes=volumes, restartPolicy="Always"))
    pod = await cluster.phase("p", "Failed")
    status = pod["status"]
    assert status["reason"] == "Evicted"
    expected = "EmptyDir volume" if what == "volume" else "Pod ephemeral local storage usage"
    assert expected in status["message"]
    conditions = {each["type"]: each.get("reason") for each in status["conditions"]}
    assert conditions["DisruptionTarget"] == "TerminationByKubelet"
    assert status["message"].strip() in (await cluster.wait_event("p", "Evicted"))["message"]
    assert (await cluster.phase("other", "Running"))["status"]["phase"] == "Running"
    volumes_dir = cluster.settings.data_dir / "pods" / pod["metadata"]["uid"] / "volumes"
    await wait_for(lambda: not volumes_dir.exists())
