"""Images for tests, built as OCI layouts; nothing is downloaded."""

import functools
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from batholith.local.agent.images.formats import architecture

BUSYBOX = "/bin/busybox"
"""Statically linked; of Debian's package busybox-static."""

APPLETS = (
    "sh", "cat", "chmod", "chown", "echo", "env", "false", "head", "id", "kill", "ln", "ls",
    "mkdir", "mount", "mv", "printf", "ps", "pwd", "readlink", "rm", "sleep", "stat", "sync",
    "test", "touch", "true", "wc",
)  # fmt: skip


def entry(name: str, kind: bytes = tarfile.REGTYPE, **attributes: Any) -> tarfile.TarInfo:
    """Return an entry of a layer without content; directories have mode 755, files 644."""
    created = tarfile.TarInfo(name)
    created.type = kind
    created.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for key, value in attributes.items():
        setattr(created, key, value)
    return created


@dataclass
class Layer:
    """A layer; later entries of the same name replace earlier ones."""

    entries: list[tuple[tarfile.TarInfo, bytes]] = field(default_factory=list)

    def add(self, created: tarfile.TarInfo, content: bytes = b"") -> "Layer":
        """Add any entry."""
        created.size = len(content)
        self.entries.append((created, content))
        return self

    def file(self, name: str, content: bytes | str = b"", **attributes: Any) -> "Layer":
        """Add a regular file."""
        data = content.encode() if isinstance(content, str) else content
        return self.add(entry(name, **attributes), data)

    def dir(self, name: str, **attributes: Any) -> "Layer":
        """Add a directory."""
        return self.add(entry(name, tarfile.DIRTYPE, **attributes))

    def link(self, name: str, target: str) -> "Layer":
        """Add a symbolic link."""
        return self.add(entry(name, tarfile.SYMTYPE, linkname=target))

    def hard_link(self, name: str, target: str) -> "Layer":
        """Add a hard link."""
        return self.add(entry(name, tarfile.LNKTYPE, linkname=target))

    def tar(self) -> bytes:
        """Return the uncompressed archive."""
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for created, content in self.entries:
                archive.addfile(created, io.BytesIO(content))
        return written.getvalue()


def digest(data: bytes) -> str:
    """Return the SHA-256 digest."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def busybox() -> Layer:
    """Return a layer with a shell and some programs; the test is skipped without busybox."""
    if not Path(BUSYBOX).exists():
        if "busybox" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("busybox-static is required and not installed")
        pytest.skip("busybox-static is not installed")
    layer = Layer().dir("bin").dir("etc").dir("tmp", mode=0o1777)
    layer.file("bin/busybox", Path(BUSYBOX).read_bytes(), mode=0o755)
    for name in APPLETS:
        layer.link(f"bin/{name}", "busybox")
    layer.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\napp:x:1234:4321::/home/app:/bin/sh\n")
    return layer.file("etc/group", "root:x:0:\nstaff:x:50:\n")


@functools.cache
def _compressed(archive: bytes) -> bytes:
    """Return a layer as stored: most tests use the same one, and its compression takes longest."""
    return gzip.compress(archive, compresslevel=1, mtime=0)


@dataclass
class ImageFiles:
    """The blobs of an image."""

    manifest: dict[str, Any]
    blobs: dict[str, bytes]

    @property
    def manifest_bytes(self) -> bytes:
        """The manifest as stored."""
        return json.dumps(self.manifest).encode()

    @property
    def digest(self) -> str:
        """Digest of the manifest."""
        return digest(self.manifest_bytes)


def image(
    layers: Sequence[Layer | bytes],
    config: dict[str, Any] | None = None,
    *,
    compress: bool = True,
    **top: Any,
) -> ImageFiles:
    """Return an image of this machine's architecture; layers may be given as archives."""
    archives = [each.tar() if isinstance(each, Layer) else each for each in layers]
    packed = [_compressed(each) if compress else each for each in archives]
    document = {
        "architecture": architecture(),
        "os": "linux",
        "config": config or {},
        "rootfs": {"type": "layers", "diff_ids": [digest(each) for each in archives]},
        **top,
    }
    text = json.dumps(document).encode()
    kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if compress else "")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(text),
            "size": len(text),
        },
        "layers": [{"mediaType": kind, "digest": digest(p), "size": len(p)} for p in packed],
    }
    return ImageFiles(manifest, {digest(data): data for data in (text, *packed)})


def write_layout(directory: Path, name: str, files: ImageFiles) -> Path:
    """Write an OCI layout of one image."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for key, data in {**files.blobs, files.digest: files.manifest_bytes}.items():
        (blobs / key.removeprefix("sha256:")).write_bytes(data)
    target: dict[str, Any] = {
        "mediaType": files.manifest["mediaType"],
        "digest": files.digest,
        "size": len(files.manifest_bytes),
    }
    if name:
        target["annotations"] = {"io.containerd.image.name": name}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [target]}))
    (directory / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return directory


def pack(directory: Path, *, compress: bool = False) -> Path:
    """Return an archive of a layout."""
    kind = "gztar" if compress else "tar"
    return Path(shutil.make_archive(str(directory), kind, root_dir=directory))
