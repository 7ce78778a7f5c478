"""Hosts files of the pods of a node."""

from pathlib import Path

import msgspec
import pytest
from support.agent import container, decode_pod, manifest
from support.polling import wait_for

from batholith.local.agent.pods.node_context import HostsFileManager
from batholith.local.agent.state.core_types import Service
from batholith.local.agent.state.endpoint_types import EndpointSlice
from batholith.local.agent.state.hosts import Peer, RemoteEndpoint, remote_endpoints
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


def endpoint_slice(*endpoints: dict[str, object]) -> EndpointSlice:
    """A slice of the Service ``gang``."""
    metadata = {
        "name": "gang-x",
        "namespace": "default",
        "labels": {"kubernetes.io/service-name": "gang"},
    }
    return msgspec.convert({"metadata": metadata, "endpoints": list(endpoints)}, EndpointSlice)


def test_ready_pods_of_other_nodes_are_known_by_slices() -> None:
    found = endpoint_slice(
        {"addresses": ["192.0.2.2"], "hostname": "b", "nodeName": "second"},
        {"addresses": ["192.0.2.2"], "nodeName": "second", "conditions": {"ready": True}},
        {"addresses": ["192.0.2.1"], "hostname": "own", "nodeName": "first"},
        {"addresses": ["192.0.2.2"], "nodeName": "second", "conditions": {"ready": False}},
        {"addresses": ["192.0.2.9"], "hostname": "nowhere"},
        {"addresses": ["fe80::1"], "nodeName": "second"},
        {"addresses": ["192.0.2.2 x"], "nodeName": "second"},
        {"addresses": ["192.0.2.2"], "hostname": "b\n192.0.2.9 db", "nodeName": "second"},
    )
    assert list(remote_endpoints(found, "first")) == [
        RemoteEndpoint("gang", "192.0.2.2", "b"),
        RemoteEndpoint("gang", "192.0.2.2", ""),
    ]


async def test_pods_of_other_nodes_are_named_below_their_headless_service(tmp_path: Path) -> None:
    headless = {
        "metadata": {"name": "gang", "namespace": "default"},
        "spec": {"clusterIP": "None", "selector": {"a": "b"}},
    }
    known = [msgspec.convert(each, Service) for each in (headless, SERVICE)]
    remote = [
        RemoteEndpoint("gang", "192.0.2.2", "b"),
        RemoteEndpoint("web", "192.0.2.2", "b"),  # found by the address of its Service
    ]
    manager = HostsFileManager(lambda _: known, clock=SystemClock(), remote=lambda _: remote)
    file = tmp_path / "hosts"
    manager.set(Peer(decode_pod(manifest("a", container())), "192.0.2.1", ready=True), file)
    lines = file.read_text().splitlines()
    assert [line for line in lines if line.startswith("192.0.2.2")] == [
        "192.0.2.2\tb.gang.default.svc.cluster.local b.gang.default.svc b.gang.default b.gang",
        "192.0.2.2\tgang.default.svc.cluster.local gang.default.svc gang.default gang",
    ]
    remote.clear()
    manager.mark_dirty("default")
    await wait_for(lambda: "192.0.2.2" not in file.read_text())
    manager.close()
