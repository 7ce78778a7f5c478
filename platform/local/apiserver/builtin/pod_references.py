"""What a pod or a volume refers to, which the kubelet of its node may therefore read."""

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace and name of an object."""

MIRROR_POD = "kubernetes.io/config.mirror"
CLAIMS, CONFIGMAPS, SECRETS = "persistentvolumeclaims", "configmaps", "secrets"
SERVICE_ACCOUNTS = "serviceaccounts"
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_REFERRING_VOLUMES = {
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistentVolumeClaim": CLAIMS,
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
}
"""Kinds that volumes of a type need, as kube-apiserver names them."""

_REFERRING_SOURCES = {
    "clusterTrustBundle": "clustertrustbundles",
    "podCertificate": "podcertificates",
    "serviceAccountToken": "serviceaccounts (via projected volumes)",
}
"""The same for sources of projected volumes."""


def references(pod: Json) -> set[Key]:
    """Return what the kubelet of the pod's node may read for it; nothing for a mirror pod."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    if MIRROR_POD in (metadata.get("annotations") or {}):
        return set()
    namespace = metadata.get("namespace", "")
    found = {
        (plural, namespace, name)
        for plural, name in (*_of_containers(spec), *_of_volumes(metadata["name"], spec))
        if name
    }
    found |= {
        (SECRETS, namespace, each["name"])
        for each in spec.get("imagePullSecrets") or ()
        if each.get("name")
    }
    if account := spec.get("serviceAccountName"):
        found.add((SERVICE_ACCOUNTS, namespace, account))
    found |= {("resourceclaims", namespace, name) for name in _resource_claims(pod)}
    return found


def refers_to_secrets(spec: Json) -> bool:
    """Return whether a pod with this spec refers to Secrets."""
    return SECRETS in _kinds(spec)


def projects_token(spec: Json) -> bool:
    """Return whether a volume of a pod with this spec contains a token of its service account."""
    return any("serviceAccountToken" in source for source in _projected(spec))


def referenced_kind(spec: Json) -> str:
    """Return a kind that a mirror pod with this spec refers to; empty for none."""
    if spec.get("serviceAccountName"):
        return SERVICE_ACCOUNTS
    for kind in (SECRETS, CONFIGMAPS):
        if kind in _kinds(spec):
            return kind
    if spec.get("resourceClaims"):
        return "resourceclaims"
    volumes = [_REFERRING_VOLUMES.get(type_, "") for each in _volumes(spec) for type_ in each]
    sources = [_REFERRING_SOURCES.get(type_, "") for each in _projected(spec) for type_ in each]
    return next(filter(None, (*volumes, *sources)), "")


def _kinds(spec: Json) -> set[str]:
    found = {plural for plural, name in (*_of_containers(spec), *_of_volumes("", spec)) if name}
    return {*found, SECRETS} if spec.get("imagePullSecrets") else found


def _volumes(spec: Json) -> list[Json]:
    return spec.get("volumes") or []


def _projected(spec: Json) -> Iterator[Json]:
    for volume in _volumes(spec):
        yield from (volume.get("projected") or {}).get("sources") or ()


def volume_references(volume: Json) -> tuple[Key | None, set[Key]]:
    """Return the claim of a PersistentVolume, and the secrets that its node needs."""
    spec = volume.get("spec") or {}
    reference = spec.get("claimRef") or {}
    namespace = reference.get("namespace", "")
    if not reference:
        return None, set()
    names = []
    csi = spec.get("csi") or {}
    names += [csi.get(f"node{each}SecretRef") for each in ("Publish", "Expand", "Stage")]
    names += [each.get("secretRef") for each in spec.values() if isinstance(each, dict)]
    azure = spec.get("azureFile") or {}
    if azure.get("secretName"):
        names.append({"name": azure["secretName"], "namespace": azure.get("secretNamespace")})
    secrets = {
        (SECRETS, each.get("namespace") or namespace, each["name"])
        for each in names
        if each and each.get("name")
    }
    return (CLAIMS, namespace, reference.get("name", "")), secrets


def _of_containers(spec: Json) -> Iterator[tuple[str, str]]:
    for field in _CONTAINERS:
        for container in spec.get(field) or ():
            for source in container.get("envFrom") or ():
                yield SECRETS, (source.get("secretRef") or {}).get("name", "")
                yield CONFIGMAPS, (source.get("configMapRef") or {}).get("name", "")
            for variable in container.get("env") or ():
                source = variable.get("valueFrom") or {}
                yield SECRETS, (source.get("secretKeyRef") or {}).get("name", "")
                yield CONFIGMAPS, (source.get("configMapKeyRef") or {}).get("name", "")


def _of_volumes(pod: str, spec: Json) -> Iterator[tuple[str, str]]:
    for volume in _volumes(spec):
        if (claim := volume.get("persistentVolumeClaim")) is not None:
            yield CLAIMS, claim.get("claimName", "")
        elif volume.get("ephemeral") is not None:
            yield CLAIMS, f"{pod}-{volume.get('name', '')}"
        yield CONFIGMAPS, (volume.get("configMap") or {}).get("name", "")
        yield SECRETS, (volume.get("secret") or {}).get("secretName", "")
        yield SECRETS, (volume.get("azureFile") or {}).get("secretName", "")
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield SECRETS, (source.get("secret") or {}).get("name", "")
            yield CONFIGMAPS, (source.get("configMap") or {}).get("name", "")
        csi = volume.get("csi") or {}
        yield SECRETS, (csi.get("nodePublishSecretRef") or {}).get("name", "")
        for source in volume.values():
            if isinstance(source, dict):
                yield SECRETS, (source.get("secretRef") or {}).get("name", "")


def _resource_claims(pod: Json) -> Iterator[str]:
    """Yield the names of the claims of devices, also of those created from a template."""
    status = pod.get("status") or {}
    created = {
        each.get("name"): each.get("resourceClaimName")
        for each in status.get("resourceClaimStatuses") or ()
    }
    for claim in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = claim.get("resourceClaimName") or created.get(claim.get("name"))
        if name:
            yield name
    extended = status.get("extendedResourceClaimStatus") or {}
    if extended.get("resourceClaimName"):
        yield extended["resourceClaimName"]
