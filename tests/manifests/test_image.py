"""The Dockerfile, as far as it can be held to the rest without a container engine."""

import json
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import yaml
from support.manifests import CHART, kustomized, of_kind, pod_spec

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _instructions() -> Iterator[tuple[str, str]]:
    """Each instruction and the rest of its lines."""
    text = (ROOT / "Dockerfile").read_text()
    without_comments = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in without_comments.replace("\\\n", " ").splitlines():
        if line.strip():
            instruction, rest = line.split(maxsplit=1)
            yield instruction, rest


def _of(instruction: str) -> list[str]:
    return [rest for name, rest in _instructions() if name == instruction]


def _is_in_context(name: str) -> bool:
    """Whether a name at the root is part of what is built from."""
    found = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if fnmatch(name, line.removeprefix("!")):
            found = line.startswith("!")
    return found


def test_what_is_copied_is_there_and_let_in() -> None:
    for rest in _of("COPY"):
        if not rest.startswith("--from="):
            *sources, _ = rest.split()
            for source in sources:
                assert (ROOT / source).exists()
                assert _is_in_context(source)


def test_nothing_else_is_let_in() -> None:
    for name in (".git", ".venv", "tests", "docs", "manifests"):
        assert not _is_in_context(name)


def test_what_is_copied_from_a_stage_was_made_there() -> None:
    stages = [stage.rpartition(" AS ")[2] for stage in _of("FROM") if " AS " in stage]
    (copied,) = (rest for rest in _of("COPY") if rest.startswith("--from="))
    stage, source, target = copied.removeprefix("--from=").split()
    assert stages == [stage]
    # An environment does not work in another place, nor with another Python.
    assert source == target
    assert any(source in made for made in _of("RUN"))
    assert len({stage.partition(" AS ")[0] for stage in _of("FROM")}) == 1


def test_the_python_is_one_that_the_project_takes() -> None:
    lowest = tuple(map(int, re.findall(r"\d+", PROJECT["requires-python"])))
    for base in _of("FROM"):
        found = re.search(r"python:(\d+)\.(\d+)-", base)
        assert found is not None
        assert tuple(map(int, found.groups())) >= lowest


def test_extras_that_are_installed_exist() -> None:
    for extra in re.findall(r"whl\)\[(\w+)\]", " ".join(_of("RUN"))):
        assert extra in PROJECT["optional-dependencies"]


def test_it_runs_the_program_as_the_user_of_the_deployments() -> None:
    (entry,) = (json.loads(rest) for rest in _of("ENTRYPOINT"))
    assert entry[0] in PROJECT["scripts"]
    (user,) = _of("USER")
    for deployment in of_kind(kustomized(), "Deployment").values():
        context = pod_spec(deployment)["securityContext"]
        assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
        assert context["runAsUser"] > 0


def test_there_is_one_version_everywhere() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    images = {
        pod_spec(deployment)["containers"][0]["image"]
        for deployment in of_kind(kustomized(), "Deployment").values()
    }
    assert {chart["version"], chart["appVersion"]} == {PROJECT["version"]}
    assert images == {f"batholith:{PROJECT['version']}"}
