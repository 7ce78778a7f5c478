"""What is deployed: the kustomize files and the chart, as rendered objects."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kubectl import KUBECTL, needs_kubectl

Json = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace and name of an object."""
Objects = dict[Key, Json]

MANIFESTS = Path(__file__).parents[2] / "manifests"
BASE = MANIFESTS / "base"
OVERLAYS = sorted(directory.name for directory in (MANIFESTS / "overlays").iterdir())
CHART = MANIFESTS / "chart"
NAMESPACE = "volcano-system"

_SEPARATOR = re.compile(r"^---$", re.MULTILINE)
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
HELM = shutil.which("helm") or shutil.which(str(_CACHE / "batholith/tools/helm"))


def needs_helm() -> str:
    """Skip without Helm; fail instead where ``BATHOLITH_REQUIRE`` demands it."""
    if HELM is None:
        if "helm" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("helm is required and not installed: build tests/tools/helm")
        pytest.skip("helm is not installed")
    return HELM


def objects(text: str) -> Objects:
    """The objects of a stream of YAML, not to be changed; no two may be the same."""
    found: Objects = {}
    for document in _SEPARATOR.split(text):
        each = _parsed(document)
        if each is not None:
            meta = each["metadata"]
            key = (each["kind"], meta.get("namespace", ""), meta["name"])
            assert key not in found, f"{key} is duplicated"
            found[key] = each
    return found


@cache
def _parsed(document: str) -> Any:
    """The content of a document. Most of what is rendered are definitions, the same each time."""
    return yaml.load(document, Loader=yaml.CSafeLoader)


@cache
def kustomized(directory: Path = BASE) -> Objects:
    """What ``kubectl apply -k`` would apply; not to be changed."""
    needs_kubectl()
    assert KUBECTL is not None
    return objects(_run_command(KUBECTL, "kustomize", str(directory)))


def helm(*arguments: str) -> str:
    """Run Helm, which must succeed; what it printed."""
    return _run_command(needs_helm(), *arguments)


@cache
def chart(*values: str, namespace: str = NAMESPACE) -> Objects:
    """What ``helm install`` would apply with *values* (``key=value``) set; not to be changed."""
    flags = [f"--set={value}" for value in values]
    reported = ("template", "batholith", str(CHART), "--include-crds", f"--namespace={namespace}")
    return objects(helm(*reported, *flags))


def of_kind(found: Objects, kind: str) -> dict[str, Json]:
    """The objects of one kind, by name."""
    return {key[2]: each for key, each in found.items() if key[0] == kind}


def pod_spec(workload: Json) -> Json:
    """The pod template's spec of a Deployment."""
    spec: Json = workload["spec"]["template"]["spec"]
    return spec


def dumped(found: Iterable[Json]) -> str:
    """Return objects as a List in JSON, which costs less to write and to read than YAML."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(found)})


def _run_command(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
