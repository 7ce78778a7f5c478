"""Runs the installed kubectl against a server of a test."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.embedded_apiserver import Server

KUBECTL = shutil.which("kubectl")


def needs_kubectl() -> None:
    """Skip without kubectl; fail instead where ``BATHOLITH_REQUIRE`` demands it."""
    if KUBECTL is None:
        if "kubectl" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("kubectl is required and not installed")
        pytest.skip("kubectl is not installed")


@dataclass(slots=True)
class CommandResult:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class Kubectl:
    """kubectl with its own home directory, so that no other cache is used."""

    server: Server
    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further variables."""

    program: str | None = KUBECTL

    async def start(
        self, *arguments: str, stdio: int = asyncio.subprocess.PIPE
    ) -> asyncio.subprocess.Process:
        assert self.program is not None
        return await asyncio.create_subprocess_exec(
            self.program,
            *arguments,
            stdin=stdio,
            stdout=stdio,
            stderr=stdio,
            env={
                **os.environ,
                "KUBECONFIG": str(self.server.kubeconfig),
                "HOME": str(self.home),
                **self.environment,
            },
        )

    async def run(self, *arguments: str, stdin: str = "") -> CommandResult:
        """Run a command to its end."""
        process = await self.start(*arguments)
        try:
            async with asyncio.timeout(200):
                out, err = await process.communicate(stdin.encode())
        except TimeoutError:
            process.kill()
            raise
        assert process.returncode is not None
        return CommandResult(process.returncode, out.decode(), err.decode())

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run a command that must succeed; returns what it printed."""
        result = await self.run(*arguments, stdin=stdin)
        assert result.code == 0, f"kubectl {' '.join(arguments)}: {result.err}{result.out}"
        return result.out
