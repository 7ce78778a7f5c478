"""RBAC rules of the manifests are minimal: all that the components need, and nothing unused.

Every component runs as a process with the arguments of its Deployment and the token of its
ServiceAccount, in a scenario that uses all its permissions. The audit log then shows its requests.
"""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.component_roles import WHOLE, combined
from support.embedded_apiserver import MERGE
from support.fault_proxy import ErrorResponse, FaultKind, HttpProxy
from support.kubectl import Kubectl, needs_kubectl
from support.manifests import NAMESPACE, Json, Objects, dumped
from support.rbac import (
    ComponentProcesses,
    Permission,
    forbidden_requests,
    granted_permissions,
    redirected,
    service_account,
    used_permissions,
)
from support.realkube import (
    WORKLOADS,
    RealKubeOptions,
    RealServer,
    free_ports,
    real_server,
    require_realkube,
)
from support.training_rights import GRANTED_ONLY, TrainingRights

from batholith.batch_ctrl.core_types import OUR_CONTROLLER
from batholith.hypernode_ctrl.configuration import CONFIGMAP, KEY
from batholith.model import crds
from batholith.model.names import (
    COMMANDS,
    CONFIGMAPS,
    CRONJOBS,
    HYPERNODES,
    JOBFLOWS,
    JOBS,
    JOBTEMPLATES,
    LEASES,
    NAMESPACES,
    NATIVE_PODGROUPS,
    NETWORKPOLICIES,
    NODES,
    PERSISTENTVOLUMECLAIMS,
    PLACE_AT_CREATION,
    PODGROUPS,
    PODS,
    QUEUES,
    SECRETS,
    SERVICES,
    Resource,
)
from batholith.model.recorded import RECORDED

pytestmark = pytest.mark.timeout(900)  # a full scenario of all components, in a dozen processes

COMPONENTS = ("controllers", "scheduler", "admission", "api")
TEST_NAMESPACE = "default"
OPTIONS = RealKubeOptions(
    controllers=(*WORKLOADS, "daemonset"),
    audit=True,
    flags=(
        # The strictest of what a cluster may ask of those who own objects.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        # Servers before 1.34 give no list as the head of a watch: then both rights are used.
        "--feature-gates=WatchList=false",
    ),
)
SLOW_ELECTION = ("--leader-elect-lease-duration=120s", "--leader-elect-renew-deadline=80s")
"""No replica loses its Lease because the machine is busy; those that end in order release it."""

EVICTIONS = "pods/eviction"
"""Used if preemption is configured; ``test_preemption`` shows that it suffices."""

VOLUME_BINDING = (
    Permission("", "persistentvolumeclaims", "get"),
    Permission("", "persistentvolumeclaims", "patch"),
    Permission("", "persistentvolumes", "patch"),
)
"""Used by the scheduler if a claim waits for its first consumer; no storage class of the scenario
delays binding."""

DEVICE_BINDING = (
    Permission("resource.k8s.io", "resourceclaims", "create"),
    Permission("resource.k8s.io", "resourceclaims", "delete"),
    Permission("resource.k8s.io", "resourceclaims", "get"),
    Permission("resource.k8s.io", "resourceclaims", "patch"),
    Permission("resource.k8s.io", "resourceclaims/binding", "patch"),
    Permission("resource.k8s.io", "resourceclaims/status", "patch"),
)
"""Used by the scheduler if pods have claims of devices, which no pod of the scenario has; in the
embedded cluster of ``tests/cluster`` these rights suffice."""

LOOKUPS = frozenset(Permission(each.group, each.plural, "get") for each in (COMMANDS, JOBS))
"""Used by the REST API for Commands that were deleted unobserved; ``test_rest_rbac`` shows that."""

REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
BATCH_JOBS = Resource("batch", "v1", "jobs", "Job")

SERVER_SIDE_PERMISSIONS = "/finalizers"
"""End of the resources whose rights the API server itself looks up when an owned object is created.
No request shows them, so the test removes them and checks what is forbidden then."""


