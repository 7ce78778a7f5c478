"""Variables in files that a container writes for later ones."""

import os
from pathlib import Path

import pytest
from support.agent import container, manifest
from support.agent_cluster import AgentCluster

from batholith.local.agent.state.core_types import FileKeySelector
from batholith.local.agent.state.env_files import EnvFileError, parse_env_file
from batholith.local.agent.state.environment import ContainerConfigError
from batholith.local.agent.volumes.env_files import read_variable
from batholith.local.agent.volumes.volumes import MountedVolume

FILE = """# comment

  A='one'   # comment
B='$(A) "two"
three'
C= 'four'
D='five'\r
"""


@pytest.mark.parametrize(
    ("key", "value"),
    [("A", "one"), ("B", '$(A) "two"\nthree'), ("C", ""), ("D", "five"), ("E", "")],
)
def test_a_file_defines_variables_as_for_a_kubelet(key: str, value: str) -> None:
    assert parse_env_file(FILE, key) == value


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\nA", "line 2: missing '='"),
        ("='a'", "empty variable name"),
        ("A ='a'", "whitespace before '='"),
        ("A=a", "enclosed in single quotes"),
        ("A='a\nb", "line 1: unclosed single quote"),
        ("A='a'b", "unexpected content"),
    ],
)
def test_a_malformed_file_is_an_error(text: str, error: str) -> None:
    with pytest.raises(EnvFileError, match=error):
        parse_env_file(text, "B")


def select(key: str = "A", *, path: str = "f", optional: bool = False) -> FileKeySelector:
    return FileKeySelector(volume_name="v", path=path, key=key, optional=optional)


def test_only_a_missing_key_is_optional_and_nothing_outside_the_volume_is_read(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "v"
    directory.mkdir()
    volume = MountedVolume(directory)
    (directory / "f").write_text("A='1'")
    (tmp_path / "secret").write_text("A='secret'")
    (directory / "link").symlink_to(tmp_path / "secret")
    (directory / "up").symlink_to("../secret")
    os.mkfifo(directory / "pipe")
    (directory / "large").write_text("#" * (1 << 21))
    assert read_variable(volume, select()) == "1"
    assert read_variable(volume, select("B", optional=True)) is None
    for path in ("link", "up", "../secret", "pipe", "large", "missing", "."):
        with pytest.raises(ContainerConfigError, match="env file"):
            read_variable(volume, select(path=path, optional=True))
    with pytest.raises(ContainerConfigError, match='key "B" not found in file "f"'):
        read_variable(volume, select("B"))


@pytest.mark.process
@pytest.mark.asyncio(loop_scope="module")
async def test_an_init_container_defines_variables_of_later_containers(
    cluster: AgentCluster,
) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]
    first = container(
        "sh", "-c", "echo \"A='from init'\" > ${BATHOLITH_ROOT}/v/f", name="first",
        volumeMounts=mounts,
    )  # fmt: skip
    source = {"fileKeyRef": {"volumeName": "v", "path": "f", "key": "A"}}
    main = container(
        "sh", "-c", "test \"$A\" = 'from init'", env=[{"name": "A", "valueFrom": source}]
    )
    volumes = [{"name": "v", "emptyDir": {}}]
    await cluster.run(
        manifest("p", main, initContainers=[first], volumes=volumes, restartPolicy="Never")
    )
    done = await cluster.phase("p", "Succeeded", "Failed")
    assert done["status"]["phase"] == "Succeeded"
