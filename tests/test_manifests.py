"""What is deployed is what the package holds."""

from pathlib import Path

import yaml

from batholith.model import crds

MANIFESTS = Path(__file__).parents[1] / "manifests"


def test_the_definitions_to_deploy_are_those_of_the_package() -> None:
    deployed = [yaml.safe_load(path.read_text()) for path in (MANIFESTS / "crds").glob("*.yaml")]
    packaged = crds.load()
    assert {one["metadata"]["name"]: one for one in deployed} == {
        one["metadata"]["name"]: one for one in packaged
    }
