"""Invalid flags of `batholith admission` are reported in one line at start-up."""

from pathlib import Path

import pytest
from support.packages import install
from typer.testing import CliRunner

from batholith.cli.admission import AdmissionFlags
from batholith.cli.main import app
from batholith.job_ctrl.plugins.entry_points import GROUP
from batholith.job_ctrl.plugins.registry import BUILT_IN
from batholith.training_ctrl.frameworks import FRAMEWORKS

URL = ("--webhook-url", "https://127.0.0.1:8443")


def error_output(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["admission", *arguments])
    assert result.exit_code != 0
    assert "Traceback" not in result.output
    return result.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--webhook-service-name"),
        (("--webhook-url", "http://x"), "must start with https://"),
        ((*URL, "--tls-cert-file", "a"), "require each other"),
        ((*URL, "--ca-cert-file", "a"), "--ca-cert-file requires"),
        ((*URL, "--graceful-shutdown-time", "soon"), 'invalid duration "soon"'),
        ((*URL, "--feature-gates", "x"), "feature gate 'x'"),
        ((*URL, "--healthz-address", "nowhere"), "is not [HOST]:PORT"),
        ((*URL, "--port", "65536"), "65535"),
    ],
)
def test_invalid_flags_are_named(arguments: tuple[str, ...], expected: str) -> None:
    assert expected in error_output(*arguments)


def test_o12_an_unknown_path_prevents_the_start_and_known_paths_are_listed() -> None:
    text = error_output(*URL, "--enabled-admission=/jobs/mutate,/nodes/validate")
    assert "unknown admission paths: /nodes/validate" in text
    assert "/jobs/mutate, /queues/mutate" in text


def test_missing_credentials_are_reported_in_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "kubeconfig"
    assert f"cannot read kubeconfig {missing}" in error_output(*URL, "--kubeconfig", str(missing))


def test_job_plugins_of_other_packages_are_found_without_importing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "acme", modules={}, entry_points={"mine": "nowhere:Mine"}, group=GROUP)
    monkeypatch.syspath_prepend(tmp_path)
    assert AdmissionFlags().settings().job_plugins == {*BUILT_IN, "mine"}


def test_jobs_of_all_training_frameworks_are_validated() -> None:
    assert AdmissionFlags().settings().frameworks == FRAMEWORKS
