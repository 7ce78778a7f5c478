"""Checks of a cluster before Batholith is installed: each reads, and none changes anything."""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from ..kube.client.client import Client
from ..kube.client.lease import WatchedLease
from ..kube.errors import ApiError, NotFoundError
from ..model import crds
from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from ..model.names import (
    CONFIGMAPS,
    CRDS,
    LEASES,
    MUTATING_CONFIGURATIONS,
    VALIDATING_CONFIGURATIONS,
)
from .deployment_check import (
    CONTROLLERS,
    DEPLOYMENTS,
    SCHEDULER,
    TRAINING_OPERATOR,
    VOLCANO_ADMISSION,
    Deployment,
    OtherComponent,
    running_deployments,
)

Outcome = Literal["ok", "warning", "failed", "skipped"]

MIN_VERSION = (1, 30)
"""Oldest version of Kubernetes that the manifests are for."""
EMBEDDED = "batholith"
"""Text in the version of the embedded API server, by which it is recognized."""
INSTALLED = (
    ("", "namespaces"),
    ("", "secrets"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("", "configmaps"),
    ("", "persistentvolumeclaims"),
    ("apps", "deployments"),
    ("policy", "poddisruptionbudgets"),
    ("networking.k8s.io", "networkpolicies"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
)
"""Group and plural of what the manifests create."""
CLUSTER_SCOPED = frozenset(
    {
        "namespaces",
        "clusterroles",
        "clusterrolebindings",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "customresourcedefinitions",
    }
)
INSTALL_VERBS = ("get", "create", "patch")
VOLCANO = (CONTROLLERS, SCHEDULER, VOLCANO_ADMISSION)
VOLCANO_SERVICE = "volcano-admission-service"
LEASE_NAMES = ("vc-controller-manager", "volcano")
VOLCANO_CONFIGMAP, VOLCANO_CONF = "volcano-scheduler-configmap", "volcano-scheduler.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check."""

    name: str
    outcome: Outcome
    message: str
    action: str = ""
    """What to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be installed."""

    namespace: str
    from_volcano: bool
    """Whether Batholith is to replace Volcano."""


class _Version(ApiStruct, frozen=True):
    git_version: str = ""


class _Review(ApiStruct, frozen=True):
    class Status(ApiStruct, frozen=True):
        allowed: bool = False

    status: Status = Status()


class DefinedKind(ApiStruct, frozen=True):
    """A custom resource definition on the cluster."""

    class Spec(ApiStruct, frozen=True):
        class Names(ApiStruct, frozen=True):
            kind: str = ""

        class Conversion(ApiStruct, frozen=True):
            strategy: str = "None"

        class Version(ApiStruct, frozen=True):
            name: str = ""
            schema: dict[str, Any] = {}

        names: Names = Names()
        scope: str = ""
        versions: tuple[Version, ...] = ()
        conversion: Conversion = Conversion()

    class Status(ApiStruct, frozen=True):
        stored_versions: tuple[str, ...] = ()

    metadata: ObjectMeta = ObjectMeta()
    spec: Spec = Spec()
    status: Status = Status()


class _Service(ApiStruct, frozen=True):
    name: str = ""
    namespace: str = ""


class _ClientConfig(ApiStruct, frozen=True):
    service: _Service | None = None


class _Webhook(ApiStruct, frozen=True):
    client_config: _ClientConfig = _ClientConfig()


class _WebhookConfiguration(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_Webhook, ...] = ()


class _ConfigMap(ApiStruct, frozen=True):
    data: dict[str, str] = {}


async def server_version(client: Client) -> str:
    """Return the version of the API server, e.g. ``v1.34.2``."""
    return (await client.get_path("/version", view=_Version)).git_version


def check_version(version: str) -> CheckResult:
    """Check that the API server is new enough."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    least = ".".join(map(str, MIN_VERSION))
    if found and (int(found[1]), int(found[2])) >= MIN_VERSION:
        return CheckResult(name="kubernetes", outcome="ok", message=version)
    return CheckResult(
        name="kubernetes",
        outcome="failed",
        message=f"the API server has version {version or 'unknown'}",
        action=f"upgrade Kubernetes to {least} or later",
    )


async def check_rights(client: Client, plan: Plan) -> AsyncIterator[CheckResult]:
    """Check the permissions for applying the manifests, with SelfSubjectAccessReviews."""
    required = [(group, plural, verb) for group, plural in INSTALLED for verb in INSTALL_VERBS]
    if plan.from_volcano:
        required.append(("apps", "deployments/scale", "patch"))
        required += [
            (each.group, each.plural, "delete")
            for each in (MUTATING_CONFIGURATIONS, VALIDATING_CONFIGURATIONS)
        ]
    missing = [each for each in required if not await _is_allowed(client, plan.namespace, *each)]
    if missing:
        texts = [f"{verb} {plural}{f'.{group}' * bool(group)}" for group, plural, verb in missing]
        yield CheckResult(
            name="permissions",
            outcome="failed",
            message=f"you may not: {', '.join(texts)}",
            action="apply the manifests as a cluster administrator",
        )
        return
    yield CheckResult(
        name="permissions", outcome="ok", message="you may create all objects of the manifests"
    )
    group = "rbac.authorization.k8s.io"
    escalates = await _is_allowed(client, plan.namespace, group, "clusterroles", "escalate")
    if not escalates:
        yield CheckResult(
            name="permissions",
            outcome="warning",
            message="you may not grant permissions that you do not have (verb escalate)",
            action="apply the manifests as a cluster administrator, unless you have all "
            "permissions in manifests/base yourself",
        )


async def _is_allowed(client: Client, namespace: str, group: str, plural: str, verb: str) -> bool:
    resource, _, subresource = plural.partition("/")
    attributes = {
        # With a namespace, a permission in that namespace alone would suffice.
        "namespace": "" if resource in CLUSTER_SCOPED else namespace,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "verb": verb,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return (await client.post(path, review, view=_Review)).status.allowed


async def check_crds(client: Client) -> AsyncIterator[CheckResult]:
    """Check that each CRD can be created, or replaced without losing stored objects."""
    listing = await client.list(CRDS, view=DefinedKind)
    present = {each.metadata.name: each for each in listing.items}
    absent = []
    for ours in crds.load():
        name = ours["metadata"]["name"]
        if name not in present:
            absent.append(name)
            continue
        yield compare_definition(present[name], ours)
    if absent:
        yield CheckResult(
            name="crds", outcome="ok", message=f"will be created: {', '.join(sorted(absent))}"
        )


def compare_definition(found: DefinedKind, ours: dict[str, Any]) -> CheckResult:
    """Return whether *ours* can replace the definition *found*."""
    name, spec = found.metadata.name, ours["spec"]
    served = {version["name"] for version in spec["versions"]}
    differences = []
    if found.metadata.deletion_timestamp:
        return CheckResult(
            name=f"crd {name}",
            outcome="failed",
            message="is being deleted, with all its objects",
            action="wait until it is deleted; move to Batholith without deleting Volcano's CRDs",
        )
    if unknown := set(found.status.stored_versions) - served:
        differences.append(f"objects may be stored as {', '.join(sorted(unknown))}")
    if found.spec.conversion.strategy != "None":
        differences.append(f"its objects are converted by a {found.spec.conversion.strategy}")
    if (found.spec.names.kind, found.spec.scope) != (spec["names"]["kind"], spec["scope"]):
        differences.append(f"it is {found.spec.scope} and has the kind {found.spec.names.kind}")
    if differences:
        versions = ", ".join(sorted(served))
        return CheckResult(
            name=f"crd {name}",
            outcome="failed",
            message="; ".join(differences),
            action=f"store its objects as {versions} first, and remove other versions from "
            "status.storedVersions",
        )
    schemas = {each.name: each.schema for each in found.spec.versions}
    same = schemas == {each["name"]: each["schema"] for each in spec["versions"]}
    text = "is that of this version" if same else "is replaced, and its objects stay"
    return CheckResult(name=f"crd {name}", outcome="ok", message=text)


async def check_other_systems(client: Client, plan: Plan) -> AsyncIterator[CheckResult]:
    """Check for controllers, schedulers and webhooks of other systems, and for held Leases."""
    deployments = (await client.list(DEPLOYMENTS, view=Deployment)).items
    for component in VOLCANO:
        yield _check_volcano(deployments, component, plan)
    operators = running_deployments(deployments, TRAINING_OPERATOR, host="")
    if operators:
        yield CheckResult(
            name="training-operator",
            outcome="warning",
            message=f"{TRAINING_OPERATOR.system} is running: {'; '.join(operators)}",
            action="do not enable the component training-jobs, or scale it to 0 first",
        )
    running = _running(deployments, VOLCANO)
    async for result in _check_leases(client, plan, deployments, running):
        yield result
    yield await _check_webhooks(client, plan, deployments)


def _running(
    deployments: Sequence[Deployment], components: Iterable[OtherComponent]
) -> Sequence[str]:
    return [
        found
        for component in components
        for found in running_deployments(deployments, component, host="")
    ]


def _check_volcano(
    deployments: Sequence[Deployment], component: OtherComponent, plan: Plan
) -> CheckResult:
    found = running_deployments(deployments, component, host="")
    name = component.program
    if not found:
        return CheckResult(name=name, outcome="ok", message="is not running")
    if plan.from_volcano:
        text = f"is running, to be stopped: {'; '.join(found)}"
        return CheckResult(name=name, outcome="ok", message=text)
    return CheckResult(
        name=name,
        outcome="failed",
        message=f"is running: {'; '.join(found)}",
        action=f"follow {component.page}, and pass --from volcano",
    )


async def _check_leases(
    client: Client, plan: Plan, deployments: Sequence[Deployment], volcano: Sequence[str]
) -> AsyncIterator[CheckResult]:
    ours = [
        each
        for each in deployments
        if each.metadata.namespace == plan.namespace and each.metadata.name.startswith("batholith-")
    ]
    for name in LEASE_NAMES:
        try:
            lease = await client.get(LEASES, name, namespace=plan.namespace, view=WatchedLease)
        except NotFoundError:
            continue
        holder = _holder(lease)
        if not holder:
            yield CheckResult(name=f"lease {name}", outcome="ok", message="is not held")
        elif ours:
            text = f"is held by {holder}: Batholith is installed, this is an upgrade"
            yield CheckResult(name=f"lease {name}", outcome="ok", message=text)
        elif plan.from_volcano and volcano:
            text = f"is held by {holder}, until Volcano is stopped"
            yield CheckResult(name=f"lease {name}", outcome="ok", message=text)
        else:
            yield CheckResult(
                name=f"lease {name}",
                outcome="failed",
                message=f"is held by {holder}, and no Deployment of Volcano or Batholith was found",
                action="stop that process: while it renews the Lease, Batholith waits",
            )


def _holder(lease: WatchedLease) -> str:
    """Return the holder of a Lease that has not expired."""
    record = lease.lease.record
    if not record.holder_identity or not record.renew_time:
        return ""
    renewed = datetime.fromisoformat(record.renew_time)
    expired = datetime.now(UTC) - renewed > timedelta(seconds=record.lease_duration)
    return "" if expired else record.holder_identity


async def _check_webhooks(
    client: Client, plan: Plan, deployments: Sequence[Deployment]
) -> CheckResult:
    names = [
        f"{resource.plural}/{each.metadata.name}"
        for resource in (MUTATING_CONFIGURATIONS, VALIDATING_CONFIGURATIONS)
        for each in (await client.list(resource, view=_WebhookConfiguration)).items
        if any(_is_of_volcano(webhook) for webhook in each.webhooks)
    ]
    if not names:
        return CheckResult(name="webhooks", outcome="ok", message="Volcano has none")
    if _running(deployments, (VOLCANO_ADMISSION,)) and plan.from_volcano:
        text = f"Volcano has {len(names)} configurations, to be deleted after the installation"
        return CheckResult(name="webhooks", outcome="ok", message=text)
    if _running(deployments, (VOLCANO_ADMISSION,)):
        return CheckResult(
            name="webhooks",
            outcome="failed",
            message=f"Volcano has {len(names)} configurations",
            action=f"follow {VOLCANO_ADMISSION.page}, and pass --from volcano",
        )
    return CheckResult(
        name="webhooks",
        outcome="failed",
        message="Volcano's admission is not running, so its webhooks deny new objects",
        action=f"kubectl delete {' '.join(names)}",
    )


def _is_of_volcano(webhook: _Webhook) -> bool:
    service = webhook.client_config.service
    return service is not None and service.name == VOLCANO_SERVICE


async def check_volcano_conf(client: Client, namespace: str) -> AsyncIterator[CheckResult]:
    """Check that the scheduler here accepts the configuration of Volcano's."""
    from ..scheduler import conf

    where = f"ConfigMap {VOLCANO_CONFIGMAP} in {namespace}"
    name = "scheduler configuration"
    try:
        found = await client.get(
            CONFIGMAPS, VOLCANO_CONFIGMAP, namespace=namespace, view=_ConfigMap
        )
        text = found.data[VOLCANO_CONF]
    except (NotFoundError, KeyError):
        text = f"there is no {VOLCANO_CONF} in {where}"
        yield CheckResult(name=name, outcome="skipped", message=text)
        return
    try:
        conf.load(text)
    except conf.ConfError as error:
        yield CheckResult(
            name=name,
            outcome="failed",
            message=f"{where}: {error}",
            action="correct a copy, and use it as described in docs/scheduler-configuration.md",
        )
        return
    yield CheckResult(name=name, outcome="ok", message=f"{where} is valid here, too")


async def guarded(name: str, results: AsyncIterator[CheckResult]) -> AsyncIterator[CheckResult]:
    """Yield *results*; if a request is rejected, a failed one for the check *name*."""
    try:
        async for result in results:
            yield result
    except ApiError as error:
        yield CheckResult(
            name=name,
            outcome="failed",
            message=f"cannot be checked: {error}",
            action="run preflight as a cluster administrator",
        )
