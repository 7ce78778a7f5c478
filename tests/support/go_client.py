"""Runs the Go programs of `tests/realkube`, which check a server as Go clients see it."""

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

REALKUBE = Path(__file__).parents[1] / "realkube"


def needs_go_program(name: str) -> Path:
    """A program; skips without it, or fails where ``BATHOLITH_REQUIRE`` names realkube."""
    build = REALKUBE / name / "build"
    result = subprocess.run([build, "--where"], check=True, capture_output=True, text=True)
    program = Path(result.stdout.strip())
    if not program.exists():
        if "realkube" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail(f"the Go {name} is required and not built: tests/realkube/{name}/build")
        pytest.skip(f"the Go {name} is not built: run tests/realkube/{name}/build")
    return program


async def run_go_checks(
    kubeconfig: Path, *options: str, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Failure message of each check; empty where it holds.

    ``-run PATTERN`` picks checks, ``-life`` those that need controllers, scheduler and nodes.
    """
    arguments = (f"-kubeconfig={kubeconfig}", *options)
    return await _run(needs_go_program("client"), *arguments, environment=environment or {})


async def run_go_operator(kubeconfig: Path) -> dict[str, str]:
    """Failure message of each check of an operator, which envtest runs on a cluster."""
    environment = {"USE_EXISTING_CLUSTER": "true", "KUBECONFIG": str(kubeconfig)}
    return await _run(needs_go_program("operator"), environment=environment)


async def _run(program: Path, *arguments: str, environment: Mapping[str, str]) -> dict[str, str]:
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()[-3000:]
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines, "no check has this name"
    return {line["check"]: line["error"] for line in lines}
