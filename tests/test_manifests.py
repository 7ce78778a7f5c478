"""The deployed CRDs are those of the package."""

from pathlib import Path

import yaml

from batholith.model import crds

MANIFESTS = Path(__file__).parents[1] / "manifests"


def test_deployed_crds_equal_packaged_crds() -> None:
    deployed = [yaml.safe_load(path.read_text()) for path in (MANIFESTS / "crds").glob("*.yaml")]
    packaged = crds.load()
    assert {one["metadata"]["name"]: one for one in deployed} == {
        one["metadata"]["name"]: one for one in packaged
    }
