"""Manifests and configurations of images: those of OCI, which Docker's resemble."""

import hashlib
import platform
from typing import TypeVar

import msgspec

from .errors import ImageError
from .references import is_digest

MAX_JSON = 4 << 20
"""Bytes of a manifest or configuration; registries have the same limit."""

MAX_LAYERS = 127
"""Layers that overlayfs has been able to stack in all kernels."""

_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPTED_TYPES = (*_INDEX_TYPES, *_MANIFEST_TYPES)
_FOREIGN_LAYER = "foreign"
_T = TypeVar("_T", bound=msgspec.Struct)


class Platform(msgspec.Struct, frozen=True):
    """Machines on which an image runs."""

    architecture: str = ""
    os: str = ""
    variant: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """Reference to a blob."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] | None = None
    urls: tuple[str, ...] | None = None


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """A manifest or an index: one of *layers* and *manifests* is set."""

    media_type: str = ""
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] | None = None
    manifests: tuple[Descriptor, ...] | None = None


class ProcessConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """What an image defines of its containers."""

    user: str | None = None
    env: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    working_dir: str | None = None
    volumes: dict[str, object] | None = None
    healthcheck: dict[str, object] | None = None
    stop_signal: str | None = None


class RootFs(msgspec.Struct, frozen=True):
    """Digests of the layers, uncompressed, the lowest first."""

    diff_ids: tuple[str, ...] | None = None


class ImageConfig(msgspec.Struct, frozen=True):
    """Configuration of an image."""

    architecture: str = ""
    os: str = ""
    config: ProcessConfig | None = None
    rootfs: RootFs = RootFs()


def architecture() -> str:
    """Return this machine's architecture as in images."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def sha256(data: bytes) -> str:
    """Return the digest of *data*."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def verified(data: bytes, digest: str, what: str) -> bytes:
    """Return *data* if that is its digest.

    Raises:
        ImageError: it is not.
    """
    if not is_digest(digest):
        raise ImageError(f"{what}: {digest[:100]!r} is not a digest sha256:…")
    if sha256(data) != digest:
        raise ImageError(f"{what}: the content has not the digest {digest}")
    return data


def decode(data: bytes, kind: type[_T], what: str) -> _T:
    """Decode JSON of *kind*.

    Raises:
        ImageError: it is malformed.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ImageError(f"{what} is malformed: {error}") from error


def decode_manifest(data: bytes, what: str) -> tuple[Descriptor, tuple[Descriptor, ...]]:
    """Return the descriptors of configuration and layers.

    Raises:
        ImageError: it is malformed, or has a form that is not supported.
    """
    manifest = decode(data, Document, what)
    if manifest.media_type and manifest.media_type not in _MANIFEST_TYPES:
        raise ImageError(f"{what}: unsupported media type {manifest.media_type[:200]!r}")
    if manifest.config is None or manifest.layers is None:
        raise ImageError(f"{what} has no config and layers (manifests of schema 1 are unsupported)")
    for layer in manifest.layers:
        if _FOREIGN_LAYER in layer.media_type or layer.urls:
            raise ImageError(f"{what}: layers outside the registry are not supported")
    _check_sizes(manifest.layers, what)
    return manifest.config, manifest.layers


def decode_config(data: bytes, *, layers: int, what: str) -> ImageConfig:
    """Return the configuration of an image of that many layers.

    Raises:
        ImageError: it is malformed, or not for this machine.
    """
    config = decode(data, ImageConfig, what)
    found = config.rootfs.diff_ids or ()
    if len(found) != layers:
        raise ImageError(f"{what} lists {len(found)} layers, the manifest {layers}")
    if layers > MAX_LAYERS:
        raise ImageError(f"{what} has {layers} layers, more than {MAX_LAYERS}")
    if not all(map(is_digest, found)):
        raise ImageError(f"{what}: its diff_ids are not all of the form sha256:…")
    wanted = ("linux", architecture())
    if (config.os, config.architecture) != wanted:
        built = f"{config.os}/{config.architecture}"
        raise ImageError(f"the image is for {built[:100]!r}, this machine is {'/'.join(wanted)}")
    return config


def select_platform(index: Document, what: str) -> Descriptor:
    """Return the manifest of *index* for this machine.

    Raises:
        ImageError: there is none.
    """
    found = index.manifests or ()
    _check_sizes(found, what)
    usable = [each for each in found if _fits(each.platform)]
    if usable:
        # On amd64 several variants are levels of the processor; without one it runs on all.
        return min(usable, key=lambda each: each.platform.variant if each.platform else "")
    if len(found) == 1 and found[0].platform is None:
        return found[0]
    offered = sorted(
        {f"{p.os}/{p.architecture}" for each in found if (p := each.platform) is not None}
    )
    raise ImageError(f"{what} has no image for linux/{architecture()}, only {offered[:20]!r}")


def _fits(found: Platform | None) -> bool:
    return found is not None and (found.os, found.architecture) == ("linux", architecture())


def _check_sizes(descriptors: tuple[Descriptor, ...], what: str) -> None:
    if any(each.size < 0 for each in descriptors):
        raise ImageError(f"{what} has a descriptor with a negative size")
