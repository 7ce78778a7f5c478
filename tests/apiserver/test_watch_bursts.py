"""Watches during a burst of changes: fewer messages, with the same changes in the same order."""

import asyncio

from pytest import mark
from support.embedded_apiserver import MAPS, Server

from batholith.local.apiserver.verbs import reads


@mark.asyncio
async def test_changes_of_a_burst_arrive_once_and_in_order(server: Server) -> None:
    names = [f"burst-{number}" for number in range(200)]
    async with server.watch(f"{MAPS}?watch=1") as lines:
        created = await asyncio.gather(
            *(server.create(MAPS, {"metadata": {"name": name}}) for name in names)
        )
        versions = sorted(int(each["metadata"]["resourceVersion"]) for each in created)
        seen: list[int] = []
        while len(seen) < len(names):
            event = await lines.next()
            if event["object"]["metadata"]["name"] in names:
                assert event["type"] == "ADDED"
                seen.append(int(event["object"]["metadata"]["resourceVersion"]))
    assert seen == versions


def test_messages_are_delayed_during_a_burst_only() -> None:
    delay, waits = 0.0, []
    for changes in (*[1] * 3, *[reads.BURST_CHANGES] * 20, *[1] * 6):
        delay = reads.next_delay(delay, changes)
        waits.append(delay)
    assert waits[:3] == [0, 0, 0]
    assert waits[3:23] == sorted(waits[3:23])
    assert waits[22] == reads.MAX_DELAY
    assert waits[-1] == 0
