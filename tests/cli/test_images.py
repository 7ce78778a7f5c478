"""``batholith image``: load, list, rm."""

from pathlib import Path

import pytest
from support.images import Layer, image, write_layout
from typer.testing import CliRunner, Result

from batholith.cli.components import with_images
from batholith.cli.embedded import EmbeddedCluster, Options
from batholith.cli.main import app
from batholith.cli.node_flags import log_flags_of, sysctl_flags_of, with_logs, with_network
from batholith.local.agent.images.manager import RunMode
from batholith.local.agent.images.puller import Registry
from batholith.local.agent.pods.records import PodDir, PodRecord
from batholith.local.agent.runtime import shim
from batholith.local.agent.runtime.image_run import WRITABLE
from batholith.local.agent.runtime.logs import LogRotation
from batholith.local.agent.settings import AgentSettings
from batholith.local.supervisor.datadir import DataDir

pytestmark = pytest.mark.process


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run(*arguments: str, data: Path) -> Result:
    return CliRunner().invoke(app, ["image", *arguments, "--data-dir", str(data)])


def layout(tmp_path: Path, name: str, *layers: Layer) -> str:
    config = {"Healthcheck": {"Test": ["CMD", "true"]}, "StopSignal": "SIGODD"}
    return str(
        write_layout(tmp_path / f"layout-{name}", f"r.example/{name}:1", image(layers, config))
    )


def test_images_are_loaded_listed_and_removed(tmp_path: Path, data: Path) -> None:
    base = Layer().file("a", bytes(1 << 20))
    for name in ("one", "two"):
        loaded = run("load", layout(tmp_path, name, base), data=data)
        assert loaded.exit_code == 0, loaded.output
        assert f"loaded r.example/{name}:1" in loaded.output
        assert "HEALTHCHECK is ignored" in loaded.output
        assert "STOPSIGNAL 'SIGODD' is unknown" in loaded.output
    listed = run("list", data=data).output.splitlines()
    assert [line.split()[0] for line in listed] == ["IMAGE", "r.example/one:1", "r.example/two:1"]
    assert listed[1].endswith("1.0 MiB")
    removed = run("rm", "r.example/one:1", "r.example/two:1", data=data)
    assert removed.exit_code == 0, removed.output
    assert len(run("list", data=data).output.splitlines()) == 1
    assert list((data / "images" / "layers").iterdir()) == []


def test_images_can_be_loaded_before_the_first_start_and_during_a_run(
    tmp_path: Path, data: Path
) -> None:
    assert run("load", layout(tmp_path, "one", Layer().file("a")), data=data).exit_code == 0
    directory = DataDir(data)
    directory.lock()
    try:
        assert run("load", layout(tmp_path, "two", Layer().file("a")), data=data).exit_code == 0
    finally:
        directory.unlock()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["load", "missing.tar"], "image: missing.tar: No such file"),
        (["rm", "missing"], "there is no image 'missing'"),
        (["rm", "A"], "'A' is not the name of an image"),
    ],
)
def test_errors_are_reported(data: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments, data=data)
    assert result.exit_code == 1
    assert message in result.output


def test_other_directories_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("list", data=tmp_path)
    assert result.exit_code == 1
    assert "not a data directory" in result.output
    assert not (tmp_path / "images").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--simulate", "1", "--pods", "images"], "no effect on simulated pods"),
        (["--simulate", "1", "--registry", "docker.io"], "no effect on simulated pods"),
        (["--pods", "processes", "--registry", "docker.io"], "no effect with --pods=processes"),
        (["--simulate", "1", "--container-log-max-files", "3"], "no effect on simulated pods"),
        (["--container-log-max-size", "0"], "not a positive number of bytes"),
        (["--simulate", "1", "--allowed-unsafe-sysctls", "kernel.sem"], "no effect on simulated"),
        (["--allowed-unsafe-sysctls", "kernel.*"], "not known to be a sysctl of a namespace"),
        (["--registry", "https://docker.io"], "not the host of a registry"),
        (["--registry", "docker.io=ftp://mirror.example"], "is not http(s)://HOST"),
    ],
)
def test_up_rejects_options_of_pods_without_effect(
    data: Path, options: list[str], message: str
) -> None:
    result = CliRunner().invoke(app, ["up", *options, "--data-dir", str(data)])
    assert result.exit_code == 1
    assert message in result.output
    assert not data.exists()


def test_up_gives_its_options_of_images_to_the_agent(data: Path) -> None:
    directory = DataDir(data)
    directory.lock()
    registries = ("docker.io", "docker.io=https://mirror.example")
    options = Options(port=0, api_port=0, pods="images", registries=registries)
    with EmbeddedCluster(directory, options) as up:
        [arguments] = [each.arguments for each in up.components() if each.name == "agent"]
    given = " ".join(arguments)
    assert "--pods images" in given
    assert "--registry docker.io --registry docker.io=https://mirror.example" in given
    settings = with_images(AgentSettings(data_dir=data), "images", registries)
    assert settings.run_mode is RunMode.IMAGES
    assert settings.registries == (Registry("docker.io", ("https://mirror.example",)),)


def test_up_gives_the_limits_of_logs_and_the_sysctls_to_the_agent(data: Path) -> None:
    directory = DataDir(data)
    directory.lock()
    flags = (*log_flags_of("64Ki", 3), *sysctl_flags_of("kernel.msg*"))
    options = Options(port=0, api_port=0, agent_flags=flags)
    with EmbeddedCluster(directory, options) as up:
        [arguments] = [each.arguments for each in up.components() if each.name == "agent"]
    assert {"--container-log-max-size=64Ki", "--container-log-max-files=3"} <= {*arguments}
    assert "--allowed-unsafe-sysctls=kernel.msg*" in arguments
    settings = with_logs(AgentSettings(data_dir=data), "64Ki", 3)
    assert settings.log_rotation == LogRotation(65536, 3)
    assert with_network(settings, "host", "", "kernel.msg*").allowed_unsafe_sysctls == (
        "kernel.msg*",
    )


def test_image_is_not_removed_while_the_image_of_a_pod_is_unknown(
    tmp_path: Path, data: Path
) -> None:
    assert run("load", layout(tmp_path, "one", Layer().file("a")), data=data).exit_code == 0
    pod = PodDir(data, uid="uid", log_name="log")
    pod.write_record(
        PodRecord(uid="uid", namespace="default", name="p", ip="127.64.0.9", accepted_at="")
    )
    damaged = pod.new_run("c").path
    (damaged / WRITABLE).mkdir(parents=True)
    (damaged / shim.LAUNCH).write_text("{")
    removed = run("rm", "r.example/one:1", data=data)
    assert removed.exit_code == 1
    assert "cannot read which image the pod default/p uses" in removed.output
    assert "r.example/one:1" in run("list", data=data).output
