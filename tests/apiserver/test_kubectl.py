"""An unmodified kubectl and its output."""

import asyncio
import json
import re

import pytest
from support.kubectl import Kubectl
from support.polling import DEFAULT_TIMEOUT

pytestmark = pytest.mark.process

POD = """
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: web}}
spec:
  containers: [{name: main, image: "busybox:1", command: [sleep, "1"]}]
"""
FOO = """
apiVersion: ex.io/v1
kind: Foo
metadata: {name: f}
spec: {mode: a}
"""


async def test_apply_is_idempotent(kubectl: Kubectl) -> None:
    assert await kubectl("apply", "-f", "-", stdin=POD) == "pod/p created\n"
    assert await kubectl("apply", "-f", "-", stdin=POD) == "pod/p unchanged\n"
    changed = POD.replace("app: web", "app: db")
    assert await kubectl("apply", "-f", "-", stdin=changed) == "pod/p configured\n"
    assert await kubectl("get", "pod", "p", "-o", "jsonpath={.metadata.labels.app}") == "db"
    assert await kubectl("get", "pods", "-l", "app=db", "-o", "name") == "pod/p\n"


async def test_get_output(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=POD)
    header, row = (await kubectl("get", "pods")).splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["p", "0/1", "Pending", "0"]
    wide = await kubectl("get", "pods", "-o", "wide")
    assert "NODE" in wide and "<none>" in wide
    shown = await kubectl("get", "pod", "p", "-o", "yaml")
    assert shown.startswith("apiVersion: v1\nkind: Pod\n")
    spaces = await kubectl("get", "ns", "default")
    assert spaces.splitlines()[1].split()[:2] == ["default", "Active"]
    missing = await kubectl.run("get", "pod", "none")
    assert (missing.code, missing.err) == (
        1,
        'Error from server (NotFound): pods "none" not found\n',
    )


async def test_describe_output(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=POD)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "p.1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "type": "Normal",
        "reason": "Scheduled",
        "message": "it has a node now",
        "lastTimestamp": "2026-01-02T03:04:05Z",
    }
    uid = await kubectl("get", "pod", "p", "-o", "jsonpath={.metadata.uid}")
    event["involvedObject"]["uid"] = uid  # type: ignore[index]
    await kubectl("create", "-f", "-", stdin=json.dumps(event))
    described = await kubectl("describe", "pod", "p")
    assert "Image:      busybox:1" in described
    assert "it has a node now" in described
    assert "it has a node now" in await kubectl("get", "events")
    assert "it has a node now" in await kubectl("events")


async def test_autoscale(kubectl: Kubectl) -> None:
    await kubectl("create", "deployment", "web", "--image=busybox:1")
    options = ("--cpu-percent=50", "--min=1", "--max=10")
    created = await kubectl("autoscale", "deployment", "web", *options)
    assert created == "horizontalpodautoscaler.autoscaling/web autoscaled\n"
    shown = await kubectl("get", "hpa", "web", "--no-headers")
    expected = ["web", "Deployment/web", "cpu:", "<unknown>/50%", "1", "10", "0"]
    assert shown.split()[:7] == expected


