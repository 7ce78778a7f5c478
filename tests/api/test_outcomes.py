"""Outcomes of commands are never wrong, however late the watch of Jobs is."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.controller_api import NAMESPACE, ControllerApi
from support.polling import wait_until_true
from support.rest import JOB, sqlite

from batholith.api.caches import Caches
from batholith.api.commands.orders import Order
from batholith.api.commands.outcomes import Outcomes
from batholith.api.commands.service import CommandService
from batholith.api.identity.caller import AuthenticatedCaller
from batholith.api.identity.reviewer import UserInfo
from batholith.kube.client.client import Client
from batholith.model.command import Command
from batholith.model.controlled_resources import COMMAND_PHASE, COMMAND_UID
from batholith.model.job import Action, Job
from batholith.model.names import COMMANDS, JOBS, PODGROUPS, QUEUES
from batholith.store.commands import OPEN_STATES, CommandRecord, CommandStore
from batholith.store.database import Database
from batholith.store.migrations import MIGRATIONS


@dataclass(slots=True)
class Commands:
    """The command service of the REST API, and what the job controller does behind it."""

    api: ControllerApi
    client: Client
    service: CommandService
    outcomes: Outcomes

    async def issue(self, job: str, action: Action) -> tuple[CommandRecord, Command]:
        """Create *job* and send a command."""
        await self.create(job)
        created = await self.client.get(JOBS, job, namespace=NAMESPACE, view=Job)
        order = Order(kind="jobs", metadata=created.metadata, action=action)
        caller = AuthenticatedCaller(user=UserInfo(username="tester"), client=self.client)
        record = await self.service.issue(order, caller=caller, operation=uuid.uuid4())
        command = await self.client.get(COMMANDS, record.command, namespace=NAMESPACE, view=Command)
        return record, command

    async def create(self, job: str) -> None:
        await self.client.create(JOBS, JOB | {"metadata": {"name": job}}, namespace=NAMESPACE)

    async def delete(self, job: str) -> None:
        await self.client.delete(JOBS, job, namespace=NAMESPACE)

    async def execute(self, job: str, command_uid: str, phase: str) -> None:
        """Write the status as the job controller does."""
        marks = {COMMAND_UID: command_uid, COMMAND_PHASE: phase}
        status = {"state": {"phase": phase}, "controlledResources": marks}
        await self.client.patch(
            JOBS, job, {"status": status}, namespace=NAMESPACE, subresource="status"
        )

    async def drop(self, command: Command) -> None:
        await self.client.delete(COMMANDS, command.metadata.name, namespace=NAMESPACE)

    async def outcome(self, record: CommandRecord) -> str:
        """The outcome that the API reports."""
        latest = record

        async def is_settled() -> bool:
            nonlocal latest
            latest = await self.outcomes.refresh(latest)
            return latest.state not in OPEN_STATES

        await wait_until_true(is_settled)
        return latest.state


@pytest.fixture
async def commands(tmp_path: Path) -> AsyncIterator[Commands]:
    database = Database(sqlite(tmp_path))
    await database.migrate(MIGRATIONS)
    async with ControllerApi(JOBS, COMMANDS, PODGROUPS, QUEUES) as api, api.client() as client:
        caches = Caches(client)
        store = CommandStore(database)
        outcomes = Outcomes(client, store, caches)
        service = CommandService(client, store, outcomes)
        ready = asyncio.Event()
        work = (caches.jobs.run(), caches.queues.run(), outcomes.run(ready=ready))
        running = [asyncio.create_task(each) for each in work]
        await ready.wait()
        yield Commands(api, client, service, outcomes)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
    await database.close()


@contextlib.asynccontextmanager
async def delayed_watch(api: ControllerApi, seconds: float) -> AsyncIterator[None]:
    """Let the watch of Jobs deliver what it has every *seconds* only."""

    async def delay() -> None:
        while True:
            for watch in api.watches(JOBS):
                watch.stall()
            await asyncio.sleep(seconds)
            for watch in api.watches(JOBS):
                watch.resume()
            await asyncio.sleep(0.01)

    delaying = asyncio.create_task(delay())
    try:
        yield
    finally:
        delaying.cancel()
        await asyncio.wait([delaying])
        for watch in api.watches(JOBS):
            watch.resume()


CASES: Mapping[str, tuple[Action, Sequence[str], str]] = {
    "executed": (Action.ABORT_JOB, ("Aborting",), "Executed"),
    # The status names the later Command only.
    "executed-before-another": (Action.ABORT_JOB, ("Aborting", "later"), "Executed"),
    "completed-with-ttl-zero": (Action.COMPLETE_JOB, ("Completing", "delete"), "Executed"),
    "deleted": (Action.RESTART_JOB, ("delete",), "Failed"),
    "executed-and-created-again": (
        Action.TERMINATE_JOB,
        ("Terminating", "delete", "create"),
        "Executed",
    ),
    "created-again": (Action.TERMINATE_JOB, ("delete", "create"), "Failed"),
    "without-effect": (Action.RESUME_JOB, (), "Ignored"),
}
"""By name: the action, what happens before the Command is deleted, and its outcome."""


async def run_commands(commands: Commands, name: str, job: str) -> CommandRecord:
    action, steps, _ = CASES[name]
    record, command = await commands.issue(job, action)
    for step in steps:
        if step == "delete":
            await commands.delete(job)
        elif step == "create":
            await commands.create(job)
        elif step == "later":
            await commands.execute(job, "later", "Restarting")
        else:
            await commands.execute(job, command.metadata.uid, step)
    await commands.drop(command)
    return record


@pytest.mark.parametrize("delay", [0.0, 0.5])
@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.soak)])
async def test_outcome_is_right_with_a_delayed_watch(
    commands: Commands, delay: float, count: int
) -> None:
    async with delayed_watch(commands.api, delay):
        names = [name for name in CASES for _ in range(count)]
        records = await asyncio.gather(
            *(run_commands(commands, name, f"{name}-{n}") for n, name in enumerate(names))
        )
        found = await asyncio.gather(*map(commands.outcome, records))
    assert found == [CASES[name][2] for name in names]


async def test_outcome_is_unknown_if_the_watch_has_a_gap(commands: Commands) -> None:
    """The Command was executed and another one since, while no watch showed it."""
    watches = commands.api.watches(JOBS)
    for watch in watches:
        watch.stall()
    record, command = await commands.issue("gap", Action.ABORT_JOB)
    await commands.execute("gap", command.metadata.uid, "Aborting")
    await commands.execute("gap", "later", "Restarting")
    for watch in watches:
        watch.expire()
    await commands.drop(command)
    assert await commands.outcome(record) == "Unknown"
