"""Fixtures of several tests of the job controller."""

from collections.abc import Iterator

import pytest
from support.job_stateful import JobWorld


@pytest.fixture
def world() -> Iterator[JobWorld]:
    """A world without a controller yet; all changes in it must keep the rules."""
    created = JobWorld()
    try:
        yield created
        assert created.transitions.violations == []
    finally:
        created.close()
