"""Queues, PodGroups, job flows and CronJobs through both clients."""

from typing import Any

import pytest
from support.admission import cronjob
from support.sdk import RestCluster, Sdk

from batholith.client import ConflictError, InvalidError, Job, NotFoundError
from batholith.model.names import CRONJOBS, JOBFLOWS, JOBS, JOBTEMPLATES

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


async def test_a_queue_is_created_changed_and_deleted(sdk: Sdk, namespace: str) -> None:
    name = f"q-{namespace}"
    fields = {"name": name, "weight": 2, "capability": {"cpu": 4, "memory": "1Gi"}}
    queue = await sdk.call(lambda client: client.queues.create(fields))
    assert (queue.weight, queue.capability, queue.parent) == (
        2,
        {"cpu": "4", "memory": "1Gi"},
        "root",
    )
    with pytest.raises(ConflictError):
        await sdk.call(lambda client: client.queues.create(fields))
    changed = await sdk.call(lambda client: client.queues.change(name, {"weight": 3}))
    assert changed.weight == 3
    with pytest.raises(InvalidError):
        await sdk.call(lambda client: client.queues.change(name, {"weight": "many"}))
    assert (await sdk.call(lambda client: client.queues.get(name))).weight == 3
    listed = await sdk.call(lambda client: client.queues.list(parent="root", page_size=1))
    assert {"default", name} <= {each.name for each in listed}
    deleted = await sdk.call(lambda client: client.queues.delete(name))
    assert deleted.name == name
    with pytest.raises(NotFoundError):
        await sdk.call(lambda client: client.queues.get(name))


async def test_usage_of_a_queue_and_its_podgroups(sdk: Sdk, rest: RestCluster) -> None:
    name = f"q-{sdk.client.namespace}"
    await sdk.call(lambda client: client.queues.create({"name": name, "capability": {"cpu": 4}}))
    command = ["sleep", "600"]
    job = Job("train", queue=name).task("t", image="busybox", replicas=2, command=command, cpu=1)
    await sdk.call(lambda client: client.jobs.submit(job))
    await rest.cluster.wait_for_phase(JOBS, "train", "Running", namespace=sdk.client.namespace)
    usage = await sdk.call(lambda client: client.queues.usage(name))
    assert usage.resources["cpu"].capability == "4"
    assert usage.jobs == {"Running": 1}
    [group] = await sdk.call(lambda client: client.podgroups.list(queue=name))
    assert (group.min_member, group.owner.name) == (2, "train")
    found = await sdk.call(lambda client: client.podgroups.get(group.name))
    assert found.uid == group.uid


async def test_job_flows_are_listed(sdk: Sdk, rest: RestCluster, namespace: str) -> None:
    template = {"metadata": {"name": "a"}, "spec": Job("a").task("t", image="i").manifest()["spec"]}
    await rest.cluster.create(JOBTEMPLATES, template, namespace=namespace)
    flow: dict[str, Any] = {"metadata": {"name": "flow"}, "spec": {"flows": [{"name": "a"}]}}
    await rest.cluster.create(JOBFLOWS, flow, namespace=namespace)
    await rest.cluster.wait_for(
        JOBFLOWS, "flow", lambda it: it["status"]["state"]["phase"], namespace=namespace
    )
    found = await sdk.call(lambda client: client.flows.get("flow"))
    assert [(job.flow, job.job) for job in found.jobs] == [("a", "flow-a")]
    listed = await sdk.call(lambda client: client.flows.list())
    assert [each.uid for each in listed] == [found.uid]
    everywhere = await sdk.call(lambda client: client.flows.list(all_namespaces=True))
    assert found.uid in {each.uid for each in everywhere}


async def test_a_cronjob_is_suspended_resumed_and_started_now(
    sdk: Sdk, rest: RestCluster, namespace: str
) -> None:
    spec = cronjob("0 9 1 1 *")["spec"]
    body = {"metadata": {"name": "report"}, "spec": spec}
    await rest.cluster.create(CRONJOBS, body, namespace=namespace)
    [listed] = await sdk.call(lambda client: client.cronjobs.list())
    assert (listed.schedule, listed.suspend) == ("0 9 1 1 *", False)
    suspended = await sdk.call(lambda client: client.cronjobs.suspend("report"))
    assert suspended.suspend
    resumed = await sdk.call(lambda client: client.cronjobs.resume(f"{namespace}/report"))
    assert not resumed.suspend
    started = await sdk.call(lambda client: client.cronjobs.start("report", name="now"))
    again = await sdk.call(lambda client: client.cronjobs.start("report", name="now"))
    assert (started.name, again.uid) == ("now", started.uid)
    generated = await sdk.call(lambda client: client.cronjobs.start("report"))
    assert generated.name.startswith("report-")