async def test_each_part_uses_all_of_its_rights_and_wants_no_others(tmp_path: Path) -> None:
    needs_kubectl()
    require_realkube()
    found = combined(tmp_path / "manifests", WHOLE)
    async with real_server(tmp_path, OPTIONS, crds=crds.load_training()) as server:
        async with _components(server, found, tmp_path) as life:
            await life.run_job()
            await life.run_failing_jobs()
            await life.run_flow()
            await life.run_hypernodes()
            await life.run_native_gang()
            await life.run_queues()
            await life.run_workloads()
            await life.run_simulation()
            await life.run_batch_job()
            await life.run_cronjob()
            training = TrainingRights(server=server, wait=_wait_until_true)
            await training.run()
            await life.run_failures()
            await life.run_failovers()
            assert forbidden_requests(server.kube.audit()) == []
            await life.run_without_lookup_rights()
            await training.run_without_lookup_rights()
            with contextlib.suppress(AssertionError):  # what was not used is shown below
                used = partial(_all_used, server, found, watches=False)
                await _wait_until_true(used, "all rights are used")
            await life.components.stop()
        # A watch is written down at its end; the proxy keeps it until its own.
        with contextlib.suppress(AssertionError):
            used = partial(_all_used, server, found, watches=True)
            await _wait_until_true(used, "all watches are written down")
        log = server.kube.audit()
    assert {component: _unused_permissions(found, log, component) for component in COMPONENTS} == {
        component: [] for component in COMPONENTS
    }


async def _all_used(server: RealServer, found: Objects, *, watches: bool) -> bool:
    seen = server.kube.audit()
    return not any(
        watches or right.verb != "watch"
        for component in COMPONENTS
        for right in _unused_permissions(found, seen, component)
    )


def _unused_permissions(found: Objects, log: Sequence[Json], component: str) -> list[Permission]:
    did = used_permissions(log, component)
    return sorted(
        right
        for right in granted_permissions(found, component)
        if not right.resource.endswith((SERVER_SIDE_PERMISSIONS, GRANTED_ONLY, EVICTIONS))
        and not (component == "api" and right in LOOKUPS)
        and not (component == "scheduler" and right in (*VOLUME_BINDING, *DEVICE_BINDING))
        and not any(map(right.covers, did))
    )


@asynccontextmanager
async def _components(
    server: RealServer, found: Objects, directory: Path
) -> AsyncIterator["RbacScenario"]:
    """The manifests applied, two replicas of what has a leader, and nodes."""
    kubectl = Kubectl(server, directory)
    ports = dict(zip(("webhooks", "other webhooks", "rest"), free_ports(3), strict=True))
    url = f"https://127.0.0.1:{ports['webhooks']}"
    await kubectl("apply", "-f", "-", stdin=dumped(redirected(found, url).values()))
    proxy = HttpProxy(server.url, ca=server.ca, own=server.kube.pki.server)
    rest = aiohttp.ClientSession(f"http://127.0.0.1:{ports['rest']}")
    async with proxy, rest:
        components = ComponentProcesses(found, kubectl, directory, url=proxy.url)
        life = RbacScenario(server, proxy, components, rest)
        try:
            for port in (ports["webhooks"], ports["other webhooks"]):
                health = {":11251": 0, ":8081": 0, "8443": port}
                await components.start(
                    "admission", f"--webhook-url={url}", *SLOW_ELECTION, ports=health
                )
            for component in ("controllers", "scheduler", "controllers", "scheduler"):
                await components.start(component, *SLOW_ELECTION, ports={":11251": 0, ":8081": 0})
            store = {"BATHOLITH_STORE": f"sqlite:///{directory / 'history.db'}"}
            await components.start(
                "api", ports={":7480": ports["rest"], ":8081": 0}, environment=store
            )
            simulated = ("--simulate=2", f"--data-dir={directory / 'agent'}")
            await components.run(
                "agent", "agent", *simulated, f"--kubeconfig={server.kubeconfig_of('agent')}"
            )
            await life.wait_started()
            yield life
        except BaseException:
            # What a failed test is understood by.
            print(await kubectl("get", "pods,podgroups,queues,events", "-A", "-o=wide"))  # noqa: T201
            for each in components.running:
                print(f"== {each.name}\n{each.log.read_text()[-3000:]}")  # noqa: T201
            raise
        finally:
            await components.stop()


