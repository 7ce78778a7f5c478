"""The deployed CRDs are those of the package."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from batholith.model import crds

Json = dict[str, Any]

MANIFESTS = Path(__file__).parents[1] / "manifests"


@pytest.mark.parametrize(
    ("directory", "packaged"), [("crds", crds.load()), ("training-crds", crds.load_training())]
)
def test_deployed_crds_equal_packaged_crds(directory: str, packaged: tuple[Json, ...]) -> None:
    deployed = [
        yaml.load(path.read_text(), yaml.CSafeLoader)
        for path in (MANIFESTS / directory).glob("*.yaml")
    ]
    listed = yaml.safe_load((MANIFESTS / directory / "Kustomization").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in (MANIFESTS / directory).glob("*.yaml"))
    assert {one["metadata"]["name"]: one for one in deployed} == {
        one["metadata"]["name"]: one for one in packaged
    }
