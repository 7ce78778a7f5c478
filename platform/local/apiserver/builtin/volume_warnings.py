"""kube-apiserver's warnings for the volumes of a pod template, and for claims."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ....model import quantity
from ..errors.fields import quote
from .core_objects import BETA_CLASS_ANNOTATION
from .persistent_volumes import MOUNT_OPTIONS_ANNOTATION

Json = dict[str, Any]

_PLUGINS = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
_REMOVED_SOURCES = (
    "photonPersistentDisk", "scaleIO", "storageos", "glusterfs", "rbd", "cephfs",
)  # fmt: skip
"""Of them, those of PersistentVolumes that cause warnings."""

_SHOWN = {"storageos": "storageOS"}
"""Names of fields as messages show them, where these differ."""


_SOURCES = {
    "configMap": ("ConfigMap", "name"),
    "secret": ("Secret", "secretName"),
    "downwardAPI": ("DownwardAPI", ""),
}
"""Volumes of files: name in messages, and the field with the name of the source."""

_MAX_WARNINGS = 50
"""Maximum number of warnings for one volume; more do not fit into a response."""

_OF_FILES = frozenset((*_SOURCES, "projected"))


class _File(NamedTuple):
    """A file of a volume, and its source if there are several."""

    path: str
    source: str = ""

    def __str__(self) -> str:
        return f"{quote(self.path)} ({self.source})" if self.source else quote(self.path)


def volume_warnings(spec: Json, path: str) -> Iterator[str]:
    """Yield warnings for removed volume types, and for files that hide each other."""
    volumes = spec.get("volumes") or ()
    for index, volume in enumerate(volumes):
        field_path = f"{path}.volumes[{index}]"
        for name in _PLUGINS.keys() & volume.keys():
            yield f"{field_path}.{_SHOWN.get(name, name)}: {_PLUGINS[name]}"
        if "ephemeral" in volume:
            claim = volume["ephemeral"].get("volumeClaimTemplate", {}).get("spec", {})
            yield from size_warnings(claim, f"{field_path}.ephemeral.volumeClaimTemplate.spec")
    for volume in volumes:
        if not _OF_FILES.isdisjoint(volume):
            yield from _overlaps(volume)


def size_warnings(claim: Json, path: str) -> Iterator[str]:
    """Yield warnings for sizes in the spec of a claim that are no whole bytes."""
    for kind in ("requests", "limits"):
        size = claim.get("resources", {}).get(kind, {}).get("storage", "0")
        if not quantity.parse(size).is_whole:
            where = f"{path}.resources.{kind}[storage]"
            shown = quote(quantity.canonical(size))
            yield f"{where}: fractional byte value {shown} is invalid, must be an integer"


def claim_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return warnings for the deprecated annotation of a claim's class, and for its size."""
    return [*_annotation_warnings(obj), *size_warnings(obj.get("spec", {}), "spec")]


