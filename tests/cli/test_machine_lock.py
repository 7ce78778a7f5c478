"""One cluster of root at a time has the network of a machine for the namespaces of its pods."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batholith.cli.embedded import EmbeddedCluster, Options
from batholith.local.network import machine_lock
from batholith.local.supervisor.datadir import DataDir
from batholith.model.service_network import PodNetwork

pytestmark = pytest.mark.process


@contextmanager
def cluster(root: Path, network: PodNetwork = PodNetwork.NAMESPACES) -> Iterator[None]:
    data = DataDir(root)
    data.lock()
    try:
        with EmbeddedCluster(data, Options(port=0, api_port=0, pod_network=network)):
            yield
    finally:
        data.unlock()


def refused(holder: Path) -> pytest.RaisesExc[OSError]:
    return pytest.raises(OSError, match=f"it is up in {holder}: stop that one")


@pytest.mark.skipif(os.geteuid() != 0, reason="other users have a network for each cluster")
def test_a_second_cluster_is_refused_and_the_first_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_lock, "LOCKS", tmp_path)
    first, second = tmp_path / "a longer name", tmp_path / "second"
    with cluster(first):
        with refused(first), cluster(second):
            pass
        with cluster(second, PodNetwork.HOST):
            pass
    with cluster(second), refused(second), cluster(first):
        pass
