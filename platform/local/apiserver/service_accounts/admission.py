"""What pods get of their service account when they are created."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from ....model import names
from ....model.names import Resource
from ..builtin.core_objects import ENFORCED_SECRETS_ANNOTATION
from ..builtin.pod_references import MIRROR_POD, projects_token, refers_to_secrets
from ..errors.status import forbidden
from ..http.requests import Json
from .tokens import POD_SECONDS

DEFAULT = "default"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_TRUE = frozenset(("1", "t", "T", "true", "TRUE", "True"))
_VOLUME_PREFIX = "kube-api-access-"
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Of generated names: without vowels, and what looks like them."""

Lookup = Callable[[Resource, str, str], Json | None]
"""Returns an object by resource, namespace and name."""


def admit_pod(pod: Json, *, namespace: str, name: str, lookup: Lookup) -> None:
    """Set the service account of a new pod, and mount its token.

    A namespace gets its account ``default`` right after it is created: a pod that is created
    before is admitted, and its token is issued when it starts.

    Raises:
        StatusError: 403, there is no such account, it does not list a secret of the pod, or a
            mirror pod refers to an account or to Secrets.
    """
    spec = pod["spec"]
    if MIRROR_POD in (pod["metadata"].get("annotations") or {}):
        if why := _mirror_pod_error(spec):
            raise forbidden(names.PODS, name, why)
        return
    account_name = spec.get("serviceAccountName") or DEFAULT
    spec["serviceAccountName"] = spec["serviceAccount"] = account_name
    account = lookup(names.SERVICEACCOUNTS, namespace, account_name)
    if account is None and account_name != DEFAULT:
        why = (
            f"error looking up service account {namespace}/{account_name}: serviceaccount "
            f'"{account_name}" not found'
        )
        raise forbidden(names.PODS, name, why)
    wanted = spec.get("automountServiceAccountToken")
    if wanted is None and account is not None:
        wanted = account.get("automountServiceAccountToken")
    if wanted is not False:
        metadata = pod["metadata"]
        _mount_token(spec, metadata.get("generateName") or metadata.get("name", ""))
    if account is None:
        return
    if not spec.get("imagePullSecrets") and (pulling := account.get("imagePullSecrets")):
        spec["imagePullSecrets"] = [{"name": each.get("name", "")} for each in pulling]
    enforced = (account["metadata"].get("annotations") or {}).get(ENFORCED_SECRETS_ANNOTATION, "")
    if enforced in _TRUE and (why := _secret_error(spec, account)):
        raise forbidden(names.PODS, name, why)


def _secret_error(spec: Json, account: Json) -> str:
    """Return which secret a pod uses that its account does not list; empty if there is none."""
    owner = account["metadata"]["name"]
    mountable = {each.get("name") for each in account.get("secrets") or ()}
    for used_by, secret in _secrets(spec):
        if secret not in mountable:
            return (
                f'{used_by} secret.secretName="{secret}" is not allowed because service account '
                f"{owner} does not reference that secret"
            )
    pulling = {each.get("name") for each in account.get("imagePullSecrets") or ()}
    for index, each in enumerate(spec.get("imagePullSecrets") or ()):
        if each.get("name") not in pulling:
            return (
                f'imagePullSecrets[{index}].name="{each.get("name", "")}" is not allowed because '
                f"service account {owner} does not reference that imagePullSecret"
            )
    return ""


def _secrets(spec: Json) -> Iterator[tuple[str, str]]:
    """Yield the secrets in volumes and variables, with how messages describe their use."""
    for volume in spec.get("volumes") or ():
        if "secret" in volume:
            yield "volume with", volume["secret"].get("secretName", "")
    for kind, what in (("initContainers", "init container"), ("containers", "container")):
        for container in spec.get(kind) or ():
            start = f"{what} {container.get('name', '')} with"
            for variable in container.get("env") or ():
                if key := (variable.get("valueFrom") or {}).get("secretKeyRef"):
                    used_by = f"{start} envVar {variable.get('name', '')} referencing"
                    yield used_by, key.get("name", "")
            for source in container.get("envFrom") or ():
                if reference := source.get("secretRef"):
                    yield f"{start} envFrom referencing", reference.get("name", "")


def _mirror_pod_error(spec: Json) -> str:
    """Return why a mirror pod is forbidden, which gets nothing of a service account."""
    if spec.get("serviceAccountName"):
        return "a mirror pod may not reference service accounts"
    if refers_to_secrets(spec):
        return "a mirror pod may not reference secrets"
    if projects_token(spec):
        return "a mirror pod may not use ServiceAccountToken volume projections"
    return ""


def _mount_token(spec: Json, name: str) -> None:
    containers = [
        each
        for field in ("initContainers", "containers")
        for each in spec.get(field) or ()
        if not any(mount.get("mountPath") == MOUNT_PATH for mount in each.get("volumeMounts") or ())
    ]
    if not containers:
        return
    volumes = spec.get("volumes") or []
    found = next((each for each in volumes if _is_access(each)), None)
    if found is None:
        # The pod is admitted again after a webhook has responded, and is to be the same then. If
        # its name is generated, it has another one each time.
        digest = hashlib.sha256(name.encode()).digest()
        suffix = "".join(_SUFFIX_ALPHABET[byte % len(_SUFFIX_ALPHABET)] for byte in digest[:5])
        found = _access_volume(f"{_VOLUME_PREFIX}{suffix}")
        spec["volumes"] = [*volumes, found]
    mount = {"name": found["name"], "readOnly": True, "mountPath": MOUNT_PATH}
    for each in containers:
        each["volumeMounts"] = [*(each.get("volumeMounts") or ()), mount]


def _is_access(volume: Json) -> bool:
    sources: Any = (volume.get("projected") or {}).get("sources") or ()
    is_named = str(volume.get("name", "")).startswith(_VOLUME_PREFIX)
    return is_named and any("serviceAccountToken" in each for each in sources)


def _access_volume(name: str) -> Json:
    namespace = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    ca = {"key": "ca.crt", "path": "ca.crt"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": POD_SECONDS, "path": "token"}},
        {"configMap": {"name": names.ROOT_CA, "items": [ca]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
    ]
    return {"name": name, "projected": {"sources": sources, "defaultMode": 0o644}}
