"""Checks of the Dockerfile that need no container engine."""

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
    """Yield each instruction with its arguments."""
    text = (ROOT / "Dockerfile").read_text()
    without_comments = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in without_comments.replace("\\\n", " ").splitlines():
        if line.strip():
            instruction, rest = line.split(maxsplit=1)
            yield instruction, rest


def _bases() -> list[str]:
    """The images of the stages, with the default of the argument."""
    (argument,) = _of("ARG")
    name, _, value = argument.partition("=")
    return [rest.split()[0].replace(f"${{{name}}}", value) for rest in _of("FROM")]


def _pinned(file: str) -> dict[str, str]:
    """The versions in a file of requirements, by name."""
    return dict(
        re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;]+)", (ROOT / file).read_text(), re.MULTILINE)
    )


def _of(instruction: str) -> list[str]:
    return [rest for name, rest in _instructions() if name == instruction]


def _is_in_context(name: str) -> bool:
    """Report whether a name at the root is in the build context."""
    found = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if fnmatch(name, line.removeprefix("!")):
            found = line.startswith("!")
    return found


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    for rest in _of("COPY"):
        if not rest.startswith("--from="):
            *sources, _ = rest.split()
            for source in sources:
                assert (ROOT / source).exists()
                assert _is_in_context(source)


def test_nothing_else_is_in_the_build_context() -> None:
    for name in (".git", ".venv", "tests", "docs", "manifests"):
        assert not _is_in_context(name)


def test_environment_is_copied_from_its_stage_to_the_same_path() -> None:
    stages = [stage.rpartition(" AS ")[2] for stage in _of("FROM") if " AS " in stage]
    (copied,) = (rest for rest in _of("COPY") if rest.startswith("--from="))
    stage, source, target = copied.removeprefix("--from=").split()
    assert stages == [stage]
    # A virtual environment works neither at another path nor with another Python.
    assert source == target
    assert any(source in command for command in _of("RUN"))
    assert len(set(_bases())) == 1


def test_python_version_is_supported_by_the_project() -> None:
    lowest = tuple(map(int, re.findall(r"\d+", PROJECT["requires-python"])))
    for base in _bases():
        found = re.search(r"python:(\d+)\.(\d+)-", base)
        assert found is not None
        assert tuple(map(int, found.groups())) >= lowest


def test_all_packages_of_the_image_are_installed_by_hash_in_tested_versions() -> None:
    installs = [
        each.strip() for rest in _of("RUN") for each in rest.split("&&") if " install " in each
    ]
    files = [re.findall(r"-r (\S+)", each) for each in installs]
    assert files == [["requirements-build.txt"], ["requirements.txt"], []]
    assert all("--require-hashes" in each for each in installs[:2])
    assert "--no-deps --no-index /wheels" in installs[2]
    tested = _pinned("constraints.txt")
    for file in ("requirements.txt", "requirements-build.txt"):
        text, pinned = (ROOT / file).read_text(), _pinned(file)
        blocks = re.split(r"\n(?=\S)", text.strip())
        assert len(blocks) == len(pinned)
        assert all("--hash=sha256:" in block for block in blocks)
        assert {name: tested.get(name, version) for name, version in pinned.items()} == pinned
    wanted = (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["postgres"])
    for requirement in wanted:
        assert re.split(r"[\[>=]", requirement)[0] in _pinned("requirements.txt")


def test_entry_point_and_user_match_the_deployments() -> None:
    (entry,) = (json.loads(rest) for rest in _of("ENTRYPOINT"))
    assert entry[0] in PROJECT["scripts"]
    (user,) = _of("USER")
    for deployment in of_kind(kustomized(), "Deployment").values():
        context = pod_spec(deployment)["securityContext"]
        assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
        assert context["runAsUser"] > 0


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    images = {
        pod_spec(deployment)["containers"][0]["image"]
        for deployment in of_kind(kustomized(), "Deployment").values()
    }
    assert {chart["version"], chart["appVersion"]} == {PROJECT["version"]}
    assert images == {f"batholith:{PROJECT['version']}"}
