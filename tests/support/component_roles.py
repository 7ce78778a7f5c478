"""Rights of the components in an embedded cluster, read from the manifests."""

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import yaml
from support.manifests import MANIFESTS, NAMESPACE, Objects, kustomized, of_kind

from batholith.local.apiserver.authorization import bootstrap_policy

Json = dict[str, Any]

FILE = Path(bootstrap_policy.__file__).parent / "data" / bootstrap_policy.COMPONENTS_FILE
COMPONENTS = ("api", "controllers", "scheduler")
WHOLE = ("batch-jobs", "history", "training-jobs")
"""Components of the manifests with which all controllers run, and the history is recorded."""

EMBEDDED = (*WHOLE, "groupers", "scheduling-gates", "suspension")
"""Components of the manifests whose features an embedded cluster has."""


def combined(directory: Path, components: tuple[str, ...]) -> Objects:
    """The base with *components*, rendered in a new *directory*."""
    directory.mkdir()
    base, *others = (
        os.path.relpath(MANIFESTS / each, directory.resolve())
        for each in ("base", *(f"components/{name}" for name in components))
    )
    whole = {"resources": [base], "components": others}
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(whole))
    return kustomized(directory)


def rules_by_component() -> Json:
    """The rules of each component: those of the cluster, and those of the platform's namespace."""
    with tempfile.TemporaryDirectory() as directory:
        found = combined(Path(directory) / "all", EMBEDDED)
    return {
        component: {
            "cluster": _rules(found, "ClusterRole", component),
            NAMESPACE: _rules(found, "Role", component),
        }
        for component in COMPONENTS
    }


def content() -> bytes:
    """The content of the file."""
    return msgspec.json.format(msgspec.json.encode(rules_by_component()), indent=1) + b"\n"


def write() -> None:
    """Write the file."""
    FILE.write_bytes(content())


def _rules(found: Objects, kind: str, component: str) -> list[Json]:
    bound = sorted(
        binding["roleRef"]["name"]
        for binding in of_kind(found, f"{kind}Binding").values()
        if binding["roleRef"]["kind"] == kind
        and any(each["name"] == f"batholith-{component}" for each in binding["subjects"])
    )
    return [rule for name in bound for rule in of_kind(found, kind)[name]["rules"]]
