"""Hosts files of the pods of a node."""

from pathlib import Path

import msgspec
import pytest
from support.agent import container, decode_pod, manifest
from support.polling import wait_for

from batholith.local.agent.pods.node_context import HostsFileManager
from batholith.local.agent.state.core_types import Service
from batholith.local.agent.state.hosts import Peer
from batholith.machinery.clock import SystemClock

SERVICE = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"clusterIP": "10.0.0.7"},
}

OTHER = {"metadata": {"name": "db", "namespace": "other"}, "spec": {"clusterIP": "10.0.0.8"}}


async def test_pod_that_blocks_its_hosts_file_does_not_affect_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    services: list[Service] = []
    manager = HostsFileManager(lambda _: services, clock=SystemClock())
    files = {name: tmp_path / name for name in ("hostile", "other")}
    for name, file in files.items():
        created = manifest(name, container())
        pod = decode_pod({**created, "metadata": {**created["metadata"], "uid": name}})
        manager.set(Peer(pod, "127.0.1.1", ready=True), file)
    files["hostile"].unlink()
    files["hostile"].mkdir()  # cannot be written by root either
    services.append(msgspec.convert(SERVICE, Service))
    manager.mark_dirty("default")
    await wait_for(lambda: "10.0.0.7" in files["other"].read_text())
    assert "cannot write hosts file" in caplog.text
    manager.close()


async def test_services_of_other_namespaces_are_named_in_every_hosts_file(tmp_path: Path) -> None:
    services = {"other": [msgspec.convert(OTHER, Service)]}
    manager = HostsFileManager(lambda each: services.get(each, []), clock=SystemClock())
    file = tmp_path / "hosts"
    manager.set(Peer(decode_pod(manifest("a", container())), "127.64.1.1", ready=True), file)
    manager.mark_dirty("other")
    await wait_for(lambda: "10.0.0.8\tdb.other.svc.cluster.local" in file.read_text())
    assert "\tdb\n" not in file.read_text()
    late = tmp_path / "late"
    created = manifest("b", container())
    created["metadata"] |= {"namespace": "third", "uid": "b"}
    manager.set(Peer(decode_pod(created), "127.64.1.2", ready=True), late)
    assert "db.other.svc" in late.read_text(), "from the start"
    services.clear()
    manager.mark_dirty("other")
    await wait_for(lambda: "db.other" not in file.read_text() + late.read_text())
    manager.close()
