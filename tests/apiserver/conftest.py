"""An unmodified kubectl for the tests of the embedded API server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.embedded_apiserver import definition, embedded_server
from support.kubectl import Kubectl, needs_kubectl


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl for a new server, which has the custom kind Foo."""
    needs_kubectl()
    home = tmp_path / "home"
    home.mkdir()
    async with embedded_server(tmp_path / "data", crds=[definition()]) as server:
        yield Kubectl(server, home)
