"""Fixtures of the tests of the training controller."""

from collections.abc import AsyncIterator

import pytest
from support.training_harness import RESOURCES, TrainingApi, TrainingHarness


@pytest.fixture
async def world() -> AsyncIterator[TrainingHarness]:
    """An API server with all kinds."""
    async with TrainingApi(*RESOURCES.values()) as api, api.client() as client:
        yield TrainingHarness(api, client)
