"""The time of a cluster, which a test advances."""

from typing import Any

import pytest

from batholith.machinery.testing import run_ready_tasks
from batholith.model import times
from batholith.testing import AdvanceableClock, Cluster

Json = dict[str, Any]
CRON_JOBS, JOBS = "cronjobs.batch", "jobs.batch"
VOLCANO_JOBS = "jobs.batch.volcano.sh"
HOUR = 3600


def template(command: str, restart_policy: str = "Never") -> Json:
    container = {"name": "main", "image": "busybox", "command": command.split()}
    return {"spec": {"containers": [container], "restartPolicy": restart_policy}}


async def test_timers_run_in_the_order_of_their_times() -> None:
    clock = AdvanceableClock()
    order: list[str] = []
    clock.call_later(7200, lambda: order.append("second"))
    clock.call_later(3600, lambda: clock.call_later(1800, lambda: order.append("first")))
    clock.call_later(3600, lambda: order.append("cancelled")).cancel()
    clock.call_later(9000, lambda: order.append("not due"))
    before, wall = clock.monotonic(), clock.now()
    await clock.advance(7300, run_ready_tasks)
    assert order == ["first", "second"]
    assert clock.monotonic() - before >= 7300
    assert (clock.now() - wall).total_seconds() >= 7300
    with pytest.raises(ValueError, match="must not be negative"):
        await clock.advance(-1, run_ready_tasks)


async def test_an_advance_shortens_what_is_left_to_sleep() -> None:
    """The loop wakes the sleeper, though its timer was set before the advance."""
    clock = AdvanceableClock()
    woken: list[None] = []
    clock.call_later(HOUR, lambda: woken.append(None))
    await clock.advance(HOUR - 0.05, run_ready_tasks)
    await clock.sleep(0.2)
    assert woken


async def test_a_cron_job_starts_its_jobs_at_their_times() -> None:
    async with Cluster() as cluster:
        spec = {
            "schedule": "0 * * * *",
            "successfulJobsHistoryLimit": 10,
            "jobTemplate": {"spec": {"template": template("sleep 60")}},
        }
        await cluster.create(CRON_JOBS, {"metadata": {"name": "hourly"}, "spec": spec})
        await cluster.advance(2 * HOUR)
        jobs = [
            job
            for job in cluster.objects(JOBS).values()
            if job["status"].get("completionTime") is not None
        ]
        assert len(jobs) in (1, 2)  # the last one may run now
        assert {times.parse(job["status"]["startTime"]).minute for job in jobs} == {0}
        for job in jobs:
            ran = times.parse(job["status"]["completionTime"]) - times.parse(
                job["status"]["startTime"]
            )
            assert 60 <= ran.total_seconds() < 300


async def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    async with Cluster() as cluster:
        tasks = [{"name": "main", "replicas": 1, "template": template("sleep 10")}]
        spec = {"schedulerName": "volcano", "ttlSecondsAfterFinished": HOUR, "tasks": tasks}
        await cluster.create(VOLCANO_JOBS, {"metadata": {"name": "train"}, "spec": spec})
        await cluster.wait_for_phase(VOLCANO_JOBS, "train", "Running")
        await cluster.advance(20)
        await cluster.wait_for_phase(VOLCANO_JOBS, "train", "Completed")
        await cluster.advance(HOUR // 2)
        assert "default/train" in cluster.objects(VOLCANO_JOBS)
        await cluster.advance(HOUR // 2)
        await cluster.wait_deleted(VOLCANO_JOBS, "train")


async def test_a_pod_that_fails_is_restarted_with_back_off() -> None:
    async with Cluster() as cluster:
        await cluster.create("Pod", {"metadata": {"name": "a"}, **template("exit 1", "Always")})

        def restarts() -> int:
            pod = cluster.objects("Pod")["default/a"]
            return int(pod["status"]["containerStatuses"][0]["restartCount"])

        await cluster.wait_until(lambda: restarts() >= 1)
        await cluster.advance(HOUR)
        # 10, 20, 40, 80 and 160 seconds; then five minutes each.
        assert 12 <= restarts() <= 20


async def test_nodes_are_not_lost_when_time_advances() -> None:
    async with Cluster(nodes=3) as cluster:
        await cluster.advance(HOUR)
        for node in cluster.objects("Node").values():
            ready = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
            assert (ready["status"], node["spec"].get("taints")) == ("True", None)


async def test_objects_have_the_time_of_their_cluster() -> None:
    """Two clusters in one process have their own."""
    idle: Json = {"controllers": False, "scheduler": False, "nodes": 0}
    async with Cluster(**idle) as ahead, Cluster(**idle) as other:
        await ahead.advance(HOUR)
        created = []
        for cluster in (ahead, other):
            found = await cluster.create("ConfigMap", {"metadata": {"name": "a"}})
            created.append(times.parse(found["metadata"]["creationTimestamp"]))
        assert (created[0] - created[1]).total_seconds() >= HOUR - 60
