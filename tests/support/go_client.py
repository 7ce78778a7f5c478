"""Runs the Go program of `tests/realkube/client`, which checks a server as Go clients see it."""

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[1] / "realkube" / "client" / "build"


def needs_go_client() -> Path:
    """The program; skips without it, or fails where ``BATHOLITH_REQUIRE`` names realkube."""
    result = subprocess.run([BUILD, "--where"], check=True, capture_output=True, text=True)
    program = Path(result.stdout.strip())
    if not program.exists():
        if "realkube" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("the Go client is required and not built: tests/realkube/client/build")
        pytest.skip("the Go client is not built: run tests/realkube/client/build")
    return program


async def run_go_checks(
    kubeconfig: Path, *options: str, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Failure message of each check; empty where it holds.

    ``-run PATTERN`` picks checks, ``-life`` those that need controllers, scheduler and nodes.
    """
    process = await asyncio.create_subprocess_exec(
        needs_go_client(),
        f"-kubeconfig={kubeconfig}",
        *options,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
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
