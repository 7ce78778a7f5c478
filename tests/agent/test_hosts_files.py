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


async def test_pod_that_blocks_its_hosts_file_does_not_affect_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = msgspec.convert(SERVICE, Service)
    manager = HostsFileManager(lambda _: [service], clock=SystemClock())
    files = {name: tmp_path / name for name in ("hostile", "other")}
    for name, file in files.items():
        created = manifest(name, container())
        pod = decode_pod({**created, "metadata": {**created["metadata"], "uid": name}})
        manager.set(Peer(pod, "127.0.1.1", ready=True), file)
    files["hostile"].unlink()
    files["hostile"].mkdir()  # cannot be written by root either
    manager.mark_dirty("default")
    await wait_for(lambda: "10.0.0.7" in files["other"].read_text())
    assert "cannot write hosts file" in caplog.text
    manager.close()
