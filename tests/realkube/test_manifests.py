"""The manifests on a real API server: accepted, unchanged when applied again, removed when
deleted."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.kubectl import Kubectl, needs_kubectl
from support.manifests import CHART, MANIFESTS, NAMESPACE, OVERLAYS, helm, kustomized, of_kind
from support.polling import DEFAULT_TIMEOUT, wait_until_equal, wait_until_true
from support.realkube import (
    WORKLOADS,
    RealKube,
    RealKubeOptions,
    RealServer,
    real_server,
    require_realkube,
    server_view,
)

from batholith.model.names import COMMANDS, JOBS, PODS, QUEUES, Resource

pytestmark = pytest.mark.timeout(900)  # dozens of objects by kubectl


def monitoring_definition(kind: str) -> dict[str, Any]:
    """Return a placeholder for a definition of the Prometheus operator."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


MONITORING = [monitoring_definition(kind) for kind in ("ServiceMonitor", "PrometheusRule")]

ACTIVE_KINDS = RealKubeOptions(
    controllers=(
        *WORKLOADS,
        "clusterrole-aggregation",
        "persistentvolumeclaim-protection-controller",
    )
)


@dataclass(frozen=True, slots=True)
class InstallSite:
    """A fresh server and a kubectl that reaches it."""

    server: RealServer
    kubectl: Kubectl

    async def versions(self, directory: Path) -> dict[str, str]:
        """The resourceVersion of every object of *directory*, once definitions are served."""
        await self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
        result = json.loads(await self.kubectl("get", "-k", str(directory), "-o=json"))
        return {
            f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
            for each in result["items"]
        }


@pytest.fixture(scope="module")
def passive_kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKube]:
    """A server without controllers, which each test leaves behind as it likes."""
    needs_kubectl()
    require_realkube()
    options = RealKubeOptions(crds=MONITORING)
    with RealKube(tmp_path_factory.mktemp("kube"), options) as kube:
        kube.snapshot()
        yield kube


@pytest.fixture
async def site(passive_kube: RealKube, tmp_path: Path) -> AsyncIterator[InstallSite]:
    """A server without controllers; nothing is installed."""
    passive_kube.restore()
    async with server_view(passive_kube) as server:
        yield InstallSite(server, Kubectl(server, tmp_path))


@pytest.fixture
async def active_site(tmp_path: Path) -> AsyncIterator[InstallSite]:
    """A new server with the controllers that a deletion needs."""
    needs_kubectl()
    require_realkube()
    async with real_server(tmp_path, ACTIVE_KINDS, crds=MONITORING) as server:
        yield InstallSite(server, Kubectl(server, tmp_path))


async def test_all_is_taken_without_a_warning_and_a_second_time_changes_nothing(
    site: InstallSite,
) -> None:
    first = await site.kubectl.run("apply", "-k", str(MANIFESTS))
    assert (first.code, first.err) == (0, "")
    assert {line.rsplit(" ", 1)[1] for line in first.out.splitlines()} == {"created"}
    before = await site.versions(MANIFESTS)
    assert len(before) == len(kustomized(MANIFESTS))
    again = await site.kubectl.run("apply", "-k", str(MANIFESTS))
    assert (again.code, again.err) == (0, "")
    assert await site.versions(MANIFESTS) == before
    assert await site.kubectl("diff", "-k", str(MANIFESTS)) == ""


async def test_the_server_itself_can_apply_it_over_what_others_own(site: InstallSite) -> None:
    mine = ("apply", "--server-side", "--force-conflicts", "-k", str(MANIFESTS))
    await site.kubectl("create", "-f", str(MANIFESTS / "crds"))
    for _ in range(2):
        result = await site.kubectl.run(*mine)
        assert (result.code, result.err) == (0, "")
    assert len(await site.versions(MANIFESTS)) == len(kustomized(MANIFESTS))


@pytest.mark.soak
async def test_each_overlay_is_taken_over_the_one_before(site: InstallSite) -> None:
    for overlay in OVERLAYS:
        directory = MANIFESTS / "overlays" / overlay
        result = await site.kubectl.run("apply", "-k", str(directory))
        assert (result.code, result.err) == (0, ""), overlay
        before = await site.versions(directory)
        assert len(before) == len(kustomized(directory))
        await site.kubectl("apply", "-k", str(directory))
        assert await site.versions(directory) == before


