"""Fixtures for pytest: a namespace for each test, and clusters, for tests that block.

pytest loads this module in every run, so it imports nothing but pytest; the cluster is imported by
the first test that asks for it.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import BlockingCluster, BlockingNamespace

MARKER = "batholith"

_EXISTING = "USE_EXISTING_CLUSTER"
"""Variable of envtest, which lets tests in Go and in Python share one cluster."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the option of an existing cluster."""
    parser.getgroup(MARKER).addoption(
        "--batholith-kubeconfig",
        metavar="PATH",
        help="run the tests with the fixture batholith on this cluster instead of an embedded one"
        f" ({_EXISTING}=true: that of the default kubeconfig)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**options): arguments of batholith.testing.Cluster for a cluster of this test",
    )


@pytest.fixture(scope="session")
def batholith_options() -> dict[str, Any]:
    """Arguments of ``batholith.testing.Cluster`` for the session's cluster; override it."""
    return {}


@pytest.fixture(scope="session")
def batholith_session_cluster(batholith_options: dict[str, Any]) -> "Iterator[BlockingCluster]":
    """The cluster that all tests of the process share, in its own thread."""
    from .testing import Cluster

    with Cluster(**batholith_options) as cluster:
        yield cluster


@pytest.fixture
def batholith_cluster(request: pytest.FixtureRequest) -> "Iterator[BlockingCluster]":
    """A new cluster in its own thread; ``@pytest.mark.batholith(nodes=3)`` configures it."""
    from .testing import Cluster

    marker = request.node.get_closest_marker(MARKER)
    with Cluster(**(marker.kwargs if marker is not None else {})) as cluster:
        yield cluster


@pytest.fixture
def batholith(request: pytest.FixtureRequest) -> "Iterator[BlockingNamespace]":
    """A new namespace of the session's cluster, or of an existing one.

    A test with the marker gets a new cluster; on an existing one it is skipped.
    """
    is_marked = request.node.get_closest_marker(MARKER) is not None
    kubeconfig: str | None = request.config.getoption("--batholith-kubeconfig")
    with ExitStack() as stack:
        if kubeconfig or os.environ.get(_EXISTING, "").lower() == "true":
            if is_marked:
                pytest.skip("requires a new cluster, and an existing one is used")
            namespace = _existing(kubeconfig, request.node.name)
        else:
            fixture = "batholith_cluster" if is_marked else "batholith_session_cluster"
            cluster: BlockingCluster = request.getfixturevalue(fixture)
            namespace = cluster.new_namespace(request.node.name)
        yield stack.enter_context(namespace)


def _existing(kubeconfig: str | None, prefix: str) -> "BlockingNamespace":
    from .kube.client.config import load_credentials
    from .testing import BlockingNamespace, ClusterNamespace

    path = kubeconfig or os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    target = ClusterNamespace(
        load_credentials(kubeconfig), prefix=prefix, kubeconfig=Path(path) if path else None
    )
    return BlockingNamespace(target)
