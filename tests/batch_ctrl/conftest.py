"""Fixtures of the tests of the batch/v1 Job controller."""

from collections.abc import Iterator

import pytest
from support.batch_world import BatchWorld


@pytest.fixture
def world() -> Iterator[BatchWorld]:
    """A cluster whose changes are audited."""
    cluster = BatchWorld()
    try:
        yield cluster
        assert cluster.violations == []
    finally:
        cluster.close()