async def test_pods_come_up_to_the_strictest_standard_and_all_goes_with_its_jobs(
    active_site: InstallSite,
) -> None:
    await active_site.kubectl("apply", "-k", str(MANIFESTS))
    expected = sum(
        each["spec"]["replicas"] for each in of_kind(kustomized(MANIFESTS), "Deployment").values()
    )
    await _wait_pods(active_site.server, expected)
    await _check_user_roles(active_site)
    # No webhook responds here; existing objects must not block the deletion.
    hooks = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
    await active_site.kubectl("delete", hooks, "-l", "app.kubernetes.io/name=batholith")
    for path, body in ((QUEUES.path(), _queue()), (JOBS.path("default"), _job())):
        await wait_until_true(partial(_accepts, active_site.server, path, body))
    await active_site.server.create(QUEUES.path(), _queue())
    await active_site.server.create(JOBS.path("default"), _job())
    await active_site.kubectl("apply", "-k", str(MANIFESTS))
    await _initialize_storage(active_site.server)
    # The deletion of the namespace may precede that of its objects.
    options = ("--ignore-not-found", "--timeout=190s")
    result = await active_site.kubectl.run("delete", "-k", str(MANIFESTS), *options)
    if result.code:
        terminating = await active_site.kubectl("get", "crd,namespace", "-o", "json")
        raise AssertionError(f"{result.err}\n{_conditions(terminating)}")
    left = await active_site.kubectl("get", f"crd,clusterrole,clusterrolebinding,namespace,{hooks}")
    assert "volcano" not in left
    assert "batholith" not in left
    assert "vcjob" not in left


async def test_quirk_q7_only_who_may_update_a_queue_may_open_and_close_it(
    active_site: InstallSite,
) -> None:
    await active_site.kubectl("apply", "-k", str(MANIFESTS))
    for who in ("ada", "eve"):
        await active_site.kubectl(
            "create", "rolebinding", who, "--clusterrole=edit", f"--user={who}"
        )
    allowed = ("--clusterrole=batholith-queue-admin", "--user=eve")
    await active_site.kubectl("create", "clusterrolebinding", "eve", *allowed)

    async def ordered(who: str, resource: Resource, *, really: bool = False) -> str:
        """Response to *who* on creating a Command for the queue or job q."""
        result = await active_site.kubectl.run(
            "create", "-f=-", f"--as={who}", *(() if really else ("--dry-run=server",)),
            stdin=json.dumps(_command(resource)),
        )  # fmt: skip
        return result.err

    async def settled() -> bool:
        """The role is aggregated, the policy followed, and what eve may do is known."""
        refused = "a Command to queue q needs the right to update it"
        return (
            await ordered("ada", JOBS) == ""
            and refused in await ordered("ada", QUEUES)
            and await ordered("eve", QUEUES) == ""
        )

    await wait_until_true(settled)
    assert await ordered("eve", QUEUES, really=True) == ""


async def test_the_server_takes_what_the_chart_gives(site: InstallSite) -> None:
    reported = ("template", "batholith", str(CHART), f"--namespace={NAMESPACE}", "--include-crds")
    await site.kubectl("create", "namespace", NAMESPACE)
    await site.kubectl("apply", "-f", str(MANIFESTS / "crds"))
    for values in ((), ("--set=monitoring.enabled=true", "--set=admission.pods=true")):
        text = helm(*reported, *values)
        result = await site.kubectl.run("apply", "--dry-run=server", "-f", "-", stdin=text)
        assert (result.code, result.err) == (0, "")


async def test_helm_installs_upgrades_and_uninstalls(site: InstallSite) -> None:
    access = f"--kubeconfig={site.server.kubeconfig}"
    release = ("batholith", str(CHART), f"--namespace={NAMESPACE}", access)
    helm("install", *release, "--create-namespace")
    assert "deployed" in helm("list", f"--namespace={NAMESPACE}", access)
    helm("upgrade", *release, "--set=scheduler.replicas=3")
    path = Resource("apps", "v1", "deployments", "Deployment").path(NAMESPACE)
    assert (await site.server.get(f"{path}/batholith-scheduler"))["spec"]["replicas"] == 3
    helm("uninstall", "batholith", f"--namespace={NAMESPACE}", access)
    left = await site.kubectl("get", "deployments,clusterroles", "--all-namespaces", "-o=name")
    assert "batholith" not in left
    # Definitions stay, and with them all jobs.
    assert "jobs.batch.volcano.sh" in await site.kubectl("get", "crd", "-o=name")


