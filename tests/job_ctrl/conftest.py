"""What several tests of the job controller start from."""

from collections.abc import Iterator

import pytest
from support.job_stateful import Life


@pytest.fixture
def life() -> Iterator[Life]:
    """A world without a controller yet; whatever is done in it must keep the rules."""
    made = Life()
    try:
        yield made
        assert made.audit.broken == []
    finally:
        made.close()
