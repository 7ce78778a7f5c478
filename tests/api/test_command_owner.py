"""Commands are deleted with their job, whose deletion they do not block."""

from pathlib import Path

import pytest
from support.polling import wait_until_true
from support.rest import cluster, rest_at, running_api, sqlite

from batholith.model.job import Job
from batholith.model.names import COMMANDS, JOBS


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_a_command_is_deleted_with_its_job(tmp_path: Path, propagation: str) -> None:
    async with (
        cluster(tmp_path) as (server, client),
        running_api(client, sqlite(tmp_path)) as url,
        rest_at(url, server, client) as rest,
    ):
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