@dataclass(slots=True)
class RbacScenario:
    """Scenario that needs every permission of some component."""

    server: RealServer
    proxy: HttpProxy
    """The proxy that the components use as API server."""
    components: ComponentProcesses
    rest: aiohttp.ClientSession

    async def wait_started(self) -> None:
        """The default queue is open, webhooks respond, nodes exist."""
        await self._wait_until(QUEUES.path(name="default"), _has_message("Open"))
        await _wait_until_true(self._nodes_are_ready, "nodes are ready")
        await _wait_until_true(self._webhooks_respond, "webhooks respond")
        await _wait_until_true(self._rest_responds, "REST responds")

    async def run_job(self) -> None:
        """With plugins and volumes; scaled, suspended and resumed, and removed by its time."""
        await self._create(
            PERSISTENTVOLUMECLAIMS,
            "there",
            {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        )
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        volumes = [
            {"mountPath": "/there", "volumeClaimName": "there"},
            {"mountPath": "/mine", "volumeClaim": claim},
        ]
        plugins: Json = {"env": [], "svc": [], "ssh": []}
        job = JOBS.path(TEST_NAMESPACE, "gang")
        await self._job("gang", "sleep 3600", replicas=2, plugins=plugins, volumes=volumes)
        await self._bind_claims(2)
        await self._wait_until(job, _has_message("Running"))
        grown = (("/spec/tasks/0/replicas", 3), ("/spec/minAvailable", 2))
        await self._patch(job, [{"op": "replace", "path": at, "value": to} for at, to in grown])
        await self._wait_until(job, lambda it: it["status"].get("running") == 3)
        await self._command("gang", "suspend")
        await self._wait_until(job, _is_in("Aborted"))
        await self._command("gang", "resume")
        await self._wait_until(job, _is_in("Running"))
        assert (await self._get(f"/v1/namespaces/{TEST_NAMESPACE}/jobs"))["items"]
        for kind in (SERVICES, NETWORKPOLICIES):
            await self._check_recreated(kind.path(TEST_NAMESPACE, "gang"))
        await self._job("brief", "exit 0", ttlSecondsAfterFinished=1)
        await self._wait_deleted(JOBS.path(TEST_NAMESPACE, "brief"))

    async def _bind_claims(self, count: int) -> None:
        """Bind *count* PVCs, as the PV controller would, which does not run here."""
        path = PERSISTENTVOLUMECLAIMS.path(TEST_NAMESPACE)
        await self._wait_until(path, lambda it: len(it["items"]) == count)
        for each in (await self.server.get(path))["items"]:
            path = PERSISTENTVOLUMECLAIMS.path(TEST_NAMESPACE, each["metadata"]["name"])
            bound: Json = {"status": {"phase": "Bound"}}
            for where, change in ((path, {"spec": {"volumeName": "v"}}), (f"{path}/status", bound)):
                response = await self.server.request("PATCH", where, change, content_type=MERGE)
                assert response.status == 200, response.body

    async def _check_recreated(self, path: str) -> None:
        """A user deletes an object, and it is created again."""
        uid = (await self.server.get(path))["metadata"]["uid"]
        await self.server.request("DELETE", path)

        async def is_recreated() -> bool:
            seen = await self.server.request("GET", path)
            return seen.status == 200 and seen.body["metadata"]["uid"] != uid

        await _wait_until_true(is_recreated, f"{path} is created again")

    async def run_failing_jobs(self) -> None:
        """Unschedulable pods, a missing PVC, a name conflict, a Command without target."""
        # A pod with a host port is tried again after each change of a node.
        await self._job("picky", "exit 0", where={"no": "such-node"}, host_port=8099)
        await self._wait_until(PODGROUPS.path(TEST_NAMESPACE), _has_message("Unschedulable"))
        await self._wait_until(
            PODS.path(TEST_NAMESPACE), lambda it: "PodScheduled" in _text(it, "picky-t-0")
        )
        for cordoned in (True, False):  # so that the first reason is reported again
            change = {"spec": {"unschedulable": cordoned}}
            node = NODES.path(name="sim-0")
            await self.server.request("PATCH", node, change, content_type=MERGE)
            await self._wait_until(PODS.path(TEST_NAMESPACE), _reports_cordon(cordoned))
        await self._create(PODS, "taken-t-0", _pod_spec("sleep 3600"))
        await self._job("taken", "exit 0")
        nowhere = [{"mountPath": "/n", "volumeClaimName": "nowhere"}]
        await self._job("waits", "exit 0", volumes=nowhere)
        await self._wait_until(_EVENTS.path(TEST_NAMESPACE), _repeated)
        await self._send_command("AbortJob", JOBS, "missing")
        refused_job = await self.server.request(
            "POST", JOBS.path(TEST_NAMESPACE), _job("lost", queue="no")
        )
        assert refused_job.status == 403 or "queue" in str(refused_job.body), refused_job
        assert refused_job.status != 201

    async def run_flow(self) -> None:
        """Two Jobs, the second one after the first, which are deleted at the end."""
        for name in ("first", "second"):
            await self._create(JOBTEMPLATES, name, _job(name)["spec"])
        flows = [{"name": "first"}, {"name": "second", "dependsOn": {"targets": ["first"]}}]
        spec = {"flows": flows, "jobRetainPolicy": "delete"}
        await self._create(JOBFLOWS, "flow", spec)
        await self._wait_until(JOBFLOWS.path(TEST_NAMESPACE, "flow"), _has_message("Succeed"))
        at = f"/v1/namespaces/{TEST_NAMESPACE}/jobflows"
        assert [it["name"] for it in (await self._get(at))["items"]] == ["flow"]
        assert (await self._get(f"{at}/flow"))["phase"] == "Succeed"
        for name in ("first", "second"):
            await self._wait_deleted(JOBS.path(TEST_NAMESPACE, f"flow-{name}"))

    async def run_hypernodes(self) -> None:
        """One is counted; one is discovered by the label of a node, changed, and deleted."""
        member = {"type": "Node", "selector": {"regexMatch": {"pattern": "."}}}
        await self._create(HYPERNODES, "all", {"tier": 1, "members": [member]})
        at = HYPERNODES.path(name="all")
        await self._wait_until(at, lambda it: it.get("status", {}).get("nodeCount"))
        for value in ("a", "b"):
            path = NODES.path(name=f"sim-{'ab'.index(value)}")
            labels = {"metadata": {"labels": {"rack": "a"}}}
            await self.server.request("PATCH", path, labels, content_type=MERGE)
            if value == "a":
                await self._configure_discovery(is_enabled=True)
            await self._wait_until(HYPERNODES.path(), _has_message(path.rpartition("/")[2]))
        await self._configure_discovery(is_enabled=False)
        await self._wait_until(HYPERNODES.path(), lambda it: len(it["items"]) == 1)

    async def run_native_gang(self) -> None:
        """A pod of a PodGroup of Kubernetes itself."""
        spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
        await self._create(NATIVE_PODGROUPS, "native", spec)
        pod = _pod_spec("exit 0") | {"schedulingGroup": {"podGroupName": "native"}}
        await self._create(PODS, "native", pod | {"restartPolicy": "Never"})
        at = NATIVE_PODGROUPS.path(TEST_NAMESPACE, "native")
        await self._wait_until(at, lambda it: it.get("status", {}).get("conditions"))

    async def _configure_discovery(self, *, is_enabled: bool) -> None:
        labels = {"net": [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]}
        config = {"networkTopologyTypes": labels}
        source = {"source": "label", "enabled": is_enabled, "config": config}
        text = yaml.safe_dump({"networkTopologyDiscovery": [source]})
        body = {"metadata": {"name": CONFIGMAP}, "data": {KEY: text}}
        if is_enabled:
            await self.server.create(CONFIGMAPS.path(NAMESPACE), body)
        else:
            path = CONFIGMAPS.path(NAMESPACE, CONFIGMAP)
            await self.server.request("PATCH", path, body, content_type=MERGE)

    async def run_queues(self) -> None:
        """A parent that is closed closes its child; a Command for no queue is forgotten."""
        for name, parent in (("parent", "root"), ("child", "parent")):
            await self._create(QUEUES, name, {"weight": 1, "parent": parent})
            await self._wait_until(QUEUES.path(name=name), _has_message("Open"))
        await self._send_command("CloseQueue", QUEUES, "parent")
        await self._wait_until(QUEUES.path(name="child"), _has_message("Closed"))
        await self._send_command("CloseQueue", QUEUES, "missing")
        await self._wait_until(COMMANDS.path(TEST_NAMESPACE), lambda it: not it["items"])

    async def run_workloads(self) -> None:
        """Gangs of pods without a job; a ReplicaSet scaled to zero loses its PodGroup."""
        for owner in await self._owners("gang"):
            await self._wait_until(PODGROUPS.path(TEST_NAMESPACE), _has_message(owner))
            await self._wait_until(PODS.path(TEST_NAMESPACE), _has_message(owner))
        sets = REPLICASETS.path(TEST_NAMESPACE, "gang-replicaset")
        uid = (await self.server.get(sets))["metadata"]["uid"]
        await self._patch(sets, [{"op": "replace", "path": "/spec/replicas", "value": 0}])
        await self._wait_deleted(PODGROUPS.path(TEST_NAMESPACE, f"podgroup-{uid}"))

    async def _owners(self, name: str) -> list[str]:
        """A pod, and one owner of pods of each kind; the names of their future PodGroups."""
        found = []
        for kind in (PODS, REPLICASETS, STATEFULSETS, DAEMONSETS, BATCH_JOBS):
            labels = {"app": f"{name}-{kind.kind.lower()}"}
            pod = _pod_spec("sleep 3600")
            spec: Json = {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            }
            if kind is STATEFULSETS:
                spec["serviceName"] = "none"
            if kind is BATCH_JOBS:
                spec = {"template": {"spec": pod | {"restartPolicy": "Never"}}}
            created = await self._create(kind, labels["app"], pod if kind is PODS else spec)
            found.append(f"podgroup-{created['metadata']['uid']}")
        return found

    async def run_simulation(self) -> None:
        """The REST API asks the scheduler about a job."""
        job = {"image": "x", "replicas": 2}
        asked = self.rest.post("/v1/simulate", json=job, headers=self._bearer)
        async with asked as response:
            assert response.status == 200, await response.text()
            assert (await response.json())["starts_now"]
        async with self.rest.get("/v1/queues/default/usage", headers=self._bearer) as response:
            assert response.status == 200, await response.text()

    async def run_batch_job(self) -> None:
        """A Job of batch/v1 that is not kube-controller-manager's; its end is recorded."""
        template = {"spec": _pod_spec("exit 0") | {"restartPolicy": "Never"}}
        spec = {"managedBy": OUR_CONTROLLER, "template": template, "ttlSecondsAfterFinished": 9999}
        await self._create(BATCH_JOBS, "ours", spec)
        path = BATCH_JOBS.path(TEST_NAMESPACE, "ours")
        await self._wait_until(path, _has_message("Complete"))
        await self._wait_until(path, lambda it: RECORDED in it["metadata"].get("annotations", {}))

    async def run_cronjob(self) -> None:
        """Its job exists by the response, and completes."""
        fates = [ErrorResponse(409, "AlreadyExists")]

        def inject_fault(method: str, path: str) -> FaultKind | ErrorResponse | None:
            created = method == "POST" and path.partition("?")[0] == JOBS.path(TEST_NAMESPACE)
            return fates.pop() if created and fates else None

        self.proxy.fault_policy = inject_fault
        template = {"spec": _job("", "exit 0")["spec"]}
        await self._create(CRONJOBS, "often", {"schedule": "@every 2s", "jobTemplate": template})
        cronjob = CRONJOBS.path(TEST_NAMESPACE, "often")
        await self._wait_until(cronjob, lambda it: it.get("status", {}).get("lastSuccessfulTime"))
        assert not fates
        self.proxy.fault_policy = lambda method, path: None
        path = f"/v1/namespaces/{TEST_NAMESPACE}/cronjobs"
        assert (await self._get(path))["items"]
        assert (await self._get(f"{path}/often"))["name"] == "often"
        async with self.rest.post(f"{path}/often/jobs", headers=self._bearer) as response:
            assert response.status == 201, await response.text()
        suspended = {"suspend": True}
        change = self.rest.patch(f"{path}/often", json=suspended, headers=self._bearer)
        async with change as response:
            assert response.status == 200, await response.text()
        await self.server.request("DELETE", cronjob)

    async def run_without_lookup_rights(self) -> None:
        """Each of these permissions is required: owned objects cannot be created without it."""
        path = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "", namespaced=False)
        role = await self.server.get(path.path(name="batholith-controllers"))
        left = [
            rule for rule in role["rules"] if SERVER_SIDE_PERMISSIONS not in str(rule["resources"])
        ]
        taken = [rule for rule in role["rules"] if rule not in left]
        assert sum(len(rule["resources"]) for rule in taken) == 8
        assert not await self._wait_forbidden("controllers", taken[0])
        response = await self.server.request("PUT", path.path(name=role["metadata"]["name"]),
                                           role | {"rules": left})  # fmt: skip
        assert response.status == 200, response.body
        # The role is seen as a whole: what held for one of its rules holds for all.
        await _wait_until_true(
            partial(self._wait_forbidden, "controllers", taken[0]),
            "controllers have fewer permissions",
        )
        await self._job("minus", "exit 0")
        missed = {("podgroups", name) for name in await self._owners("minus")}
        uid = (await self.server.get(JOBS.path(TEST_NAMESPACE, "minus")))["metadata"]["uid"]
        missed.add(("podgroups", f"minus-{uid}"))
        await self._create(JOBFLOWS, "minus", {"flows": [{"name": "first"}]})
        missed.add(("jobs", "minus-first"))

        async def all_missed() -> bool:
            lines = [line for line in self.server.kube.audit() if _was_forbidden(line)]
            return missed <= {
                (it["objectRef"]["resource"], it["objectRef"]["name"]) for it in lines
            }

        await _wait_until_true(all_missed, "all were refused")

    async def _wait_forbidden(self, component: str, rule: Json) -> bool:
        """Whether the server denies a component what a removed rule allowed."""
        kind = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "", namespaced=False)
        resource, _, below = rule["resources"][0].partition("/")
        asked = {"group": rule["apiGroups"][0], "resource": resource, "subresource": below}
        asked |= {"verb": rule["verbs"][0], "namespace": TEST_NAMESPACE}
        spec = {"user": service_account(component), "resourceAttributes": asked}
        body = {"apiVersion": kind.api_version, "kind": "SubjectAccessReview", "spec": spec}
        return not (await self.server.create(kind.path(), body))["status"]["allowed"]

    async def run_failures(self) -> None:
        """Responses are lost, caches are stale, a Secret is damaged, a Command has to wait."""
        await self._lose_responses()
        await self._delay_cache()
        await self._damage_secret()
        await self._delay_command()

    async def _lose_responses(self) -> None:
        """A PodGroup exists by the response and is deleted; the response of a binding is lost."""
        fates: dict[str, FaultKind | ErrorResponse] = {
            "podgroups": ErrorResponse(409, "AlreadyExists"),
            "binding": FaultKind.DROP_RESPONSE,
        }

        def inject_fault(method: str, path: str) -> FaultKind | ErrorResponse | None:
            what = path.rpartition("/")[2].partition("?")[0]
            return fates.pop(what, None) if method == "POST" else None

        self.proxy.fault_policy = inject_fault
        unheard = _job("unheard", "exit 0")
        unheard["metadata"]["annotations"] = {PLACE_AT_CREATION: "false"}  # so that it is bound
        await self.server.create(JOBS.path(TEST_NAMESPACE), unheard)
        await self._wait_until(JOBS.path(TEST_NAMESPACE, "unheard"), _has_message("Completed"))
        assert not fates
        self.proxy.fault_policy = lambda method, path: None

    async def _delay_cache(self) -> None:
        """A PodGroup is created before the webhooks' informer has its namespace."""
        self.proxy.hold(responses=True)
        namespace_body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "uncached"}}
        await self.server.create(NAMESPACES.path(), namespace_body)
        group = {
            "apiVersion": PODGROUPS.api_version,
            "kind": PODGROUPS.kind,
            "metadata": {"name": "early"},
            "spec": {"minMember": 1},
        }
        creating = asyncio.create_task(self.server.create(PODGROUPS.path("uncached"), group))
        expected = Permission("", "namespaces", "get", "uncached")

        async def asked() -> bool:
            return expected in used_permissions(self.server.kube.audit(), "admission")

        await _wait_until_true(asked, "the webhook asks for the namespace")
        self.proxy.release()
        await creating

    async def _damage_secret(self) -> None:
        path = SECRETS.path(NAMESPACE, "batholith-admission-secret")
        damage = {"data": {"tls.key": "AA=="}}
        await self.server.request("PATCH", path, damage, content_type=MERGE)
        await self._wait_until(path, lambda it: it["data"]["tls.key"] != "AA==")

    async def _delay_command(self) -> None:
        """A client asks for the outcome while the controllers are delayed."""
        controllers = [each for each in self.components.running if each.name == "controllers"]
        for each in controllers:
            each.signal(signal.SIGSTOP)
        response = await self._send_command_by_rest("gang", "restart")
        assert (await self._get(response.headers["Location"]))["state"] == "Issued"
        for each in controllers:
            each.signal(signal.SIGCONT)
        await self._wait_until(
            JOBS.path(TEST_NAMESPACE, "gang"), lambda it: it["status"].get("retryCount") == 1
        )

    async def run_failovers(self) -> None:
        """The leader of each component exits, another one leads, and a new standby starts.

        The scheduler has learned the run time of a job, which it keeps when it exits.
        """
        await self._job("learned", "sleep 3")
        await self._wait_until(JOBS.path(TEST_NAMESPACE, "learned"), _is_in("Completed"))
        for component, lease in (
            ("controllers", "vc-controller-manager"),
            ("scheduler", "volcano"),
            ("admission", "batholith-admission"),
        ):
            before = await self._holder(lease)
            (leader,) = (each for each in self.components.running if each.uses_identity(before))
            assert leader.name == component
            assert await leader.stop() == 0
            await self._wait_until(LEASES.path(NAMESPACE, lease), _has_other_holder(before))
            await self.components.run(component, *leader.arguments)
        await _wait_until_true(self._webhooks_respond, "webhooks respond")

    # Helpers.

    async def _nodes_are_ready(self) -> bool:
        """Two nodes; no controller removes their taint once they are ready, so the test does."""
        nodes = (await self.server.get(NODES.path()))["items"]
        tainted = [node["metadata"]["name"] for node in nodes if "taints" in node["spec"]]
        for name in tainted:
            without = {"spec": {"taints": None}}
            path = NODES.path(name=name)
            await self.server.request("PATCH", path, without, content_type=MERGE)
        return len(nodes) == 2 and not tainted

    async def _webhooks_respond(self) -> bool:
        response = await self.server.request(
            "POST", JOBS.path(TEST_NAMESPACE) + "?dryRun=All", _job("any")
        )
        return response.status == 201

    async def _rest_responds(self) -> bool:
        try:
            async with self.rest.get("/readyz") as response:
                return response.status == 200
        except aiohttp.ClientConnectorError:
            return False

    async def _holder(self, lease: str) -> str:
        return str((await self.server.get(LEASES.path(NAMESPACE, lease)))["spec"]["holderIdentity"])

    async def _create(self, resource: Resource, name: str, spec: Json) -> Json:
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        return await self.server.create(resource.path(TEST_NAMESPACE), body)

    async def _job(self, name: str, does: str, *, where: Json | None = None, **spec: Any) -> None:
        await self.server.create(JOBS.path(TEST_NAMESPACE), _job(name, does, where=where, **spec))

    async def _send_command(self, action: str, resource: Resource, name: str) -> None:
        """A Command, which a controller executes or drops."""
        target = {"apiVersion": resource.api_version, "kind": resource.kind, "name": name}
        body = {
            "apiVersion": COMMANDS.api_version,
            "kind": COMMANDS.kind,
            "metadata": {"name": f"{action.lower()}-{name}"},
            "target": target | {"uid": "none", "controller": True},
            "action": action,
        }
        await self.server.create(COMMANDS.path(TEST_NAMESPACE), body)
        await self._wait_deleted(COMMANDS.path(TEST_NAMESPACE, f"{action.lower()}-{name}"))

    async def _command(self, job: str, action: str) -> None:
        """The same by REST, followed to its outcome."""
        response = await self._send_command_by_rest(job, action)
        assert response.status == 202, await response.text()
        at = response.headers["Location"]

        async def done() -> bool:
            return bool((await self._get(at))["state"] == "Executed")

        await _wait_until_true(done, f"{action} is carried out")

    async def _send_command_by_rest(self, job: str, action: str) -> aiohttp.ClientResponse:
        at = f"/v1/namespaces/{TEST_NAMESPACE}/jobs/{job}/commands"
        response = await self.rest.post(at, json={"action": action}, headers=self._bearer)
        await response.read()
        return response

    async def _get(self, path: str) -> Any:
        async with self.rest.get(path, headers=self._bearer) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    @property
    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.server.tokens['admin']}"}

    async def _patch(self, path: str, patch: list[Json]) -> None:
        kind = "application/json-patch+json"
        response = await self.server.request("PATCH", path, patch, content_type=kind)
        assert response.status == 200, response.body

    async def _wait_until(self, path: str, true: Callable[[Any], object]) -> None:
        async def holds() -> bool:
            response = await self.server.request("GET", path)
            return response.status == 200 and bool(true(response.body))

        await _wait_until_true(holds, f"at {path}")

    async def _wait_deleted(self, path: str) -> None:
        async def is_deleted() -> bool:
            return (await self.server.request("GET", path)).status == 404

        await _wait_until_true(is_deleted, f"{path} is deleted")


