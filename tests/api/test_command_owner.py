"""Commands are deleted with their job, whose deletion they do not block."""

import pytest
from support.polling import wait_until_true
from support.rest import RestClient

from batholith.model.job import Job
from batholith.model.names import COMMANDS, JOBS


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_a_command_is_deleted_with_its_job(rest: RestClient, propagation: str) -> None:
    client = rest.client
    await rest.command("suspend")
    [command] = await rest.commands()
    [owner] = command.metadata.owner_references
    assert (owner.name, owner.controller, owner.block_owner_deletion) == ("train", True, None)
    await client.delete(JOBS, "train", namespace="default", propagation=propagation)

    async def are_deleted() -> bool:
        jobs = await client.list(JOBS, view=Job)
        commands = await client.list(COMMANDS, view=dict)
        return not (jobs.items or commands.items)

    await wait_until_true(are_deleted)
