"""Jobs and CronJobs by an unmodified kubectl; the statuses are written as their controllers do."""

import asyncio

import pytest
import yaml
from support.api_servers import merge_patch
from support.batch_writes import COMPLETE, FAILED, POD, STARTED
from support.embedded_apiserver import PODS
from support.kubectl import Kubectl

from batholith.model.names import BATCH_JOBS

pytestmark = pytest.mark.process

JOBS = BATCH_JOBS.path("default")


async def test_create_job_and_wait_for_it(kubectl: Kubectl) -> None:
    created = await kubectl("create", "job", "hello", "--image=busybox:1", "--", "echo", "hello")
    assert created == "job.batch/hello created\n"
    header, row = (await kubectl("get", "jobs")).splitlines()
    assert header.split() == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert row.split()[:3] == ["hello", "Running", "0/1"]
    waiting = asyncio.create_task(
        kubectl("wait", "--for=condition=complete", "job/hello", "--timeout=60s")
    )
    status = f"{JOBS}/hello/status"
    await merge_patch(kubectl.server, status, {"status": STARTED | {"active": 1}})
    await merge_patch(kubectl.server, status, {"status": COMPLETE | {"active": 0, "succeeded": 1}})
    assert await waiting == "job.batch/hello condition met\n"
    wide = (await kubectl("get", "job", "hello", "-o", "wide")).splitlines()
    assert wide[0].split()[-3:] == ["CONTAINERS", "IMAGES", "SELECTOR"]
    assert wide[1].split()[:4] == ["hello", "Complete", "1/1", "55m"]
    found = await kubectl("get", "jobs", "--field-selector=status.successful=1", "-o", "name")
    assert found == "job.batch/hello\n"


async def test_describe_a_job(kubectl: Kubectl) -> None:
    await kubectl("create", "job", "sums", "--image=busybox:1")
    job = await kubectl.server.get(f"{JOBS}/sums")
    metadata = {"name": "sums-x", "labels": job["spec"]["template"]["metadata"]["labels"]}
    await kubectl.server.create(PODS, {"metadata": metadata, "spec": POD})
    await merge_patch(kubectl.server, f"{JOBS}/sums/status", {"status": FAILED | {"failed": 1}})
    lines = (await kubectl("describe", "job", "sums")).splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line and line[0] != " ")
    assert fields["Parallelism"].split() == ["1"]
    assert fields["Completion Mode"].split() == ["NonIndexed"]
    assert fields["Backoff Limit"].split() == ["6"]
    assert fields["Pods Statuses"].split(" / ")[1:] == ["0 Succeeded", "1 Failed"]


async def test_create_a_cron_job_and_a_job_from_it(kubectl: Kubectl) -> None:
    await kubectl(
        "create", "cronjob", "nightly", "--image=busybox:1", "--schedule=0 3 * * *", "--", "date"
    )
    header, row = (await kubectl("get", "cronjobs")).splitlines()
    assert header.split() == [
        "NAME", "SCHEDULE", "TIMEZONE", "SUSPEND", "ACTIVE", "LAST", "SCHEDULE", "AGE",
    ]  # fmt: skip
    assert row.split()[:9] == ["nightly", "0", "3", "*", "*", "*", "<none>", "False", "0"]
    described = await kubectl("describe", "cronjob", "nightly")
    assert "0 3 * * *" in described
    assert "Concurrency Policy:" in described
    created = await kubectl("create", "job", "tonight", "--from=cronjob/nightly")
    assert created == "job.batch/tonight created\n"
    job = yaml.safe_load(await kubectl("get", "job", "tonight", "-o", "yaml"))
    assert job["metadata"]["annotations"] == {"cronjob.kubernetes.io/instantiate": "manual"}
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("CronJob", "nightly", True)
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["date"]
    deleted = await kubectl("delete", "cronjob", "nightly")
    assert deleted.startswith('cronjob.batch "nightly" deleted')
    await kubectl("wait", "--for=delete", "job/tonight", "--timeout=60s")


async def test_kubectl_reports_errors_and_deletes_the_pods_of_a_job(kubectl: Kubectl) -> None:
    invalid = await kubectl.run("create", "cronjob", "c", "--image=i", "--schedule=61 * * * *")
    assert invalid.err == (
        'error: failed to create cronjob: CronJob.batch "c" is invalid: spec.schedule: Invalid '
        'value: "61 * * * *": end of range (61) above maximum (59): 61\n'
    )
    await kubectl("create", "job", "short", "--image=busybox:1")
    patch = '{"spec": {"completions": 2}}'
    changed = await kubectl.run("patch", "job", "short", "--type=merge", "-p", patch)
    assert changed.err == (
        'The Job "short" is invalid: spec.completions: Invalid value: 2: field is immutable\n'
    )
    deleted = await kubectl.run("delete", "job", "short")
    assert (deleted.code, deleted.err) == (0, ""), "kubectl asks for the deletion of the pods"
