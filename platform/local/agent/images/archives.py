"""Images in files: OCI layouts, as directories or tar archives, and archives of `docker save`."""

import gzip
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from ..runtime.mounting import open_beneath
from . import references
from .errors import ImageError
from .formats import (
    MAX_JSON,
    Descriptor,
    Document,
    ProcessConfig,
    decode,
    decode_config,
    decode_manifest,
    select_platform,
    sha256,
    verified,
)
from .references import Reference, is_digest
from .store import ImageStore, StoredImage, chain_id, image_notes
from .unpacking import Blob, LimitedTarInfo, UnpackLimits

_FULL_NAME, _REF_NAME = "io.containerd.image.name", "org.opencontainers.image.ref.name"
_MAX_INDEXES = 5
"""Nested indexes."""

_MAX_MEMBERS = 100_000


class _DockerImage(msgspec.Struct, frozen=True, rename="pascal"):
    """An entry of `manifest.json`."""

    config: str
    layers: tuple[str, ...]
    repo_tags: tuple[str, ...] | None = None


class Files(Protocol):
    """The files of a layout."""

    def open(self, path: str) -> Blob | None:
        """Return a regular file; ``None`` if there is none."""


BlobOpener = Callable[[Descriptor], Any]
"""Returns a context manager of the `Blob` of a layer."""


def load(
    store: ImageStore, path: Path, *, name: str = "", limits: UnpackLimits | None = None
) -> list[StoredImage]:
    """Load the images of an OCI layout or an archive; *name* overrides that of a single image.

    Raises:
        ImageError: it is invalid, or has no name; images before that one are loaded.
        OSError: it cannot be read, or the store cannot be written.
    """
    limits = limits or UnpackLimits()
    override = references.parse(name) if name else None
    if override is not None and override.digest:
        raise ImageError("the name of a loaded image needs a tag, not a digest")
    with store.in_use(), _opened(store, path, limits) as files:
        if (docker := files.open("manifest.json")) and not files.open("oci-layout"):
            return list(_load_docker(store, files, docker, override, limits))
        return list(_load_layout(store, files, override, limits))


# --- OCI layouts ----------------------------------------------------------------------------


def _load_layout(
    store: ImageStore, files: Files, override: Reference | None, limits: UnpackLimits
) -> Iterator[StoredImage]:
    found = files.open("index.json")
    if found is None:
        raise ImageError("neither an OCI layout (index.json) nor an archive of docker save")
    index = decode(_read(found), Document, "index.json")
    manifests = index.manifests or ()
    if not manifests:
        raise ImageError("index.json lists no images")
    if override and len(manifests) > 1:
        raise ImageError(f"it has {len(manifests)} images; they cannot all have the same name")
    for target in manifests:
        name = override or _annotated_name(target)
        descriptor = target
        for _ in range(_MAX_INDEXES):
            data = _read_blob(files, descriptor)
            document = decode(data, Document, "a manifest")
            if document.manifests is None:
                break
            descriptor = select_platform(document, "an index")
        else:
            raise ImageError("its indexes are nested too deeply")
        config, layers = decode_manifest(data, "a manifest")
        yield store_image(
            store,
            name,
            digest=target.digest,
            config=(config.digest, _read_blob(files, config)),
            layers=layers,
            opened=lambda layer: _blob(files, layer),
            limits=limits,
        )


def _annotated_name(target: Descriptor) -> Reference:
    annotations = target.annotations or {}
    reference = annotations.get(_REF_NAME, "")  # some programs write only the tag
    text = annotations.get(_FULL_NAME) or (reference if set("/:") & set(reference) else "")
    if text:
        return references.parse(text)
    raise ImageError("the layout does not contain the image's name; set it with --name")


def _read_blob(files: Files, descriptor: Descriptor) -> bytes:
    with _blob(files, descriptor) as blob:
        return verified(_read(blob), descriptor.digest, "a blob")


@contextmanager
def _blob(files: Files, descriptor: Descriptor) -> Iterator[Blob]:
    if not is_digest(descriptor.digest):
        raise ImageError(f"{descriptor.digest[:100]!r} is not a digest sha256:…")
    found = files.open(f"blobs/{descriptor.digest.replace(':', '/')}")
    if found is None:
        raise ImageError(f"the blob {descriptor.digest} is missing")
    if found.size != descriptor.size:
        raise ImageError(
            f"the blob {descriptor.digest} has {found.size} bytes, not {descriptor.size}"
        )
    yield found


# --- archives of docker save ----------------------------------------------------------------


def _load_docker(
    store: ImageStore,
    files: Files,
    manifest: Blob,
    override: Reference | None,
    limits: UnpackLimits,
) -> Iterator[StoredImage]:
    try:
        images = msgspec.json.decode(_read(manifest), type=list[_DockerImage])
    except msgspec.DecodeError as error:
        raise ImageError(f"manifest.json is malformed: {error}") from error
    if override and len(images) > 1:
        raise ImageError(f"it has {len(images)} images; they cannot all have the same name")
    for image in images:
        found = files.open(image.config)
        if found is None:
            raise ImageError(f"{image.config[:200]!r} is missing")
        config = _read(found)
        names = [override] if override else list(map(references.parse, image.repo_tags or ()))
        if not names:
            raise ImageError("the archive does not contain the image's name; set it with --name")
        layers = [Descriptor(digest="", size=0, annotations={"path": p}) for p in image.layers]
        for name in names:
            yield store_image(
                store,
                name,
                digest="",
                config=("", config),
                layers=tuple(layers),
                opened=lambda layer: _docker_layer(files, layer),
                limits=limits,
            )