async def test_label_annotate_and_patch(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=POD)
    assert await kubectl("label", "pod", "p", "tier=x") == "pod/p labeled\n"
    assert await kubectl("annotate", "pod", "p", "note=y") == "pod/p annotated\n"
    patch = '{"metadata":{"labels":{"app":null}}}'
    assert await kubectl("patch", "pod", "p", "-p", patch) == "pod/p patched\n"
    metadata = json.loads(await kubectl("get", "pod", "p", "-o", "json"))["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"tier": "x"}, {"note": "y"})
    refused = await kubectl.run("label", "pod", "p", "tier=z")
    assert "already has a value" in refused.err


async def test_imperative_creates_send_protobuf(kubectl: Kubectl) -> None:
    assert await kubectl("create", "namespace", "n") == "namespace/n created\n"
    await kubectl("create", "configmap", "c", "--from-literal=a=b", "-n", "n")
    await kubectl("create", "secret", "generic", "s", "--from-literal=k=v", "-n", "n")
    data = await kubectl("get", "cm,secret", "-n", "n", "-o", "jsonpath={.items[*].data}")
    assert '{"a":"b"}' in data and '{"k":"dg=="}' in data
    assert await kubectl("delete", "namespace", "n") == 'namespace "n" deleted\n'
    missing = await kubectl.run("get", "namespace", "n")
    assert "NotFound" in missing.err


async def test_delete_and_wait(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=POD)
    waiting = asyncio.create_task(kubectl("wait", "--for=delete", "pod/p", "--timeout=100s"))
    result = await kubectl("delete", "pod", "p", "--wait")
    assert result.startswith('pod "p" deleted')  # newer versions append the namespace
    assert "condition met" in await waiting or await waiting == ""
    assert await kubectl("get", "pods") == ""


async def test_wait_for_a_condition(kubectl: Kubectl) -> None:
    result = await kubectl("wait", "--for=condition=Established", "crd/foos.ex.io")
    assert result == "customresourcedefinition.apiextensions.k8s.io/foos.ex.io condition met\n"


async def test_get_watches(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=POD.replace("name: p,", "name: before,"))
    process = await kubectl.start("get", "pods", "-w")

    async def line() -> list[str]:
        assert process.stdout is not None
        async with asyncio.timeout(DEFAULT_TIMEOUT):
            return (await process.stdout.readline()).decode().split()

    try:
        assert (await line())[:3] == ["NAME", "READY", "STATUS"]
        assert (await line())[:3] == ["before", "0/1", "Pending"]
        await kubectl("create", "-f", "-", stdin=POD)
        assert (await line())[:3] == ["p", "0/1", "Pending"]
        await kubectl("delete", "pod", "p", "--wait=false")
        assert (await line())[0] == "p"
    finally:
        process.kill()
        await process.communicate()


async def test_custom_objects(kubectl: Kubectl) -> None:
    assert await kubectl("apply", "-f", "-", stdin=FOO) == "foo.ex.io/f created\n"
    header, row = (await kubectl("get", "foos")).splitlines()
    assert (header.split(), row.split()[0]) == (["NAME", "AGE"], "f")
    bad = await kubectl.run("apply", "-f", "-", stdin=FOO.replace("mode: a", "mode: c"))
    assert 'The Foo "f" is invalid: spec.mode: Unsupported value: "c"' in bad.err
    result = await kubectl.run("apply", "-f", "-", stdin=FOO.replace("mode: a", "mood: a"))
    assert 'unknown field "spec.mood"' in result.err
    assert "mode" in await kubectl("explain", "foo.spec")


async def test_api_resources_version_and_whoami(kubectl: Kubectl) -> None:
    listed = await kubectl("api-resources", "--no-headers")
    names = {line.split()[0] for line in listed.splitlines()}
    assert {"pods", "foos", "leases", "events", "priorityclasses"} <= names
    assert "Server Version: v1.36" in await kubectl("version")
    assert await kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert "admin" in await kubectl("auth", "whoami")
    assert await kubectl("get", "--raw", "/readyz") == "ok"


async def test_no_command_requests_legacy_documents(kubectl: Kubectl) -> None:
    for arguments in (("apply", "-f", "-"), ("delete", "-f", "-"), ("get", "pods")):
        result = await kubectl.run(*arguments, "-v=6", stdin=POD)
        assert result.code == 0, result.err
        assert re.search(r"(GET |GET\" url=\"|POST\" url=\")https://", result.err)
        # It requests these only if the newer ones are incomplete.
        assert "/openapi/v2" not in result.err


async def test_explain_shows_the_fields(kubectl: Kubectl) -> None:
    shown = await kubectl("explain", "ipaddress.spec", "--recursive")
    assert shown.startswith(
        "GROUP:      networking.k8s.io\nKIND:       IPAddress\nVERSION:    v1\n"
    )
    assert re.search(r"parentRef\s<ParentReference> -required-\n\s+group\s<string>\n", shown), shown
