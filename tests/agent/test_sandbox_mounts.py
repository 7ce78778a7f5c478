"""Mounts in a sandbox: where pods may mount, links in volumes, size and memory of each tmpfs."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import AgentCluster, agent_cluster, make_world_writable
from support.api_servers import EmbeddedServerFactory
from support.polling import wait_for
from support.sandbox import Sandbox, detected_isolation

from batholith.local.agent.runtime import oom, rootfs
from batholith.local.agent.runtime.mounting import HIDDEN_SIZE
from batholith.local.agent.runtime.runs import (
    IsolationLevel,
)

Json = dict[str, Any]

pytestmark = [
    pytest.mark.process, pytest.mark.combinations(2), pytest.mark.asyncio(loop_scope="module"),
]  # fmt: skip

MIB = 1 << 20
TEMPORARY = ("/", "/tmp", "/run", "/var/tmp", "/dev/shm", "/root")


async def lines(sandbox: Sandbox, script: str, *mounts: rootfs.Mount, **more: Any) -> list[str]:
    """Run a shell script; return its output."""
    ended = await sandbox.run(script, *mounts, **more)
    assert ended.reason == "", ended
    return sandbox.lines()


LINKS = ("dev", "proc", "sys", "run", "shm", "pts", "fd", "stdin", "null", "batholith", "tmp", "x")


@pytest.mark.parametrize("path", ["/", "/dev", "/dev/shm", "/run", "/v"])
@pytest.mark.parametrize("prefix", ["", "/oldroot", "/newroot", "/proc/self/root"])
async def test_links_in_a_volume_lead_nothing_of_the_sandbox_to_the_host(
    sandbox: Sandbox, path: str, prefix: str
) -> None:
    volume = make_world_writable(sandbox.base / "volume")
    outside = make_world_writable(sandbox.base / "outside")
    for name in LINKS:
        (volume / name).symlink_to(f"{prefix}{outside}")
    inner = [rootfs.Mount(str(volume), f"{path}/x/deep")] if path != "/" else []
    await sandbox.start(["true"], rootfs.Mount(str(volume), path), *inner).wait()
    assert os.listdir(outside) == []
    if path != "/dev":  # where bubblewrap or the kernel need mount points, they stay
        assert {entry.name for entry in volume.iterdir() if not entry.is_symlink()} == set()


async def test_a_volume_can_replace_the_devices_and_shared_memory(sandbox: Sandbox) -> None:
    volume = make_world_writable(sandbox.base / "volume")
    (volume / "mark").touch()
    shared = rootfs.Mount(str(volume), "/dev/shm")
    assert await lines(sandbox, "ls /dev/shm; echo > /dev/null && touch /dev/shm/new", shared) == [
        "mark"
    ]
    assert (volume / "new").exists()
    assert await lines(sandbox, "ls /dev", rootfs.Mount(str(volume), "/dev")) == ["mark", "new"]


async def test_volumes_stay_writable_below_a_read_only_root(sandbox: Sandbox) -> None:
    volumes = [
        rootfs.Mount(str(make_world_writable(sandbox.base / name)), path)
        for name, path in (("one", "/tmp"), ("two", "/run"), ("three", "/var"))
    ]
    script = "for d in /tmp /run /var; do touch $d/file; done; touch /new || echo refused"
    assert "refused" in await lines(sandbox, script, *volumes, read_only_root=True)
    assert all((sandbox.base / name / "file").exists() for name in ("one", "two", "three"))


async def test_every_tmpfs_of_a_container_has_the_given_size(sandbox: Sandbox) -> None:
    script = (
        f"for d in {' '.join(TEMPORARY)}; do head -c 8M /dev/zero > $d/file; "
        "stat -c %s $d/file; rm $d/file; done; head -c 8M /dev/zero > /dev/file; ls /dev/file"
    )
    written = [line for line in await lines(sandbox, script, tmpfs_size=2 * MIB) if line.isdigit()]
    assert len(written) == len(TEMPORARY)
    # Pages of directories and links count, too.
    assert all(1.9 * MIB < int(size) <= 2 * MIB for size in written), written


async def test_nothing_can_be_stored_where_host_files_are_hidden(sandbox: Sandbox) -> None:
    script = "head -c 1M /dev/zero > /var/lib/file 2>/dev/null; stat -c %s /var/lib/file"
    assert int((await lines(sandbox, script, hidden=["/var/lib"]))[-1]) <= HIDDEN_SIZE


@contextlib.asynccontextmanager
async def running(sandbox: Sandbox, code: str) -> AsyncIterator[int]:
    """Run Python code until the end of the block, which gets the process id of the shim."""
    code = f"{code}\nprint('up', flush=True)\nimport time\ntime.sleep(60)"
    process = sandbox.start(["/usr/bin/python3", "-c", code], tmpfs_size=256 * MIB)
    try:
        await wait_for(lambda: "up" in sandbox.log.read_text())
        yield process.pid
    finally:
        await process.kill()


@pytest.fixture
def python3() -> Iterator[None]:
    """Skip without an interpreter that a sandbox shows."""
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("no /usr/bin/python3")
    yield


@pytest.mark.usefixtures("python3")
@pytest.mark.parametrize("directory", TEMPORARY)
async def test_files_in_a_tmpfs_count_as_memory(sandbox: Sandbox, directory: str) -> None:
    code = f"open('{directory}/file', 'wb').write(bytes(64 << 20))"
    async with running(sandbox, code) as pid:
        assert oom.is_over_limit([pid], 64 * MIB)
        assert not oom.is_over_limit([pid], 96 * MIB)


@pytest.mark.usefixtures("python3")
async def test_mapped_files_in_a_tmpfs_count_once(sandbox: Sandbox) -> None:
    code = (
        "import mmap; f = open('/dev/shm/file', 'wb+'); f.truncate(64 << 20)\n"
        "m = mmap.mmap(f.fileno(), 0); m[:] = bytes(64 << 20)\n"
        "s = mmap.mmap(-1, 32 << 20); s[:] = bytes(32 << 20)"  # shared, in no tmpfs of the pod
    )
    async with running(sandbox, code) as pid:
        assert oom.is_over_limit([pid], 96 * MIB)
        assert not oom.is_over_limit([pid], 128 * MIB)


@pytest.mark.usefixtures("python3")
async def test_empty_files_count_as_memory(sandbox: Sandbox) -> None:
    code = "[open(f'/tmp/{i}', 'w').close() for i in range(15_000)]"
    async with running(sandbox, code) as pid:
        assert oom.is_over_limit([pid], 15_000 * 1024)
        assert not oom.is_over_limit([pid], 64 * MIB)


@pytest.fixture(scope="module")
def agent_options() -> dict[str, Any]:
    return {"memory": "2Gi"}


@pytest.fixture
def sandboxed() -> None:
    """Skip without a sandbox."""
    found = detected_isolation()
    if found.isolation is IsolationLevel.PLAIN:
        pytest.skip("; ".join(found.reasons))


FORBIDDEN = [
    ({"mountPath": "/"}, "volumeMounts[0].mountPath: '/': the root directory"),
    ({"mountPath": "//x/../"}, "volumeMounts[0].mountPath: '//x/../': the root directory"),
    ({"mountPath": "/proc/sys"}, "volumeMounts[0].mountPath: '/proc/sys': nothing can"),
    ({"mountPath": "/proc"}, "volumeMounts[0].mountPath: '/proc': nothing can"),
]


async def assert_start_error(cluster: AgentCluster, mount: Json, message: str, **more: Any) -> None:
    """Assert that a container with *mount* does not start, as with a container runtime."""
    one = container("true", volumeMounts=[{"name": "v", **mount}], **more)
    volumes = [{"name": "v", "emptyDir": {}}]
    await cluster.run(manifest("p", one, volumes=volumes, restartPolicy="Never"))
    done = await cluster.phase("p", "Succeeded", "Failed")
    ended = done["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert message in ended["message"]
    assert message in (await cluster.wait_event("p", "Failed"))["message"]


@pytest.mark.parametrize(("mount", "message"), FORBIDDEN)
async def test_container_whose_volume_would_replace_the_root_or_proc_does_not_start(
    cluster: AgentCluster, mount: Json, message: str
) -> None:
    await assert_start_error(cluster, mount, message)


async def test_forbidden_mount_path_is_a_start_error_without_a_sandbox(tmp_path: Path) -> None:
    async with (
        agent_cluster(EmbeddedServerFactory(), tmp_path) as cluster,
        cluster.agent(sandbox=IsolationLevel.PLAIN),
    ):
        await assert_start_error(cluster, *FORBIDDEN[0])


@pytest.mark.parametrize("path", ["/", "/proc/self/attr/exec"])
async def test_container_with_such_a_termination_message_path_does_not_start(
    cluster: AgentCluster, path: str
) -> None:
    message = f"terminationMessagePath: {path!r}: "
    await assert_start_error(cluster, {"mountPath": "/v"}, message, terminationMessagePath=path)


@pytest.mark.usefixtures("sandboxed")
async def test_a_termination_message_may_be_any_file_of_dev(cluster: AgentCluster) -> None:
    path = "/dev/termination-custom-log"
    command = ("sh", "-c", f"printf DONE > {path}")
    own = container(*command, terminationMessagePath=path)
    await cluster.run(manifest("p", own, restartPolicy="Never"))
    pod = await cluster.phase("p", "Succeeded")
    [status] = pod["status"]["containerStatuses"]
    assert status["state"]["terminated"]["message"] == "DONE"


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize(("limit", "size"), [("64Mi", 64), ("3Gi", 2048), (None, 256)])
async def test_size_of_a_tmpfs_is_the_memory_limit_or_an_eighth_of_the_node(
    cluster: AgentCluster, limit: str | None, size: int
) -> None:
    resources = {"limits": {"memory": limit}} if limit else {}
    one = container("df", "-k", "--output=size", "/tmp", "/dev/shm", resources=resources)
    await cluster.run(manifest("p", one, restartPolicy="Never"))
    await cluster.phase("p", "Succeeded", "Failed")
    assert (await cluster.logs("p")).split()[1:] == [str(size * 1024)] * 2


@pytest.mark.usefixtures("sandboxed")
async def test_container_is_killed_for_files_in_its_tmpfs(cluster: AgentCluster) -> None:
    script = "for d in /tmp /dev/shm /run; do head -c 48M /dev/zero > $d/file; done; sleep 60"
    one = container("sh", "-c", script, resources={"limits": {"memory": "96Mi"}})
    await cluster.run(manifest("p", one, restartPolicy="Never"))
    done = await cluster.phase("p", "Succeeded", "Failed")
    ended = done["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