async def _wait_until_true(ask: Callable[[], Awaitable[bool]], what: str) -> None:
    """Poll at intervals: seven processes run on the machine."""
    try:
        async with asyncio.timeout(200):
            while not await ask():  # noqa: ASYNC110 - the world offers no event to wait for
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"timed out waiting for: {what}") from None


_EVENTS = Resource("", "v1", "events", "Event")


def _has_message(text: str) -> Any:
    return lambda it: f'"{text}"' in json.dumps(it)


def _is_in(phase: str) -> Any:
    return lambda it: it.get("status", {}).get("state", {}).get("phase") == phase


def _has_other_holder(holder: str) -> Any:
    return lambda it: it["spec"].get("holderIdentity") not in ("", None, holder)


def _text(listed: Json, prefix: str) -> str:
    """Those objects of a list whose names begin with *prefix*, as text."""
    return json.dumps([it for it in listed["items"] if it["metadata"]["name"].startswith(prefix)])


def _reports_cordon(cordoned: bool) -> Callable[[Any], bool]:
    return lambda it: ("unschedulable" in _text(it, "picky-t-0")) == cordoned


def _was_forbidden(line: Json) -> bool:
    code = line.get("responseStatus", {}).get("code")
    return bool(code == 403 and line["user"]["username"] == service_account("controllers"))


def _repeated(listed: Json) -> bool:
    return any((it.get("count") or 1) > 1 and "volcano" in str(it) for it in listed["items"])


def _pod_spec(does: str, where: Json | None = None, host_port: int = 0) -> Json:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", does],
        "resources": {"requests": {"cpu": "100m"}},
        "ports": [{"containerPort": host_port, "hostPort": host_port}] if host_port else [],
    }
    return {"schedulerName": "volcano", "nodeSelector": where or {}, "containers": [container]}


def _job(name: str, does: str = "exit 0", *, where: Json | None = None, **spec: Any) -> Json:
    replicas = spec.pop("replicas", 1)
    pod_spec = _pod_spec(does, where, spec.pop("host_port", 0))
    template = {"spec": pod_spec | {"restartPolicy": "Never"}}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name},
        "spec": {
            "minAvailable": 1,
            "schedulerName": "volcano",
            "tasks": [{"name": "t", "replicas": replicas, "template": template}],
        }
        | spec,
    }
