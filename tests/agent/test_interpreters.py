"""`python3` in a pod is that of the environment in which the cluster was started."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import agent_cluster
from support.api_servers import EmbeddedServerFactory
from support.sandbox import detected_isolation

from batholith.local.agent.runtime import interpreters, rootfs
from batholith.local.agent.runtime.interpreters import find, search_path
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.local.agent.state.environment import SEARCH_PATH


def environment(directory: Path, mark: str = "pyvenv.cfg") -> str:
    """Create an environment with a package."""
    packages = directory / f"lib/python3.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    (packages / "users_own.py").write_text(f"origin = {directory.name!r}\n")
    (directory / "bin").mkdir()
    base = os.path.realpath(sys.executable)
    (directory / "bin/python3").symlink_to(base)
    (directory / "bin/python").symlink_to("python3")
    (directory / "pyvenv.cfg").write_text(f"home = {os.path.dirname(base)}\n")
    if mark != "pyvenv.cfg":
        (directory / mark).mkdir()
    return str(directory)


@pytest.fixture
def venv(tmp_path: Path) -> str:
    return environment(tmp_path / "venv")


@pytest.fixture
def conda(tmp_path: Path) -> str:
    return environment(tmp_path / "conda", "conda-meta")


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The environment of Batholith."""
    return environment(tmp_path / "pipx")


def order(variables: Mapping[str, str], own: str) -> list[str]:
    return [Path(path).parent.name for path in find(variables, prefix=own).path_dirs]


def test_active_environment_precedes_that_of_batholith(venv: str, conda: str, own: str) -> None:
    assert order({}, own) == ["pipx"]
    assert order({"VIRTUAL_ENV": venv}, own) == ["venv", "pipx"]
    assert order({"CONDA_PREFIX": conda}, own) == ["conda", "pipx"]
    assert order({"VIRTUAL_ENV": own}, own) == ["pipx"]


def test_first_environment_on_the_path_wins(venv: str, conda: str, own: str) -> None:
    both = {"VIRTUAL_ENV": venv, "CONDA_PREFIX": conda}
    for first, second in ((venv, conda), (conda, venv)):
        path = {"PATH": f"{first}/bin:/usr/bin:{second}/bin"}
        assert find(both | path, prefix=own).path_dirs[0] == f"{first}/bin"
    assert order(both | {"PATH": f"{conda}/bin"}, own)[0] == "conda"


def test_invalid_environments_are_ignored(tmp_path: Path, own: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/pyvenv.cfg").touch()
    for invalid in ("no-such-directory", "empty"):
        assert order({"VIRTUAL_ENV": str(tmp_path / invalid)}, own) == ["pipx"]
    assert order({"VIRTUAL_ENV": "relative"}, own) == ["pipx"]


def test_python_of_the_machine_is_not_added_to_the_path() -> None:
    found = find({}, prefix="/usr")
    assert found.path_dirs == ()


def test_environments_are_first_on_the_path(venv: str) -> None:
    variables = {"VIRTUAL_ENV": venv, "PATH": f"/opt/mine/bin:{venv}/bin:/usr/bin"}
    for sandboxed in (True, False):
        directories = search_path(variables, sandboxed=sandboxed).split(":")
        assert directories[0] == f"{venv}/bin"
        assert len(directories) == len(set(directories))
        assert "/opt/mine/bin" in directories
    assert search_path({}, sandboxed=True).endswith(SEARCH_PATH)


def shown(steps: list[rootfs.Step]) -> list[tuple[str, str]]:
    return [(step[0], step[2]) for step in steps]


@pytest.mark.parametrize(
    "location", ["/home/u/.hidden/venv", "/root/.hidden/venv", "/tmp/venv", "/run/venv"]
)
def test_environment_is_visible_even_below_hidden_directories(
    tmp_path: Path, location: str
) -> None:
    home = "/root" if location.startswith("/root") else "/home/u"
    for directory in (f"{location}/bin", home, "/tmp", "/run"):
        (tmp_path / directory[1:]).mkdir(parents=True, exist_ok=True)
    steps = rootfs.mount_plan([], hidden=[], home=home, host=str(tmp_path), visible=[location])
    seen = shown(steps)
    program = ("show", f"{location}/bin")
    assert program in seen
    hiding = [step for step in seen if location.startswith(step[1] + "/") and step[0] == "tmpfs"]
    assert hiding
    assert all(seen.index(step) < seen.index(program) for step in hiding)


def test_two_environments_below_one_inaccessible_directory_are_visible(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "srv/closed" / name / "bin").mkdir(parents=True)
    (tmp_path / "srv/closed").chmod(0o700)
    tools = ["/srv/closed/a", "/srv/closed/b"]
    steps = rootfs.mount_plan([], hidden=[], home="/home/u", host=str(tmp_path), tools=tools)
    seen = shown(steps)
    assert seen.count(("tmpfs", "/srv/closed")) == 1
    assert {("show", f"{tool}/bin") for tool in tools} <= set(seen)


def test_parent_of_the_home_is_not_made_visible(tmp_path: Path) -> None:
    (tmp_path / "tmp/home/.secret").mkdir(parents=True)
    steps = rootfs.mount_plan(
        [], hidden=[], home="/tmp/home", host=str(tmp_path), visible=["/tmp/home"]
    )
    assert ("show", "/tmp/home") not in shown(steps)


def test_data_directory_in_an_environment_stays_hidden(tmp_path: Path) -> None:
    (tmp_path / "tmp/venv/lib/data").mkdir(parents=True)
    data = "/tmp/venv/lib/data"
    steps = rootfs.mount_plan(
        [], hidden=[data], home="/home/u", host=str(tmp_path), visible=["/tmp/venv"]
    )
    seen = shown(steps)
    assert seen.index(("tmpfs", data)) > seen.index(("show", "/tmp/venv/lib"))


@pytest.mark.process
@pytest.mark.parametrize("level", list(IsolationLevel))
async def test_pod_imports_packages_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: IsolationLevel
) -> None:
    found = detected_isolation(level)
    if found.isolation is not level:
        pytest.skip("; ".join(found.reasons))
    home = tmp_path / "home"
    (home / ".secret").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("VIRTUAL_ENV", environment(home / ".hidden/venv"))
    assert interpreters.find(os.environ).path_dirs[0] == str(home / ".hidden/venv/bin")
    script = "import users_own; print('from', users_own.origin)"
    async with agent_cluster(EmbeddedServerFactory(), tmp_path) as w, w.agent(sandbox=level):
        created: list[dict[str, Any]] = [
            container(program, "-c", script, name=program) for program in ("python3", "python")
        ]
        await w.run(manifest("p", *created, restartPolicy="Never"))
        seen = await w.phase("p", "Succeeded", "Failed")
        logs = [await w.logs("p", f"?container={program}") for program in ("python3", "python")]
    assert (seen["status"]["phase"], logs) == ("Succeeded", ["from venv\n"] * 2), seen["status"]
