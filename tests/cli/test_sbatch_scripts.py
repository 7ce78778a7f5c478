"""Scripts for sbatch: each is translated as expected, or refused with the line."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from batholith.cli.submit.directives import read_script
from batholith.cli.submit.errors import SubmitError
from batholith.cli.submit.manifest import Program, Workspace, build_manifest
from batholith.cli.submit.options import parse_options
from batholith.model.names import (
    ACCOUNT,
    BEGIN,
    DEPENDS_ON,
    MAX_PARALLEL,
    SUBMITTED_NAME,
    TIME_LIMIT,
    TIME_LIMIT_WARNING,
)

DATA = Path(__file__).parents[1] / "data" / "sbatch"
ENTRIES: list[dict[str, Any]] = [
    entry for path in sorted(DATA.glob("*.yaml")) for entry in yaml.safe_load(path.read_text())
]
WORKSPACE = Workspace(submit_dir="/home/me", workdir="/home/me", writable=True, image="local")
NUMBER = 123456789
NOW = datetime.fromisoformat("2026-05-04T12:00:00+02:00")


def translate(entry: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The manifest of a entry and the notes about it."""
    script = read_script(entry["script"])
    options = parse_options(script.settings, entry.get("environment", {}), NOW)
    program = Program(script=script.text, name="script.sh")
    manifest = build_manifest(options, program, WORKSPACE, number=NUMBER)
    return manifest, [*script.notes, *(f"left out: {each}" for each in options.ignored)]


def facts(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a manifest has beyond that of a script without options."""
    return dict(_facts(manifest))


def _facts(manifest: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    metadata, spec = manifest["metadata"], manifest["spec"]
    annotations = metadata.get("annotations", {})
    (task,) = spec["tasks"]
    pod = task["template"]["spec"]
    (container,) = pod["containers"]
    requests = container["resources"]["requests"]
    limits = container["resources"].get("limits", {})
    name = metadata["name"].removesuffix(f"-{NUMBER}")
    found = {
        "name": name if name != "script-sh" else None,
        "label": metadata["labels"][SUBMITTED_NAME],
        "queue": spec.get("queue"),
        "account": metadata["labels"].get(ACCOUNT),
        "held": spec.get("suspend"),
        "priority": spec.get("priorityClassName"),
        "pods": task["replicas"] if task["replicas"] != 1 else None,
        "cpu": requests["cpu"] if requests["cpu"] != "1" else None,
        "memory": requests.get("memory"),
        "gpus": requests.get("nvidia.com/gpu"),
        "time": annotations.get(TIME_LIMIT),
        "warning": annotations.get(TIME_LIMIT_WARNING),
        "nodes": pod.get("nodeSelector"),
        "policies": [[each["event"], each["action"]] for each in spec.get("policies", [])] or None,
        "exclusive": "podAntiAffinity" in pod.get("affinity", {}) or None,
        "image": container["image"] if container["image"] != "local" else None,
        "files": container["command"][4:] or None,
        "plugins": sorted(spec["plugins"]) if sorted(spec["plugins"]) != ["env"] else None,
        "depends": annotations.get(DEPENDS_ON),
        "begin": annotations.get(BEGIN),
        "parallel": annotations.get(MAX_PARALLEL),
        "array": [spec["plugins"]["array"], spec["minAvailable"], spec["minSuccess"]]
        if "array" in spec["plugins"]
        else None,
        "env": {
            each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"]
            for each in container["env"]
        },
    }
    assert requests.get("memory") == limits.get("memory")
    yield from ((key, value) for key, value in found.items() if value is not None)


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_a_script_is_translated_or_refused_with_the_line(entry: dict[str, Any]) -> None:
    if "errors" in entry:
        with pytest.raises(SubmitError) as caught:
            translate(entry)
        assert list(caught.value.problems) == entry["errors"]
        return
    manifest, notes = translate(entry)
    assert notes == entry.get("notes", [])
    found, expected = facts(manifest), dict(entry["job"])
    expected.setdefault("label", found["label"])
    variables, expected_variables = found.pop("env"), expected.pop("env", {})
    assert found == expected
    assert {name: variables.get(name) for name in expected_variables} == expected_variables
    own = {name for name in variables if not name.startswith(("SLURM", "BATHOLITH_"))}
    assert own == {name for name in expected_variables if not name.startswith("SLURM")}


@pytest.mark.parametrize(
    "entry", [each for each in ENTRIES if "job" in each], ids=lambda c: c["name"]
)
def test_the_script_reaches_the_pod_unchanged(entry: dict[str, Any]) -> None:
    from batholith.local.agent.state.environment import expand

    manifest, _ = translate(entry)
    (container,) = manifest["spec"]["tasks"][0]["template"]["spec"]["containers"]
    values = {each["name"]: each.get("value", "") for each in container["env"]}
    known = {"HOME": "wrong", "date": "wrong", "SLURM_JOB_ID": "wrong"}
    assert expand(values["BATHOLITH_SCRIPT"], known) == entry["script"]
