"""An agent in a separate process, to be killed: `python -m support.agent_process SETTINGS`."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.local.agent.service import Agent
from batholith.local.agent.settings import AgentSettings
from batholith.local.agent.volumes.host_dirs import HostDir


async def main(given: dict[str, str]) -> None:
    credentials = Credentials(server=given["server"], ca_file=given["ca"], token=given["token"])
    settings = AgentSettings(
        data_dir=Path(given["data"]),
        node_name=given["node"],
        host_dirs=(HostDir(given["shared"]),),
    )
    extended = replace(credentials, token=given["token of extensions"])
    async with (
        Client(credentials, user_agent="batholith-tests") as client,
        Client(extended, user_agent="batholith-tests") as extensions,
    ):
        ready = asyncio.Event()
        runner = Agent(client, settings=settings, extensions=extensions)
        agent = asyncio.create_task(runner.run(ready=ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({agent, waiting}, return_when=asyncio.FIRST_COMPLETED)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await agent


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
