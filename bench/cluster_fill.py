"""Fill a cluster with running jobs: one is really run and then copied in the store.

The copies differ in nothing but name and uid, which keep their lengths, so that they can be
substituted in the encoding in which the server stores an object.
"""

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

from batholith.kube.client.client import Client
from batholith.model.base import ApiStruct
from batholith.model.job import Job
from batholith.model.meta import ObjectMeta
from batholith.model.names import JOBS, PODGROUPS, PODS
from bench.components import COMPONENTS, Platform
from bench.load import NAMESPACE, job


class _Any(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


SIZE = 50
"""Pods of each job."""
MAX_COPIES_IN_FLIGHT = 1000
"""Maximum number of jobs: three digits of a uid distinguish the copies."""
_ORIGINAL = "seed-0000"
_PUTS = 100
"""Objects per transaction; etcd accepts 128."""


async def fill(platform: Platform, client: Client, *, pods: int) -> None:
    """Create *pods* running pods of jobs of SIZE, and stop all components."""
    jobs = pods // SIZE
    if not 1 <= jobs <= MAX_COPIES_IN_FLIGHT or pods % SIZE:
        raise ValueError(
            f"{pods} pods: give a multiple of {SIZE}, at most {SIZE * MAX_COPIES_IN_FLIGHT}"
        )
    await platform.start_components(client, *COMPONENTS)
    await client.create(JOBS, job(_ORIGINAL, SIZE, cpu="10m"), namespace=NAMESPACE)
    await wait_running(client, _ORIGINAL)
    await asyncio.to_thread(platform.stop_components)
    uids = await _uids(client)
    original = [
        (base64.b64decode(each["key"]), base64.b64decode(each["value"]))
        for each in _stored(platform, "/registry/")
        if _is_job_key(base64.b64decode(each["key"]))
    ]
    if len(original) != SIZE + 2:
        raise ValueError(f"the store holds {len(original)} objects of the job")
    await asyncio.to_thread(_put_copies, platform, original, uids, jobs)


async def wait_running(client: Client, name: str) -> None:
    """Wait until a job is Running."""
    async for event in client.watch(JOBS, view=Job, namespace=NAMESPACE):
        if event.object.metadata.name == name and event.object.status.state.phase == "Running":
            return
    raise ConnectionError("the watch ended")


async def _uids(client: Client) -> list[str]:
    found: list[str] = []
    for resource in (JOBS, PODGROUPS, PODS):
        listed = await client.list(resource, view=_Any, namespace=NAMESPACE)
        found += [each.metadata.uid for each in listed.items]
    return found


def _is_job_key(key: bytes) -> bool:
    return _ORIGINAL.encode() in key and b"/events/" not in key


def _stored(platform: Platform, prefix: str) -> list[dict[str, Any]]:
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    found = platform.kube.etcd("range", key=_text(prefix.encode()), range_end=_text(end.encode()))
    kept: list[dict[str, Any]] = found["kvs"]
    return kept


def _put_copies(
    platform: Platform, original: list[tuple[bytes, bytes]], uids: list[str], jobs: int
) -> None:
    puts: list[dict[str, Any]] = []
    for key, value in _copies(original, uids, jobs):
        puts.append({"requestPut": {"key": _text(key), "value": _text(value)}})
        if len(puts) == _PUTS:
            platform.kube.etcd("txn", success=puts)
            puts = []
    if puts:
        platform.kube.etcd("txn", success=puts)


def _copies(
    original: list[tuple[bytes, bytes]], uids: list[str], jobs: int
) -> Iterator[tuple[bytes, bytes]]:
    for number in range(1, jobs):
        names = {_ORIGINAL: f"seed-{number:04d}"}
        # A letter that no uid has keeps copies apart from originals.
        names |= {uid: f"{uid[:-4]}z{number:03d}" for uid in uids}
        pairs = [(old.encode(), new.encode()) for old, new in names.items()]
        for key, value in original:
            for old, new in pairs:
                if old in key:
                    key = key.replace(old, new)
                if old in value:
                    value = value.replace(old, new)
            yield key, value


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
