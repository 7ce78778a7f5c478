"""Store of images: unpacked layers, shared by images, and one record per name.

```
images/lock                 shared: users of layers; exclusive: their removal
images/names/<sha256>.json  a `StoredImage`; its file name is the hash of the image's name
images/layers/<chain>/fs    a layer on top of those below it, of which the chain id is a hash
images/layers/<chain>/layer.json
images/tmp/                 what is incomplete; removed when no process uses the store
```

A layer is unpacked into `tmp`, flushed to disk, and renamed; then the record is written. So a kill
at any point leaves nothing incomplete outside `tmp`.
"""

import ctypes
import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ....kube.private_files import ensure_private_dir
from ..runtime.ids import IMAGES, chown
from ..runtime.removal import remove_tree
from ..runtime.shim import replace_file
from ..runtime.stop_signals import signal_number
from .errors import ImageError
from .formats import ImageConfig, ProcessConfig
from .layer_tree import OPAQUE, LayerStack
from .references import Reference
from .unpacking import Blob, UnpackedLayer, UnpackLimits, unpack

_LIBC = ctypes.CDLL(None, use_errno=True)
_SHOWN_PODS = 5
_MAX_DATABASE = 1 << 20
"""Bytes of an image's `/etc/passwd` and `/etc/group` that are read."""


