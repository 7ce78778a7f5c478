"""Jobs of one pod without a PodGroup, while replicas with shards die and the option changes."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.chaos_cluster import ChaosCluster, chaos_cluster
from support.job_load import (
    ExpectedJob,
    completing_job,
    eventually,
    exit_code_job,
    failing_job,
    restarting_job,
)
from support.polling import wait_until_true
from support.replicas import Replica
from support.shard_audit import current_holders, leaderships, writes_for_other_shards

from batholith.model.names import PODGROUP, PODGROUPS, PODS, QUEUES

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]  # for a loaded machine

SHARDS = 4
JOBS = 48
GANGS, ALL = ([f"--shards={SHARDS}", f"--podgroups={which}"] for which in ("gangs", "all"))


def jobs_of_one_pod(number: int) -> list[ExpectedJob]:
    """Each fourth is of an odd kind, and the last one of each twelve is a gang."""
    kinds = [failing_job, restarting_job, exit_code_job]
    found = []
    for n in range(number):
        if n % 12 == 11:
            found.append(completing_job(f"j{n}", 2))
        elif n % 4 == 3:
            script = kinds[n // 4 % len(kinds)](f"j{n}", 1)
            found.append(dataclasses.replace(script, tasks=script.tasks[:1]))
        else:
            found.append(completing_job(f"j{n}", 1))
    return found


async def holder(s: ChaosCluster) -> Replica:
    """A running replica of the controllers that holds shards."""
    found: list[Replica] = []

    def has_holder() -> bool:
        users = current_holders(s.audit_log.requests(), SHARDS)
        running = [each for each in s.replicas_started["controllers"] if each.is_running]
        found[:] = [each for each in running if each.user in users]
        return bool(found)

    await eventually(has_holder, lambda: "a replica that holds shards", seconds=200)
    return found[0]


async def kill(replica: Replica) -> None:
    replica.kill()
    assert await replica.wait_exit() == -9


async def switch(s: ChaosCluster, flags: Sequence[str]) -> None:
    """Let all replicas of the controllers be killed, and others start with *flags*."""
    s.controller_flags = flags
    for replica in list(s.replicas_started["controllers"]):
        if replica.is_running:
            await kill(replica)


def jobs_with_podgroups(s: ChaosCluster) -> set[str]:
    """The jobs whose PodGroup was created."""
    names = (
        str(each.body["metadata"]["name"])
        for each in s.audit_log.requests()
        if (each.verb, each.resource) == ("create", "podgroups")
    )
    return {name.partition("-")[0] for name in names}


async def test_jobs_of_one_pod_end_while_replicas_die_and_the_option_changes(
    tmp_path: Path,
) -> None:
    load = jobs_of_one_pod(JOBS)
    gangs = {each.name for each in load if sum(task["replicas"] for task in each.tasks) > 1}
    async with (
        chaos_cluster(tmp_path, workload=load, controller_flags=GANGS) as s,
        s.running_replicas(2),
    ):
        await s.job_load.wait_finished(6)
        await kill(await holder(s))
        await kill(await s.wait_live_leader("scheduler"))
        await s.job_load.wait_finished(16)
        ended = await holder(s)
        ended.terminate()
        assert await ended.wait_exit() == 0
        await s.job_load.wait_finished(22)
        assert jobs_with_podgroups(s) <= gangs
        await switch(s, ALL)
        await s.job_load.wait_finished(32)
        await switch(s, GANGS)
        await s.check_jobs()
        users = [replica.user for replica in s.replicas_started["controllers"]]
        requests = s.audit_log.requests()
        assert writes_for_other_shards(requests, SHARDS, users) == []
        assert all(len(held) > 1 for held in leaderships(requests, SHARDS))
        assert s.stale_writes("scheduler") == []
        assert jobs_with_podgroups(s) & gangs == gangs
        await check_objects(s, gangs)


async def check_objects(s: ChaosCluster, gangs: set[str]) -> None:
    """The pods of gangs describe nothing, and no queue counts what has ended."""
    for pod in (await s.server.get(PODS.path("default")))["items"]:
        meta = pod["metadata"]
        is_described = PODGROUP in meta.get("annotations", {})
        assert is_described is (meta.get("labels", {}).get(PODGROUP) == "none"), meta
        assert not (is_described and meta["name"].partition("-")[0] in gangs), meta

    found: dict[str, object] = {}

    async def has_counts() -> bool:
        groups = (await s.server.get(PODGROUPS.path("default")))["items"]
        phases = [each.get("status", {}).get("phase", "") for each in groups]
        status = (await s.server.get(QUEUES.path(name="default")))["status"]
        found.update(status=status, phases=phases)
        counted = {each: status.get(each, 0) for each in ("pending", "running", "inqueue")}
        return counted == {each: phases.count(each.capitalize()) for each in counted}

    try:
        await wait_until_true(has_counts, seconds=60)
    except TimeoutError:
        raise AssertionError(f"{found}") from None
