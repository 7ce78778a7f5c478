"""GPUs of a node: which it finds, which container gets which, and that no other sees them."""

from pathlib import Path
from typing import Any

import pytest
from support.agent import container, decode_pod, manifest
from support.agent_cluster import NODE, AgentCluster, agent_cluster
from support.api_servers import EmbeddedServerFactory
from support.fake_devices import FakeDevices, uuid
from support.polling import wait_until_true
from support.sandbox import detected_isolation

from batholith.local.agent.devices.discovery import Device
from batholith.local.agent.devices.manager import DeviceManager, DeviceUnavailableError
from batholith.local.agent.runtime import rootfs
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.local.agent.state.core_types import Pod
from batholith.model.names import NODES

Json = dict[str, Any]
GPU = "nvidia.com/gpu"


@pytest.fixture
def fake(tmp_path: Path) -> FakeDevices:
    return FakeDevices(tmp_path / "machine")


def manager(fake: FakeDevices) -> DeviceManager:
    created = DeviceManager(fake.discovery, fake.root / "state.json")
    created.discover()
    return created


def gpus(count: int, *, name: str = "c", resource: str = GPU, **more: Any) -> Json:
    return container(name=name, resources={"limits": {resource: str(count)}}, **more)


def pod(uid: str, *containers: Json, **spec: Any) -> Pod:
    body = manifest(uid, *containers, **spec)
    body["metadata"]["uid"] = uid
    return decode_pod(body)


# --- discovery ------------------------------------------------------------------------------


def test_gpus_are_found_with_their_memory_and_files(fake: FakeDevices) -> None:
    fake.set_nvidia(0, 1)
    information = fake.root / "proc/driver/nvidia/gpus/0000:01:00.0"
    information.mkdir(parents=True)
    (information / "information").write_text("Model: \t Test\nDevice Minor: \t 5\n")
    (fake.root / "dev/nvidia5").touch()
    fake.add_amd(0, minor=0)
    fake.add_amd(1, minor=128, unique=0xAB)
    first, second, third = fake.discovery.devices()
    assert first == Device(
        driver="nvidia.com", name=uuid(0), index=0, memory=24564 << 20,
        attributes={
            "productName": "NVIDIA Test", "pciBusID": "00000000:00:00.0", "driverVersion": "550.1",
        },
        files=("nvidia0", "nvidiactl", "nvidia-uvm"),
    )  # fmt: skip
    assert (second.index, second.files[0]) == (1, "nvidia5")
    assert (third.driver, third.name, third.index) == ("amd.com", "GPU-00000000000000ab", 0)
    assert (third.files, third.memory) == (("kfd", "dri/renderD128"), 1 << 34)


