"""Fixtures for pytest: a cluster in the process of the test, for tests that block.

pytest loads this module in every run, so it imports nothing but pytest; the cluster is imported by
the first test that asks for it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import BlockingCluster

MARKER = "batholith"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**options): arguments of batholith.testing.Cluster for batholith_cluster",
    )


@pytest.fixture
def batholith_cluster(request: pytest.FixtureRequest) -> "Iterator[BlockingCluster]":
    """A new cluster in its own thread; ``@pytest.mark.batholith(nodes=3)`` configures it."""
    from .testing import Cluster

    marker = request.node.get_closest_marker(MARKER)
    with Cluster(**(marker.kwargs if marker is not None else {})) as cluster:
        yield cluster