@contextmanager
def _docker_layer(files: Files, descriptor: Descriptor) -> Iterator[Blob]:
    path = (descriptor.annotations or {})["path"]
    found = files.open(path)
    if found is None:
        raise ImageError(f"the layer {path[:200]!r} is missing")
    yield found


# --- storing --------------------------------------------------------------------------------


def store_image(
    store: ImageStore,
    name: Reference,
    *,
    digest: str,
    config: tuple[str, bytes],
    layers: tuple[Descriptor, ...],
    opened: BlobOpener,
    limits: UnpackLimits,
) -> StoredImage:
    """Unpack the layers that the store lacks, and record the image; while the store is `in_use`.

    *config* is the digest and the content of its configuration; the digest may be empty.
    """
    content = config[1]
    decoded = decode_config(content, layers=len(layers), what="the image's configuration")
    chains: list[str] = []
    notes = [*image_notes(decoded)]
    left = limits
    for layer, diff_id in zip(layers, decoded.rootfs.diff_ids or (), strict=True):
        chain = chain_id(chains, diff_id)
        stored = store.layer(chain)
        if stored is None:
            with opened(layer) as blob:
                stored = store.add_layer(
                    blob,
                    digest=layer.digest,
                    diff_id=diff_id,
                    parents=chains,
                    limits=left,
                )
        left = replace(left, size=left.size - stored.size, entries=left.entries - stored.entries)
        chains.append(chain)
        notes += stored.notes
    users, groups = store.accounts(chains)
    image = StoredImage(
        name=str(name),
        id=config[0] or sha256(content),
        digest=digest,
        layers=tuple(chains),
        size=limits.size - left.size,
        process=decoded.config or ProcessConfig(),
        users=users,
        groups=groups,
        notes=tuple(notes),
    )
    store.save(image)
    return image


# --- files ----------------------------------------------------------------------------------


def _read(blob: Blob) -> bytes:
    if blob.size > MAX_JSON:
        raise ImageError(f"a manifest or configuration is larger than {MAX_JSON} bytes")
    return os.pread(blob.descriptor, blob.size, blob.offset)


@contextmanager
def _opened(store: ImageStore, path: Path, limits: UnpackLimits) -> Iterator[Files]:
    if path.is_dir():
        with _Directory(path) as directory:
            yield directory
        return
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not compressed:
            yield _Archive(file)
            return
        with store.temporary() as work, (work / "archive").open("w+b") as plain:
            _decompress(file, plain, limits)
            yield _Archive(plain)


def _decompress(file: IO[bytes], plain: IO[bytes], limits: UnpackLimits) -> None:
    try:
        with gzip.GzipFile(fileobj=file) as source:
            size = 0
            while data := source.read(1 << 20):
                size += plain.write(data)
                space = shutil.disk_usage(plain.fileno())
                if size > limits.size or space.free < limits.free:
                    raise ImageError("the decompressed archive is too large")
    except (EOFError, gzip.BadGzipFile) as error:
        raise ImageError(f"not a valid archive: {error}") from error
    plain.flush()
    plain.seek(0)


class _Directory:
    """A layout in a directory, which may belong to another user."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: list[int] = []

    def __enter__(self) -> "_Directory":
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._opened:
            os.close(descriptor)

    def open(self, path: str) -> Blob | None:
        """Return a regular file; ``None`` if there is none."""
        top = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = open_beneath(top, path)
        except FileNotFoundError:
            return None
        finally:
            os.close(top)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise ImageError(f"{path!r} is not a regular file")
            opened = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(found)
        self._opened.append(opened)
        return Blob(opened, 0, os.fstat(opened).st_size)


class _Archive:
    """A layout in an uncompressed tar archive."""

    def __init__(self, file: IO[bytes]) -> None:
        self._descriptor = file.fileno()
        self._members: dict[str, tuple[int, int]] = {}
        links: dict[str, str] = {}
        try:
            with tarfile.open(fileobj=file, mode="r:", tarinfo=LimitedTarInfo) as archive:
                for number, member in enumerate(archive):
                    if number > _MAX_MEMBERS:
                        raise ImageError("the archive has too many files")
                    name = member.name.removeprefix("./")
                    if member.isreg() and not member.issparse():
                        self._members[name] = (member.offset_data, member.size)
                    elif member.issym():  # docker save links equal layers
                        parent = os.path.dirname(name)
                        links[name] = os.path.normpath(os.path.join(parent, member.linkname))
        except tarfile.TarError as error:
            raise ImageError(f"not a valid archive: {error}") from error
        for name, target in links.items():
            if target in self._members:
                self._members.setdefault(name, self._members[target])

    def open(self, path: str) -> Blob | None:
        """Return a regular file; ``None`` if there is none."""
        found = self._members.get(path)
        return None if found is None else Blob(self._descriptor, *found)