class Account(msgspec.Struct, frozen=True):
    """A line of an image's `/etc/passwd`, or of `/etc/group` (without home)."""

    name: str
    uid: int
    gid: int = 0
    home: str = ""


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that can be run."""

    name: str
    """Complete name, as `Reference` has it."""

    id: str
    """Digest of its configuration."""

    digest: str = ""
    """Digest of what the name referred to, a manifest or an index."""

    layers: tuple[str, ...]
    """Chain ids, the lowest layer first."""

    size: int
    """Bytes of its layers."""

    process: ProcessConfig
    users: tuple[Account, ...] = ()
    groups: tuple[Account, ...] = ()
    notes: tuple[str, ...] = ()
    """What of the image has no effect here."""

    @property
    def image_id(self) -> str:
        """The image id of statuses: its digest, with the repository if it is known."""
        if not self.digest:
            return self.id
        path = self.name.partition("@")[0]
        if ":" in path.rpartition("/")[2]:
            path = path.rpartition(":")[0]
        return f"{path}@{self.digest}"


@dataclass(frozen=True, slots=True)
class ImageUse:
    """An image that a container of a pod runs, or runs again when it restarts."""

    pod: str
    """Namespace and name."""

    image: str
    layers: tuple[str, ...]


class StoredLayer(msgspec.Struct, frozen=True):
    """A complete layer."""

    size: int
    entries: int = 0
    notes: tuple[str, ...] = ()


class StoreBusyError(ImageError):
    """Another process loads, pulls or removes an image."""


class ImageStore:
    """The images of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / "images"
        self._names, self._layers, self._tmp = (
            self.root / name for name in ("names", "layers", "tmp")
        )
        self._is_prepared = False

    def prepare(self) -> None:
        """Create the directories.

        Raises:
            OSError: that is impossible, or other users control one of them.
        """
        for path in (self.root, self._names, self._layers, self._tmp):
            ensure_private_dir(path)
        self._is_prepared = True

    # --- locks ------------------------------------------------------------------------------

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep all layers from being removed; blocks during a removal."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        lock = self._open_lock()
        try:
            fcntl.flock(lock, how)
            yield
        except BlockingIOError:
            raise StoreBusyError("an image is being loaded or pulled; try again later") from None
        finally:
            os.close(lock)

    def _open_lock(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        if self._is_prepared:  # since then no other user could replace the directories
            with suppress(FileNotFoundError):
                return os.open(self.root / "lock", flags, 0o600)
        self.prepare()
        return os.open(self.root / "lock", flags, 0o600)

    # --- images -----------------------------------------------------------------------------

    def images(self) -> list[StoredImage]:
        """Return all images, by name."""
        found = map(_read_image, self._names.glob("*.json"))
        return sorted(filter(None, found), key=lambda image: image.name)

    def find(self, reference: Reference) -> StoredImage | None:
        """Return an image by name or by its repository and digest."""
        stored = _read_image(self._record(str(reference)))
        if stored is not None or not reference.digest:
            return stored
        wanted = str(reference)
        return next((each for each in self.images() if each.image_id == wanted), None)

    def remove(self, name: str, *, uses: Callable[[], Iterable[ImageUse]]) -> None:
        """Remove the name of an image, and layers that neither other images nor pods need.

        Raises:
            ImageError: a pod uses it; StoreBusyError: another process uses the store.
            FileNotFoundError: there is no such image.
        """
        with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            found = list(uses())
            pods = sorted({use.pod for use in found if use.image == name})
            if pods:
                raise ImageError(f"{name} is in use by {', '.join(pods[:_SHOWN_PODS])}")
            self._record(name).unlink()
            _flush(self._names)
            self._collect(found)

    def collect(self, uses: Callable[[], Iterable[ImageUse]]) -> None:
        """Remove what was left incomplete, and unused layers, unless the store is in use.

        Raises:
            ImageError: what is used is not known.
        """
        if not self.root.is_dir():
            return
        with suppress(StoreBusyError), self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            self._collect(uses())

    def _collect(self, uses: Iterable[ImageUse]) -> None:
        needed = {chain for used in (self.images(), uses) for each in used for chain in each.layers}
        for path in [*self._tmp.iterdir(), *self._layers.iterdir()]:
            if path.parent == self._tmp or path.name not in needed:
                if path.is_dir() and not path.is_symlink():
                    remove_tree(path)
                else:
                    path.unlink()

    def save(self, image: StoredImage) -> None:
        """Write the record of an image, whose layers are complete, durably."""
        replace_file(str(self._record(image.name)), msgspec.json.encode(image).decode())
        _flush(self._names)

    def _record(self, name: str) -> Path:
        return self._names / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    # --- layers -----------------------------------------------------------------------------

    def layer_dir(self, chain: str) -> Path:
        """Return the directory of a layer's files."""
        return self._layers / chain / "fs"

    def layer(self, chain: str) -> StoredLayer | None:
        """Return a layer, if it is complete."""
        with suppress(FileNotFoundError):
            text = (self._layers / chain / "layer.json").read_bytes()
            return msgspec.json.decode(text, type=StoredLayer)
        return None

    def add_layer(
        self, blob: Blob, *, digest: str, diff_id: str, parents: Sequence[str], limits: UnpackLimits
    ) -> StoredLayer:
        """Unpack a layer on top of *parents*, chain ids, the lowest first; while `in_use`.

        Raises:
            ImageError: the blob has other digests, or is invalid, or exceeds a limit.
        """
        with self.temporary() as work:
            content = work / "fs"
            content.mkdir(mode=0o700)
            with ExitStack() as opened:
                top = _open_dir(content)
                opened.callback(os.close, top)
                if os.geteuid() == 0:
                    chown(content, IMAGES)
                below = []
                for chain in reversed(parents):
                    below.append(_open_dir(self.layer_dir(chain)))
                    opened.callback(os.close, below[-1])
                found = unpack(blob, top, below, limits=limits)
            if digest and found.digest != digest:
                raise ImageError(f"a layer has the digest {found.digest}, not {digest}")
            if found.diff_id != diff_id:
                raise ImageError(f"a layer unpacks to the digest {found.diff_id}, not {diff_id}")
            layer = StoredLayer(found.size, found.entries, tuple(_notes(found)))
            replace_file(str(work / "layer.json"), msgspec.json.encode(layer).decode())
            _flush_file_system(work)
            with suppress(OSError):  # another process was faster; its layer is the same
                work.rename(self._layers / chain_id([*parents], diff_id))
            _flush(self._layers)
        return layer

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """Create a directory in `tmp`; afterwards it is removed, unless it was moved."""
        path = self._tmp / secrets.token_hex(8)
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            if path.exists():
                remove_tree(path)

    def accounts(self, layers: Sequence[str]) -> tuple[tuple[Account, ...], tuple[Account, ...]]:
        """Return the users and groups of an image with these layers, the lowest first."""
        with ExitStack() as opened:
            descriptors = []
            for chain in reversed(layers):
                descriptors.append(_open_dir(self.layer_dir(chain)))
                opened.callback(os.close, descriptors[-1])
            stack = LayerStack(descriptors)
            users = _fields(stack.read_file("/etc/passwd", _MAX_DATABASE), 6)
            groups = _fields(stack.read_file("/etc/group", _MAX_DATABASE), 3)
        return (
            tuple(Account(f[0], int(f[2]), int(f[3]), f[5]) for f in users if f[3].isdecimal()),
            tuple(Account(f[0], int(f[2])) for f in groups),
        )


def support_error(data_dir: Path) -> str:
    """Return why the file system cannot store images; empty if it can."""
    store = ImageStore(data_dir)
    with store.in_use(), store.temporary() as path:
        try:
            os.setxattr(path, OPAQUE, b"y")
            os.mknod(path / "whiteout", 0o020000)
        except OSError as error:
            return f"the file system of {data_dir} cannot store images: {error.strerror}"
    return ""


def chain_id(parents: Sequence[str], diff_id: str) -> str:
    """Return the id of a layer on top of *parents*, which is the same in all images.

    As in OCI's specification, without the prefix ``sha256:``.
    """
    own = diff_id.removeprefix("sha256:")
    if not parents:
        return own
    return hashlib.sha256(f"sha256:{parents[-1]} sha256:{own}".encode()).hexdigest()


def image_notes(config: ImageConfig) -> Iterator[str]:
    """Yield what of a configuration has no effect."""
    process = config.config or ProcessConfig()
    if process.healthcheck:
        yield "its HEALTHCHECK is ignored, as in Kubernetes: pods have probes"
    if process.stop_signal and signal_number(process.stop_signal) is None:
        yield f"its STOPSIGNAL {process.stop_signal[:20]!r} is unknown: containers get SIGTERM"


def _notes(found: UnpackedLayer) -> Iterator[str]:
    if found.skipped_devices:
        yield f"{found.skipped_devices} device files were left out: pods have their own /dev"
    if found.foreign_owners:
        yield f"{found.foreign_owners} files have owners above 65535, and belong to 65534 here"


def _fields(data: bytes, count: int) -> list[list[str]]:
    """Return the lines of a database of users or groups that have at least *count* fields."""
    lines = (line.split(":") for line in data.decode(errors="replace").splitlines())
    return [f for f in lines if len(f) >= count and f[0] and f[2].isdecimal() and len(f[2]) < 11]


def _read_image(path: Path) -> StoredImage | None:
    """Return an image; ``None`` if there is none, or its record is damaged."""
    with suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=StoredImage)
    return None


def _open_dir(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _flush(directory: Path) -> None:
    opened = _open_dir(directory)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _flush_file_system(path: Path) -> None:
    """Write all files of the file system to disk: a layer has too many to flush one by one."""
    opened = _open_dir(path)
    try:
        if _LIBC.syncfs(opened) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(opened)
