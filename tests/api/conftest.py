"""The REST API on a cluster with one job."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.rest import RestClient, rest_api


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[RestClient]:
    async with rest_api(tmp_path) as found:
        yield found