def persistent_volume_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return warnings for what is deprecated in a PersistentVolume."""
    spec = obj.get("spec") or {}
    found = _annotation_warnings(obj)
    if MOUNT_OPTIONS_ANNOTATION in (obj["metadata"].get("annotations") or {}):
        text = 'deprecated since v1.31; use "mountOptions" attribute instead'
        found.append(f"metadata.annotations[{MOUNT_OPTIONS_ANNOTATION}]: {text}")
    if spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        text = (
            "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to "
            "use dynamic provisioning."
        )
        found.append(f"spec.persistentVolumeReclaimPolicy: {text}")
    found += [
        f"spec.{_SHOWN.get(name, name)}: {_PLUGINS[name]}"
        for name in _REMOVED_SOURCES
        if name in spec
    ]
    return found


def _annotation_warnings(obj: Json) -> list[str]:
    if BETA_CLASS_ANNOTATION not in (obj["metadata"].get("annotations") or {}):
        return []
    text = 'deprecated since v1.8; use "storageClassName" attribute instead'
    return [f"metadata.annotations[{BETA_CLASS_ANNOTATION}]: {text}"]


def _overlaps(volume: Json) -> Iterator[str]:
    name = f"volume {quote(volume.get('name', ''))}"
    for kind, (described, key) in _SOURCES.items():
        if kind not in volume:
            continue
        source = volume[kind]
        shown = f"{described} {quote(source.get(key, ''))}" if key else described
        for text in _conflicts(_files(source)):
            yield f"{name} ({shown}): overlapping paths: {text}"
    sources = volume.get("projected", {}).get("sources") or ()
    if _have_distinct_names(sources):
        return
    files: list[_File] = []
    first_after: dict[int, str] = {}
    for source in sources:
        if not source:
            first_after[len(files)] = f"{name} (Projected) has no sources provided"
        files += _projected_files(source)
    conflicts = {
        number: [f"{name} (Projected): overlapping paths: {text}" for text in texts]
        for number, texts in _conflicts_by_file(files).items()
    }
    for number in range(len(files) + 1):
        if number in first_after:
            yield first_after[number]
        yield from conflicts.get(number, ())


def _have_distinct_names(sources: Sequence[Json]) -> bool:
    """Whether no source has a file in a directory, or of the name of another, as most volumes."""
    paths: list[str] = []
    for source in sources:
        if not source or "podCertificate" in source:
            return False
        for content in source.values():
            paths += [item.get("path", "") for item in content.get("items") or (content,)]
    return len(set(paths)) == len(paths) and not any("/" in path for path in paths)


def _files(source: Json, described: str = "") -> list[_File]:
    return [_File(item.get("path", ""), described) for item in source.get("items") or ()]


def _projected_files(source: Json) -> list[_File]:
    for kind, described in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if source.get(kind, {}).get("items"):
            return _files(source[kind], f"{described} {quote(source[kind].get('name', ''))}")
    if source.get("downwardAPI", {}).get("items"):
        return _files(source["downwardAPI"], "DownwardAPI")
    if token := source.get("serviceAccountToken"):
        return [_File(token.get("path", ""), "ServiceAccountToken")]
    if bundle := source.get("clusterTrustBundle"):
        name = bundle.get("name", bundle.get("signerName", ""))
        return [_File(bundle.get("path", ""), f"ClusterTrustBundle {quote(name)}")]
    certificate = source.get("podCertificate", {})
    return [
        _File(certificate[key], f"PodCertificate {described}")
        for key, described in (
            ("certificateChainPath", "chain"),
            ("keyPath", "key"),
            ("credentialBundlePath", "credential bundle"),
        )
        if certificate.get(key)
    ]


def _conflicts(files: list[_File]) -> Iterator[str]:
    """Yield the pairs of files of which one has the path of the other, or is below it."""
    for texts in _conflicts_by_file(files).values():
        yield from texts


def _conflicts_by_file(files: list[_File]) -> dict[int, list[str]]:
    """Return the conflicts of each file with earlier ones, by number, in order.

    Sorted by path, a file follows all that it is below, so that only conflicts take time.
    """
    if len({file.path for file in files}) == len(files) and not any("/" in f.path for f in files):
        return {}  # most volumes
    trimmed = [file._replace(path=file.path.rstrip("/")) for file in files]
    numbers = [number for number, file in enumerate(trimmed) if file.path]
    numbers.sort(key=lambda number: (f"{trimmed[number].path}/", number))
    pairs: list[tuple[int, int]] = []
    above: list[int] = []
    for number in numbers:
        path = f"{trimmed[number].path}/"
        while above and not path.startswith(f"{trimmed[above[-1]].path}/"):
            above.pop()
        pairs += [(max(number, each), min(number, each)) for each in above]
        above.append(number)
        if len(pairs) > _MAX_WARNINGS:
            break
    conflicts: dict[int, list[str]] = {}
    for number, earlier in sorted(pairs)[:_MAX_WARNINGS]:
        conflicts.setdefault(number, []).append(f"{trimmed[number]} with {trimmed[earlier]}")
    return conflicts