async def _check_user_roles(site: InstallSite) -> None:
    for who, role in (("ada", "edit"), ("bob", "view")):
        await site.kubectl("create", "rolebinding", who, f"--clusterrole={role}", f"--user={who}")
    allowed = ("--clusterrole=batholith-queue-admin", "--user=eve")
    await site.kubectl("create", "clusterrolebinding", "eve", *allowed)
    bring = ("--clusterrole=batholith-podgroup-editor", "--user=fay")
    await site.kubectl("create", "rolebinding", "fay", *bring)
    jobs, queues, commands = "jobs.batch.volcano.sh", "queues.scheduling.volcano.sh", "commands"
    groups = "podgroups.scheduling.volcano.sh"
    for who, verb, what, response in (
        ("ada", "create", jobs, "yes"),
        ("ada", "create", commands, "yes"),
        ("ada", "delete", queues, "no"),
        ("ada", "watch", groups, "yes"),
        ("ada", "patch", groups, "no"),
        ("ada", "create", groups, "no"),
        ("fay", "patch", groups, "yes"),
        ("bob", "watch", jobs, "yes"),
        ("bob", "create", jobs, "no"),
        ("bob", "create", commands, "no"),
        ("eve", "delete", queues, "yes"),
        ("eve", "create", jobs, "no"),
    ):

        async def as_expected(who: str = who, verb: str = verb, what: str = what) -> str:
            """By a server that observes roles and bindings with a delay."""
            result = await site.kubectl.run("auth", "can-i", verb, what, f"--as={who}")
            return result.out.split(maxsplit=1)[0]

        await wait_until_equal(as_expected, response)
    await site.kubectl("delete", "clusterrolebinding", "eve")


async def _accepts(server: RealServer, path: str, body: dict[str, object]) -> bool:
    """Whether the server has dropped the webhooks that do not respond."""
    return (await server.request("POST", f"{path}?dryRun=All", body)).status == 201


async def _initialize_storage(server: RealServer) -> None:
    """List all custom resources.

    kube-apiserver initializes the storage of a definition on the first request, and rejects all
    lists before it is ready, also its own before it deletes a definition. If its next attempt has a
    conflict with the status that it has just written, the one after that follows at the resync of
    five minutes.
    """
    for definition in of_kind(kustomized(MANIFESTS), "CustomResourceDefinition").values():
        spec = definition["spec"]
        version = next(each["name"] for each in spec["versions"] if each["storage"])
        path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        await wait_until_true(partial(_is_listed, server, path))


async def _is_listed(server: RealServer, path: str) -> bool:
    return (await server.request("GET", path)).status == 200


def _conditions(listed: str) -> str:
    """Return the conditions of the terminating objects in kubectl's JSON."""
    return "\n".join(
        f"{each['kind']} {each['metadata']['name']}: {each['status'].get('conditions')}"
        for each in json.loads(listed)["items"]
        if "deletionTimestamp" in each["metadata"]
    )


async def _wait_pods(server: RealServer, wanted: int) -> None:
    created: set[str] = set()
    async with (
        asyncio.timeout(2 * DEFAULT_TIMEOUT),
        server.watch(f"{PODS.path(NAMESPACE)}?watch=1") as lines,
    ):
        while len(created) < wanted:
            created.add((await lines.next())["object"]["metadata"]["name"])


def _queue() -> dict[str, object]:
    return {
        "apiVersion": QUEUES.api_version,
        "kind": QUEUES.kind,
        "metadata": {"name": "q"},
        "spec": {"weight": 1},
    }


def _command(to: Resource) -> dict[str, object]:
    target = {"apiVersion": to.api_version, "kind": to.kind, "name": "q", "uid": "any"}
    return {
        "apiVersion": COMMANDS.api_version,
        "kind": COMMANDS.kind,
        "metadata": {"generateName": "c-"},
        "action": "CloseQueue",
        "target": target,
    }


def _job() -> dict[str, object]:
    template = {"spec": {"containers": [{"name": "c", "image": "busybox"}]}}
    task = {"name": "t", "replicas": 1, "template": template}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": "left"},
        "spec": {"minAvailable": 1, "queue": "q", "tasks": [task]},
    }
