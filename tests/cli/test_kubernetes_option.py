"""``--kubernetes``: the commands with the Kubernetes API alone."""

import asyncio
import base64
import contextlib
import io
import json
import re
import shlex
import tarfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from support.embedded_apiserver import embedded_server
from support.polling import wait_until_true
from support.shell import Shell
from typer.testing import CliRunner, Result

from batholith.cli.jobs import kubernetes as in_process
from batholith.cli.jobs.kubernetes import BUFFERED, InProcessTransport
from batholith.cli.main import app
from batholith.client import Job, JobHandle
from batholith.httpserver.asgi import AsgiApp, Receive, Scope, Send
from batholith.kube.client.config import Credentials
from batholith.local.supervisor import kubeconfig
from batholith.local.supervisor.kubeconfig import ClusterAccess
from batholith.model import crds
from batholith.model.names import (
    CONFIGMAPS,
    JOBS,
    PERSISTENTVOLUMECLAIMS,
    PODGROUPS,
    QUEUES,
    SUBMISSION,
    WHY,
    WORKDIR_CLAIM,
)

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


class KubernetesShell:
    """Runs commands with the kubeconfig of a cluster."""

    def __init__(self, shell: Shell) -> None:
        config = str(shell.rest.cluster.kubeconfig)
        self.options = ("--kubernetes", "--kubeconfig", config, "-n", shell.namespace)

    async def run(self, command: str, *arguments: str) -> Result:
        given = [command, *self.options, *arguments]
        return await asyncio.to_thread(CliRunner().invoke, app, given)

    async def out(self, command: str, *arguments: str) -> str:
        result = await self.run(command, *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout


@pytest.fixture
def kubernetes(shell: Shell) -> KubernetesShell:
    return KubernetesShell(shell)


async def test_output_is_that_of_the_rest_api(shell: Shell, kubernetes: KubernetesShell) -> None:
    await shell.running("train")

    async def are_equal(command: tuple[str, ...]) -> bool:
        return await kubernetes.out(*command) == await shell.out(*command)

    for command in (
        ("jobs", "-o", "name"),
        ("jobs", "--phase", "Running", "-l", "team=vision", "-o", "name"),
        ("job", "train", "-o", "json"),
        ("why", "train", "-o", "json"),
        ("queue", "default", "-o", "json"),
        ("queues", "-o", "name"),
    ):
        # Controllers may write the job or the queue between the two.
        await wait_until_true(partial(are_equal, command))
    assert shell.namespace in await kubernetes.out("jobs", "-A")


async def test_the_commands_of_the_page_run(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    commands = re.findall(r"^batholith (.*--kubernetes.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    monkeypatch.setenv("KUBECONFIG", str(shell.rest.cluster.kubeconfig))
    monkeypatch.chdir(tmp_path)
    for command in commands:
        result = await asyncio.to_thread(CliRunner().invoke, app, shlex.split(command))
        assert result.exit_code == 0, result.output


async def test_a_job_is_submitted_and_commanded(shell: Shell, kubernetes: KubernetesShell) -> None:
    command = ("submit", "--no-workdir", "--image", "busybox", "--", "sleep", "600")
    name = (await kubernetes.out(*command)).strip()
    assert await kubernetes.out("wait", name, "--for", "Running") == f"{name}: Running\n"
    assert await kubernetes.out("suspend", name, "--wait", "60") == f"{name}: Aborted\n"
    assert f"{name}: " in await kubernetes.out("resume", name, "--wait", "60")
    assert await kubernetes.out("cancel", name, "--wait", "60") == f"{name}: Terminated\n"
    found = json.loads(await shell.out("job", name, "-o", "json"))
    assert found["user"] == "admin"
    assert found["phase"] == "Terminated"


async def test_the_working_directory_travels_and_is_owned_by_the_job(
    shell: Shell, kubernetes: KubernetesShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("print(42)")
    monkeypatch.chdir(work)
    submitted = await kubernetes.out("submit", "--image", "busybox", "--", "sleep", "600")
    name = submitted.strip().removeprefix("jobs/")
    found = await shell.rest.cluster.get(CONFIGMAPS, f"{name}-workdir-0", namespace=shell.namespace)
    (owner,) = found["metadata"]["ownerReferences"]
    job = json.loads(await shell.out("job", name, "-o", "json"))
    assert (owner["kind"], owner["uid"]) == ("Job", job["uid"])
    assert "batholith.io/submission" not in job["labels"]
    assert not job["suspend"]
    assert await kubernetes.out("wait", name, "--for", "Running") == f"jobs/{name}: Running\n"
    packed = base64.b64decode(found["binaryData"]["chunk"])
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        assert "train.py" in archive.getnames()
    plain = await kubernetes.out(
        "submit", "--no-workdir", "--image", "busybox", "--dry-run", "--", "true"
    )
    assert "initContainers" not in plain
    refused = await kubernetes.run("submit", "--workdir-rw", "--image", "x", "--", "true")
    assert (refused.exit_code, "the job has a copy" in refused.stderr) == (2, True)


async def test_a_response_that_is_not_read_is_not_produced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    produced = 0

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal produced
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"line\n", "more_body": True})
            produced += 1

    @contextlib.asynccontextmanager
    async def application(*_: object, **__: object) -> AsyncIterator[AsgiApp]:
        yield endless

    credentials = Credentials(server="http://127.0.0.1:1")
    monkeypatch.setattr(in_process, "load_credentials", lambda *_, **__: credentials)
    monkeypatch.setattr(in_process, "application", application)
    transport = InProcessTransport(None, None, "")
    try:
        request = httpx.Request("GET", "http://app/logs")
        response = await asyncio.to_thread(transport.handle_request, request)
        body = iter(response.stream)  # type: ignore[arg-type]
        for count in (BUFFERED, BUFFERED + 1, BUFFERED + 2):
            await wait_until_true(lambda count=count: _equal(produced, count))  # type: ignore[misc]
            await asyncio.sleep(0)
            assert produced == count
            assert await asyncio.to_thread(next, body) == b"line\n"
        response.close()
    finally:
        transport.close()


async def _equal(first: int, second: int) -> bool:
    return first == second


class KilledError(BaseException):
    """The process ends here."""


async def test_a_submission_that_is_killed_leaves_no_pods_that_wait_for_configmaps(
    shell: Shell,
    kubernetes: KubernetesShell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise KilledError

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with monkeypatch.context() as patched:
        patched.setattr(JobHandle, "complete_submission", kill)
        options = kubernetes.options
        given = ["submit", *options, "--image", "busybox", "--", "sleep", "600"]
        with pytest.raises(KilledError):
            await asyncio.to_thread(CliRunner().invoke, app, given, catch_exceptions=False)
    (left,) = json.loads(await kubernetes.out("jobs", "-o", "json"))
    name = left["name"]
    await shell.rest.cluster.wait_for_phase(JOBS, name, "Aborted", namespace=shell.namespace)
    assert shell.rest.cluster.pods_of(name, namespace=shell.namespace) == []
    explained = json.loads(await kubernetes.out("why", name, "-o", "json"))
    assert "submission is not complete" in explained["cause"]
    assert "cancel --delete" in explained["next_step"]
    assert await kubernetes.out("cancel", "--delete", name)


async def test_a_job_with_a_packed_directory_is_held_until_it_is_released(
    shell: Shell, kubernetes: KubernetesShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    given = ["submit", *kubernetes.options, "--hold", "--image", "busybox", "--", "true"]
    submitted = await asyncio.to_thread(CliRunner().invoke, app, given)
    name = submitted.stdout.strip().removeprefix("jobs/")
    await shell.rest.cluster.wait_for_phase(JOBS, name, "Aborted", namespace=shell.namespace)
    explained = json.loads(await kubernetes.out("why", name, "-o", "json"))
    assert explained["next_step"] == "use `batholith release`"
    manifest = await asyncio.to_thread(shell.client.jobs.manifest, name)
    assert (manifest["spec"]["suspend"], SUBMISSION in manifest["metadata"]["labels"]) == (
        True, False
    )  # fmt: skip
    assert await kubernetes.out("cancel", "--delete", name)


async def test_a_claim_that_cannot_be_used_is_named_and_nothing_is_created(
    shell: Shell, kubernetes: KubernetesShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    cluster = shell.rest.cluster
    block = {"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}
    block["resources"] = {"requests": {"storage": "1Gi"}}  # type: ignore[assignment]
    for name, spec in (("raw", block), ("files", {**block, "volumeMode": "Filesystem"})):
        claim = {"metadata": {"name": name}, "spec": spec}
        await cluster.create(PERSISTENTVOLUMECLAIMS, claim, namespace=shell.namespace)
    metadata = {"name": shell.namespace, "annotations": {WORKDIR_CLAIM: "absent"}}
    await cluster.create(QUEUES, {"metadata": metadata, "spec": {}})
    for options, code, text in (
        (("--workdir-claim", "none"), 2, '--workdir-claim: .*claims "none" not found'),
        (("--workdir-claim", "../x"), 2, "--workdir-claim: '../x': a lowercase RFC 1123"),
        (("--workdir-claim", "raw"), 2, "raw has the volumeMode Block"),
        (("--workdir-claim", "raw", "--no-workdir"), 2, "--no-workdir excludes it"),
        (
            ("--partition", shell.namespace),
            2,
            f'annotation {WORKDIR_CLAIM} of queue {shell.namespace}: .*claims "absent" not found',
        ),
        # The simulated nodes of this cluster run no commands.
        (("--workdir-claim", "files"), 1, r"cannot be stored: .*; jobs/true-\d+ is deleted again"),
    ):
        result = await kubernetes.run("submit", *options, "--image", "busybox", "--", "true")
        assert result.exit_code == code, result.output
        assert re.search(text, result.stderr), result.stderr
    assert await kubernetes.out("jobs", "-o", "name") == ""
    over_rest = await shell.run_program(
        "submit", "--workdir-claim", "files", "--image", "busybox", "--", "true"
    )
    assert (over_rest.exit_code, over_rest.stderr) == (
        2,
        "batholith: --workdir-claim: it is for --kubernetes\n",
    )


async def test_what_only_the_rest_api_stores_is_refused_by_name(
    kubernetes: KubernetesShell,
) -> None:
    for command in ("history", "usage", "simulate", "reservations"):
        result = await kubernetes.run(command)
        assert (result.exit_code, f"`{command}` needs the REST API" in result.stderr) == (2, True)
    tested = await kubernetes.run("submit", "--test-only", "--image", "busybox", "--", "true")
    assert (tested.exit_code, "--test-only needs the REST API" in tested.stderr) == (2, True)
    result = await kubernetes.run("jobs", "--url", "http://127.0.0.1:1")
    assert (result.exit_code, "leave out --url" in result.stderr) == (2, True)


async def test_errors_are_those_of_the_rest_api(
    shell: Shell, kubernetes: KubernetesShell, tmp_path: Path, unused_tcp_port: int
) -> None:
    missing = await kubernetes.run("why", "absent")
    assert (missing.exit_code, "no job 'absent'" in missing.stderr) == (4, True)
    job = Job("big").task("main", image="busybox", cpu=100000)
    await shell.submit(job)
    refused = await kubernetes.run("suspend", "absent")
    assert refused.exit_code == 4
    config = tmp_path / "kubeconfig"
    text = shell.rest.cluster.kubeconfig.read_text()
    url = next(line for line in text.splitlines() if "server:" in line).split("server:")[1].strip()
    config.write_text(text.replace(url, f"https://127.0.0.1:{unused_tcp_port}"))
    config.chmod(0o600)
    given = ["jobs", "--kubernetes", "--kubeconfig", str(config)]
    result = await asyncio.to_thread(CliRunner().invoke, app, given)
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert "cannot reach the Kubernetes API" in result.stderr


async def test_the_rights_of_the_user_in_one_namespace_suffice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may neither list all namespaces nor queues."""
    async with embedded_server(tmp_path / "cluster", crds=crds.load()) as server:
        account = {"metadata": {"name": "ann"}}
        await server.create("/api/v1/namespaces/default/serviceaccounts", account)
        rules = [
            {
                "apiGroups": ["batch.volcano.sh", "scheduling.volcano.sh", "bus.volcano.sh"],
                "resources": ["jobs", "podgroups", "commands"],
                "verbs": ["get", "list", "watch", "create", "delete"],
            },
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        ]
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        await server.create(f"{rbac}/roles", {"metadata": {"name": "r"}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": "ann", "namespace": "default"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
        binding = {"metadata": {"name": "b"}, "roleRef": role, "subjects": [subject]}
        await server.create(f"{rbac}/rolebindings", binding)
        created = await server.create(
            "/api/v1/namespaces/default/serviceaccounts/ann/token", {"spec": {}}
        )
        config = tmp_path / "kubeconfig"
        token = created["status"]["token"]
        access = ClusterAccess(server=server.url, ca=server.ca, user="ann", token=token)
        kubeconfig.write(config, access)

        async def call(*arguments: str) -> Result:
            options = ("--kubernetes", "--kubeconfig", str(config))
            given = [arguments[0], *options, *arguments[1:]]
            return await asyncio.to_thread(CliRunner().invoke, app, given)

        submitted = await call("submit", "--no-workdir", "--image", "busybox", "--", "true")
        assert submitted.exit_code == 0, submitted.output
        listed = await call("jobs", "--kind", "jobs", "-o", "json")
        (found,) = json.loads(listed.stdout)
        assert f"jobs/{found['name']}" == submitted.stdout.strip()
        assert found["user"] == "system:serviceaccount:default:ann"
        explained = await call("why", submitted.stdout.strip())
        assert explained.exit_code == 0, explained.output
        assert "queue 'default'" not in explained.stdout  # it is not known
        owner = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "controller": True}
        meta = {
            "name": f"{found['name']}-{found['uid']}",
            "ownerReferences": [{**owner, "name": found["name"], "uid": found["uid"]}],
            "annotations": {WHY: '{"stage": "nodes", "reason": "NotEnoughResources"}'},
        }
        podgroups = PODGROUPS.path("default")
        kind = {"apiVersion": PODGROUPS.api_version, "kind": PODGROUPS.kind}
        await server.create(podgroups, {**kind, "metadata": meta, "spec": {"minMember": 1}})
        explained = await call("why", submitted.stdout.strip())
        assert "What it competes with is not known: cannot read Secret" in explained.stdout
        assert "without --kubernetes" in explained.stdout
        monkeypatch.chdir(config.parent)
        (tmp_path / ".batholithignore").write_text("cluster/")
        refused = await call("submit", "--image", "busybox", "--", "true")
        assert refused.exit_code == 1, refused.output
        assert "the working directory cannot be stored" in refused.stderr
        assert len(json.loads((await call("jobs", "--kind", "jobs", "-o", "json")).stdout)) == 1
        everywhere = await call("jobs", "-A", "--kind", "jobs")
        assert (everywhere.exit_code, "cannot list jobs" in everywhere.stderr) == (5, True)
        queues = await call("queues")
        assert (queues.exit_code, "cannot list queues" in queues.stderr) == (5, True)
