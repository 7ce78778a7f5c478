"""What several tests of the job controller start from."""

from collections.abc import Iterator

import pytest
from support.job_stateful import JobWorld


@pytest.fixture
def world() -> Iterator[JobWorld]:
    """A world without a controller yet; whatever is done in it must keep the rules."""
    made = JobWorld()
    try:
        yield made
        assert made.transitions.violations == []
    finally:
        made.close()
