"""Flags of `batholith admission` that cannot be used are told in a line, before anything starts."""

from pathlib import Path

import pytest
from support.packages import install
from typer.testing import CliRunner

from batholith.cli.admission import AdmissionFlags
from batholith.cli.main import app
from batholith.job_ctrl.plugins.entry_points import GROUP
from batholith.job_ctrl.plugins.registry import BUILT_IN

URL = ("--webhook-url", "https://127.0.0.1:8443")


def error_output(*arguments: str) -> str:
    answer = CliRunner().invoke(app, ["admission", *arguments])
    assert answer.exit_code != 0
    assert "Traceback" not in answer.output
    return answer.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--webhook-service-name"),
        (("--webhook-url", "http://x"), "must start with https://"),
        ((*URL, "--tls-cert-file", "a"), "require each other"),
        ((*URL, "--ca-cert-file", "a"), "--ca-cert-file needs"),
        ((*URL, "--graceful-shutdown-time", "soon"), 'invalid duration "soon"'),
        ((*URL, "--feature-gates", "x"), "feature gate 'x'"),
        ((*URL, "--healthz-address", "nowhere"), "is not [HOST]:PORT"),
        ((*URL, "--port", "65536"), "65535"),
    ],
)
def test_they_are_named(arguments: tuple[str, ...], words: str) -> None:
    assert words in error_output(*arguments)


def test_o12_a_path_without_rules_ends_the_start_and_is_named_with_those_that_there_are() -> None:
    text = error_output(*URL, "--enabled-admission=/jobs/mutate,/nodes/validate")
    assert "no admission at /nodes/validate" in text
    assert "/jobs/mutate, /queues/mutate" in text


def test_credentials_that_are_missing_are_told_in_a_line(tmp_path: Path) -> None:
    missing = tmp_path / "kubeconfig"
    assert f"cannot read kubeconfig {missing}" in error_output(*URL, "--kubeconfig", str(missing))


def test_job_plugins_of_other_packages_are_known_without_running_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "acme", modules={}, entry_points={"mine": "nowhere:Mine"}, group=GROUP)
    monkeypatch.syspath_prepend(tmp_path)
    assert AdmissionFlags().settings().job_plugins == {*BUILT_IN, "mine"}
