"""What the scheduler writes about queues, when others write there, too."""

import asyncio
from typing import Any

from support_fakeapi import FakeApi
from support_waiting import until

from batholith.kube.client import Client
from batholith.machinery.clock import SystemClock
from batholith.model.names import QUEUES
from batholith.model.queue import Queue
from batholith.scheduler.scribe import Pauses, Scribe


class Overtaken(Client):
    """A client whose first answer comes after the word of what another wrote right behind it."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__(api.credentials, user_agent="test")
        self.api = api
        self.scribe: Scribe | None = None

    async def patch(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().patch(*args, **kwargs)
        scribe, self.scribe = self.scribe, None
        if scribe is not None:
            self.api.put(QUEUES, "q", status={"allocated": {"cpu": "7"}})
            scribe.seen_queue(await self.get(QUEUES, "q", view=Queue))
        return answer


async def test_anothers_word_that_comes_before_our_own_answer_is_mended() -> None:
    async with FakeApi() as api, Overtaken(api) as client:
        api.put(QUEUES, "q", spec={"weight": 1})
        scribe = Scribe(
            client,
            recorder=None,
            clock=SystemClock(),
            seen=lambda key: None,
            pauses=Pauses(queue=0.01),
        )
        client.scribe = scribe
        running = asyncio.create_task(scribe.run())
        scribe.allocated(await client.get(QUEUES, "q", view=Queue), {"cpu": 2000, "memory": 0})
        await until(lambda: client.scribe is None)
        await until(
            lambda: api.objects(QUEUES)["q"]["status"]["allocated"] == {"cpu": "2", "memory": "0"}
        )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
