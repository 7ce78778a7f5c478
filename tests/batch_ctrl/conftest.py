"""Fixtures of the tests of the batch/v1 Job controller."""

from collections.abc import Iterator

import pytest
from support.batch_world import BatchWorld


@pytest.fixture
def world() -> Iterator[BatchWorld]:
    """A cluster whose changes are audited."""
    made = BatchWorld()
    try:
        yield made
        assert made.violations == []
    finally:
        made.close()
