"""Jobs and CronJobs as users run them: by kubectl, on `batholith up`, with real processes."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.embedded_cluster import embedded_cluster, run
from support.kubectl import needs_kubectl

pytestmark = [pytest.mark.process, pytest.mark.timeout(500)]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WAIT = "--timeout=200s"


@dataclass(frozen=True, slots=True)
class User:
    """A user of kubectl."""

    kubeconfig: Path
    directory: Path

    async def kubectl(self, *arguments: str) -> str:
        """Run a command that must succeed; return what it printed."""
        result = await run("kubectl", f"--kubeconfig={self.kubeconfig}", *arguments)
        assert result.code == 0, f"kubectl {' '.join(arguments)}: {result.err}{result.out}"
        return result.out

    async def apply(self, text: str) -> None:
        """Apply a manifest."""
        path = self.directory / f"{abs(hash(text))}.yaml"
        path.write_text(text)
        assert "Warning" not in await self.kubectl("apply", "-f", str(path))

    async def wait(self, *what: str) -> None:
        """Wait as ``kubectl wait`` does."""
        await self.kubectl("wait", WAIT, *what)

    async def get(self, path: str, *what: str) -> str:
        """Return one field of what ``kubectl get`` finds."""
        return await self.kubectl("get", *what, f"-o=jsonpath={path}")


async def test_kubectl_runs_jobs_and_cronjobs(tmp_path: Path) -> None:
    """On one cluster at once, in order to take little time."""
    needs_kubectl()
    async with embedded_cluster(tmp_path / "data") as cluster:
        user = User(cluster.data_dir.kubeconfig, tmp_path)
        scenarios: list[Awaitable[None]] = [
            create_job(user),
            indexed_job(user),
            gang(user),
            cronjob(user),
            volcano_cronjob(user),
            suspended_job(user),
            failing_job(user),
        ]
        await asyncio.gather(*scenarios)


async def create_job(user: User) -> None:
    echo = ("--image=busybox", "--", "echo", "hello from a job")
    await user.kubectl("create", "job", "hello", *echo)
    await user.wait("--for=condition=complete", "job/hello")
    assert await user.kubectl("logs", "job/hello") == "hello from a job\n"


async def indexed_job(user: User) -> None:
    await user.apply((EXAMPLES / "batch-job.yaml").read_text())
    await user.wait("--for=condition=complete", "job/squares")
    assert await user.get("{.status.completedIndexes}", "job/squares") == "0-5"
    lines = await user.kubectl("logs", "-l=job-name=squares", "--tail=-1")
    assert sorted(lines.splitlines()) == [f"{i} squared is {i * i}" for i in range(6)]


async def gang(user: User) -> None:
    """With more completions than the example: the later pods start one by one."""
    example = (EXAMPLES / "batch-job-gang.yaml").read_text()
    await user.apply(example.replace("completions: 3", "completions: 5"))
    await user.wait("--for=condition=complete", "job/together")
    uid = await user.get("{.metadata.uid}", "job/together")
    members = ("pod", "-l=job-name=together")
    annotation = r"{.items[*].metadata.annotations.scheduling\.k8s\.io/group-name}"
    assert await user.get(annotation, *members) == " ".join([f"podgroup-{uid}"] * 5)
    group = ("podgroup", f"podgroup-{uid}")
    assert await user.get("{.spec.minMember}", *group) == "3"


async def cronjob(user: User) -> None:
    """The schedule differs from the example's, which fires every five minutes."""
    example = (EXAMPLES / "cronjob.yaml").read_text()
    await user.apply(example.replace('"*/5 * * * *"', '"@every 2s"'))
    await user.wait("--for=jsonpath={.status.lastSuccessfulTime}", "cronjob/report")
    owner = await user.get("{.items[*].metadata.ownerReferences[*].name}", "job")
    assert owner.split() == ["report"]
    await user.kubectl("create", "job", "now", "--from=cronjob/report")
    await user.wait("--for=condition=complete", "job/now")


async def volcano_cronjob(user: User) -> None:
    """A CronJob of Volcano: its short names, and a job that completes."""
    example = (EXAMPLES / "volcano-cronjob.yaml").read_text()
    await user.apply(example.replace('"*/5 * * * *"', '"@every 2s"'))
    await user.wait("--for=jsonpath={.status.lastSuccessfulTime}", "cronvj/nightly")
    assert await user.get("{.items[*].metadata.name}", "cronvcjob") == "nightly"
    assert await user.get("{.items[0].metadata.labels.app}", "vcjob") == "nightly"
    suspended = '{"spec": {"suspend": true}}'
    await user.kubectl("patch", "cronvj/nightly", "--type=merge", f"-p={suspended}")


SUSPENDED = """
apiVersion: v1
kind: ConfigMap
metadata: {name: duration}
data: {seconds: "3600"}
---
apiVersion: batch/v1
kind: Job
metadata: {name: paused}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 0
      containers:
        - name: main
          image: busybox
          command: [sh, -c, 'exec sleep "$SECONDS_TO_RUN"']
          env:
            - name: SECONDS_TO_RUN
              valueFrom: {configMapKeyRef: {name: duration, key: seconds}}
"""


async def suspended_job(user: User) -> None:
    await user.apply(SUSPENDED)
    await user.wait("--for=condition=suspended", "job/paused")
    assert await user.get("{.items}", "pod", "-l=job-name=paused") == "[]"
    await user.kubectl("patch", "job/paused", '-p={"spec":{"suspend":false}}')
    await user.wait("--for=jsonpath={.status.ready}=1", "job/paused")
    await user.kubectl("patch", "job/paused", '-p={"spec":{"suspend":true}}')
    await user.wait("--for=condition=suspended", "job/paused")
    await user.wait("--for=delete", "pod", "-l=job-name=paused")
    await user.kubectl("patch", "configmap/duration", '-p={"data":{"seconds":"0"}}')
    await user.kubectl("patch", "job/paused", '-p={"spec":{"suspend":false}}')
    await user.wait("--for=condition=complete", "job/paused")
    assert await user.get("{.status.succeeded}{.status.failed}", "job/paused") == "1"


FAILING = """
apiVersion: batch/v1
kind: Job
metadata: {name: hopeless}
spec:
  backoffLimit: 6
  podFailurePolicy:
    rules:
      - action: FailJob
        onExitCodes: {operator: In, values: [42]}
  template:
    spec:
      restartPolicy: Never
      containers:
        - {name: main, image: busybox, command: [sh, -c, exit 42]}
"""


async def failing_job(user: User) -> None:
    await user.apply(FAILING)
    await user.wait("--for=condition=failed", "job/hopeless")
    reason = '{.status.conditions[?(@.type=="Failed")].reason}'
    assert await user.get(reason, "job/hopeless") == "PodFailurePolicy"
    assert await user.get("{.status.failed}", "job/hopeless") == "1"
