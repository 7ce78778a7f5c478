"""The commands for jobs, run with the address and the token of a cluster."""

import asyncio
from pathlib import Path
from typing import Any

from support.sdk import RestCluster
from typer.testing import CliRunner, Result

from batholith.cli.main import app
from batholith.client import Client, Job
from batholith.model.names import JOBS


class Shell:
    """Runs commands with the address and the token of a cluster, in a new namespace."""

    def __init__(self, rest: RestCluster, namespace: str, token_file: Path) -> None:
        self.rest, self.namespace = rest, namespace
        self.connection = ("--url", rest.url, "--token-file", str(token_file), "-n", namespace)
        self.client = Client(rest.url, token=rest.token, namespace=namespace)

    async def run(self, *arguments: str) -> Result:
        given = [*arguments, *self.connection]
        return await asyncio.to_thread(CliRunner().invoke, app, given)

    async def run_program(self, command: str, *arguments: str, namespace: bool = True) -> Result:
        """Run a command whose last arguments are a program; the options are before these."""
        options = self.connection if namespace else self.connection[:-2]
        given = [command, *options, *arguments]
        return await asyncio.to_thread(CliRunner().invoke, app, given)

    async def out_of_program(self, command: str, *arguments: str) -> str:
        result = await self.run_program(command, *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def out(self, *arguments: str) -> str:
        result = await self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def submit(self, job: Any) -> None:
        await asyncio.to_thread(self.client.jobs.submit, job)

    async def running(self, name: str) -> None:
        job = Job(name, labels={"team": "vision"})
        for task in ("worker", "helper"):
            job = job.task(task, image="busybox", command=["sleep", "600"], cpu=0.1)
        await self.submit(job)
        await self.rest.cluster.wait_for_phase(JOBS, name, "Running", namespace=self.namespace)