@pytest.mark.parametrize("output", ["exit 9", "echo No devices were found", "echo 0, x", "sleep 0"])
def test_a_driver_that_does_not_work_has_no_gpus(fake: FakeDevices, output: str) -> None:
    (fake.root / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{output}\n")
    assert fake.discovery.devices() == []


def test_a_gpu_without_its_file_is_not_offered(fake: FakeDevices) -> None:
    fake.set_nvidia(0, 1)
    (fake.root / "dev/nvidia0").unlink()
    assert [each.name for each in fake.discovery.devices()] == [uuid(1)]


# --- assignment -----------------------------------------------------------------------------


def test_each_container_gets_devices_of_its_own(fake: FakeDevices) -> None:
    fake.set_nvidia(0, 1, 2, 3)
    devices = manager(fake)
    assert devices.assign(pod("a", gpus(1))) == {"c": (uuid(0),)}
    names = devices.assign(pod("b", gpus(1), gpus(2, name="d")))
    assert names == {"c": (uuid(1),), "d": (uuid(2), uuid(3))}
    with pytest.raises(DeviceUnavailableError, match="Requested: 1, Available: 0"):
        devices.assign(pod("e", gpus(1)))
    devices.release("a")
    assert devices.assign(pod("e", gpus(1))) == {"c": (uuid(0),)}
    assert devices.environment("b", "d")["CUDA_VISIBLE_DEVICES"] == f"{uuid(2)},{uuid(3)}"
    assert devices.environment("b", "none")["NVIDIA_VISIBLE_DEVICES"] == ""


def test_init_containers_use_the_devices_of_later_containers(fake: FakeDevices) -> None:
    fake.set_nvidia(0, 1, 2)
    first, sidecar = gpus(2, name="first"), gpus(1, name="s", restartPolicy="Always")
    names = manager(fake).assign(pod("p", gpus(1), initContainers=[sidecar, first]))
    assert names == {"s": (uuid(0),), "first": (uuid(1), uuid(2)), "c": (uuid(1),)}


def test_a_lost_device_is_not_allocatable_and_never_assigned(fake: FakeDevices) -> None:
    fake.set_nvidia(0, 1)
    devices = manager(fake)
    devices.assign(pod("a", gpus(1)))
    fake.set_nvidia(0)
    assert devices.discover()
    assert (devices.capacity(), devices.allocatable()) == ({GPU: "2"}, {GPU: "1"})
    with pytest.raises(DeviceUnavailableError):
        devices.assign(pod("b", gpus(1)))
    fake.set_nvidia()
    later = manager(fake)
    assert (later.capacity(), later.allocatable()) == ({GPU: "0"}, {GPU: "0"})


def test_device_files_are_mounted_after_the_directory_that_contains_them(tmp_path: Path) -> None:
    plan = rootfs.mount_plan(
        [rootfs.Mount(str(tmp_path), "/dev/own")],
        hidden=[],
        home="/home/u",
        host=str(tmp_path),
        devices=[("/dev/dri/renderD128", "/dev/dri/renderD128")],
    )
    kinds = [step[0] for step in plan]
    assert kinds.index("dev") < kinds.index("device") < kinds.index("rw")
    command = rootfs.bubblewrap_arguments(
        "bwrap", plan, hostname="h", user=(0, 0), tmpfs_size=1 << 20
    )
    at = command.index("--dev-bind-try")
    assert command[at + 1 : at + 3] == ["/dev/dri/renderD128"] * 2
    assert command.index("--dev") < at < len(command) - 1 - command[::-1].index("--remount-ro")


# --- on a node ------------------------------------------------------------------------------

SHOW = "echo sees $(cd /dev && ls -d nvidia* kfd dri 2>/dev/null) with $CUDA_VISIBLE_DEVICES.; "
ATTACK = (
    "mknod /tmp/g c 195 0 && cat /tmp/g; ln -s /dev/nvidia0 /tmp/l && cat /tmp/l; "
    "cat /dev/nvidia0 /proc/1/root/dev/nvidia0; echo tried; "
)


async def run(cluster: AgentCluster, name: str, count: int, script: str) -> None:
    one = container("sh", "-c", script + "exec sleep 600", resources={"limits": {GPU: str(count)}})
    if not count:
        del one["resources"]
    await cluster.run(manifest(name, one, restartPolicy="Never"))


@pytest.mark.process
async def test_pods_see_their_own_gpus_only(fake: FakeDevices, tmp_path: Path) -> None:
    if detected_isolation().isolation is IsolationLevel.PLAIN:
        pytest.skip("no sandbox on this machine, and so no device files are hidden")
    fake.set_nvidia(0, 1)
    options: Json = {"devices": fake.discovery, "device_interval": 0.1}
    async with agent_cluster(EmbeddedServerFactory(), tmp_path, **options) as cluster:
        async with cluster.agent():
            status = (await cluster.client.get(NODES, NODE, view=dict))["status"]
            assert (status["capacity"][GPU], status["allocatable"][GPU]) == ("2", "2")
            await run(cluster, "first", 1, SHOW)
            await cluster.phase("first", "Running")
            shown = "sees nvidia-uvm nvidia0 nvidiactl with GPU-0000-0."
            assert shown in await cluster.wait_log("first", "sees")
            await run(cluster, "none", 0, SHOW + ATTACK)
            await cluster.phase("none", "Running")
            log = await cluster.wait_log("none", "tried")
            assert "sees with ." in log
            assert "nvidia0\n" not in log.replace("/dev/nvidia0", "")
        async with cluster.agent():  # it knows what the earlier one has assigned
            await run(cluster, "second", 1, SHOW)
            await cluster.phase("second", "Running")
            assert "with GPU-0000-1." in await cluster.wait_log("second", "sees")
            await run(cluster, "third", 1, SHOW)
            failed = (await cluster.phase("third", "Failed"))["status"]
            assert failed["reason"] == "UnexpectedAdmissionError"
            assert "Requested: 1, Available: 0" in failed["message"]
            await cluster.delete("first", grace=1)
            await cluster.wait_pod_deleted("first")
            await run(cluster, "fourth", 1, SHOW)
            await cluster.phase("fourth", "Running")
            assert "with GPU-0000-0." in await cluster.wait_log("fourth", "sees")
            fake.set_nvidia(0)

            async def has_lost_one() -> bool:
                status = (await cluster.client.get(NODES, NODE, view=dict))["status"]
                return (status["capacity"][GPU], status["allocatable"][GPU]) == ("2", "1")

            await wait_until_true(has_lost_one)
