"""The table of the built-in types and their schemas match Kubernetes."""

import shutil
from pathlib import Path

import pytest
from support import api_types
from support.api_servers import RealServerFactory

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.kinds import go_types

if not shutil.which("go"):
    pytest.skip("the Go types are read by a program in Go", allow_module_level=True)


async def test_they_are_what_make_api_types_makes(real: RealServerFactory, tmp_path: Path) -> None:
    async with real.start(tmp_path) as server:
        created = await api_types.generate(server)
    for path, text in created.items():
        assert path.read_text() == text, f"run make api-types: {path.name}"


def test_fields_and_schemas_name_the_same() -> None:
    for message in go_types.messages():
        if message in go_types.SPECIAL or not go_types.properties(message):
            continue
        assert go_types.json_fields(message).keys() == go_types.properties(message).keys(), message
    for kind in BUILT_IN:
        resource = kind.resource
        assert go_types.properties(go_types.name_of(resource.api_version, resource.kind)), resource
