"""Builds the images that the conformance cases ask for, as OCI layouts: nothing is downloaded.

Agnhost is that of Kubernetes; its image has BusyBox in place of Alpine. The others are stand-ins
with the programs and files that the cases use.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.images import BUSYBOX, ImageFiles, Layer, image

_REGISTRY = "registry.k8s.io"
_TESTING = f"{_REGISTRY}/e2e-test-images"
_PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"
)
_GROUP = "root:x:0:\nnobody:x:65534:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"
_SHELL = Path("/bin/bash-static")
"""Unlike that of Debian's BusyBox, it keeps variables whose names are not those of a shell."""
_WEB_ROOT = "usr/share/nginx/html"


def _base() -> Layer:
    """Return a layer with all programs of BusyBox."""
    applets = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True)
    layer = Layer()
    for name in ("bin", "etc", "home", "root", "sbin", "usr", "usr/bin", "var"):
        layer.dir(name)
    layer.dir("tmp", mode=0o1777)
    layer.file("bin/busybox", Path(BUSYBOX).read_bytes(), mode=0o755)
    for name in applets.stdout.split():
        if name not in ("busybox", "sh"):
            layer.link(f"bin/{name}", "busybox")
    layer.file("bin/sh", _SHELL.read_bytes(), mode=0o755)
    layer.link("usr/bin/env", "../../bin/busybox")
    return layer.file("etc/passwd", _PASSWD).file("etc/group", _GROUP)


def _add_programs(layer: Layer, *names: str) -> None:
    """Add programs of the machine with their libraries."""
    files: dict[str, str] = {}
    for name in names:
        program = shutil.which(name)
        if program is None:
            raise FileNotFoundError(f"the program {name} is missing, which cases run in agnhost")
        printed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True)
        files[os.path.join("/usr/bin", name)] = program
        files |= {path: path for path in re.findall(r"(/\S+) \(0x", printed.stdout)}
    made = {""}
    for target, source in files.items():
        parts = target.strip("/").split("/")
        for depth in range(1, len(parts)):
            directory = "/".join(parts[:depth])
            if directory not in made:
                layer.dir(directory)
                made.add(directory)
        layer.file("/".join(parts), Path(source).read_bytes(), mode=0o755)


def _sources() -> Path:
    """Return the directory of the Go module whose cases are run."""
    command = ("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
    result = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return Path(result.stdout.strip())


def _agnhost(programs: Path) -> ImageFiles:
    own = Layer()
    _add_programs(own, "curl", "dig", "getent", "nc")
    own.dir("uploads").file("agnhost", (programs / "agnhost").read_bytes(), mode=0o755)
    for name in ("localhost.crt", "localhost.key"):  # which cases serve, and one server uses
        own.file(name, (_sources() / "test/images/agnhost/porter" / name).read_bytes())
    own.link("agnhost-2", "agnhost")
    return image([_base(), own], {"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}, compress=False)


def _resolver() -> ImageFiles:
    """Return the image whose names are resolved by the C library of GNU."""
    own = Layer()
    _add_programs(own, "dig", "getent")
    return image([_base(), own], {"Cmd": ["sh"]}, compress=False)


def _web_server() -> ImageFiles:
    """Return an image that serves the files that NGINX's does."""
    own = Layer().dir("usr/share").dir("usr/share/nginx").dir(_WEB_ROOT)
    own.file(f"{_WEB_ROOT}/index.html", "<h1>Welcome to nginx!</h1>\n")
    command = ["httpd", "-f", "-p", "80", "-h", f"/{_WEB_ROOT}"]
    return image([_base(), own], {"Cmd": command}, compress=False)


def _picture_server(name: str) -> ImageFiles:
    """Return an image of the two between which cases update pods."""
    data = json.dumps({"image": f"{name}.jpg"})
    own = (
        Layer()
        .file("data.json", data)
        .file(f"{name}.jpg", "")
        .dir("www")
        .file("www/data.json", data)
    )
    command = ["httpd", "-f", "-p", "80", "-h", "/www"]
    return image([_base(), own], {"Cmd": command}, compress=False)


def images(programs: Path) -> Iterator[tuple[str, ImageFiles]]:
    """Yield the names and images; *programs* is the directory of the programs that are built."""
    yield f"{_TESTING}/agnhost:2.63.0", _agnhost(programs)
    yield f"{_TESTING}/agnhost:2.55", _agnhost(programs)
    yield f"{_TESTING}/glibc-dns-testing:2.0.0", _resolver()
    yield f"{_TESTING}/busybox:1.37.0-1", image([_base()], {"Cmd": ["sh"]}, compress=False)
    pause = Layer().file("pause", (programs / "pause").read_bytes(), mode=0o755)
    yield f"{_REGISTRY}/pause:3.10.2", image([pause], {"Entrypoint": ["/pause"]}, compress=False)
    yield f"{_TESTING}/nginx:1.15-4", _web_server()
    yield f"{_TESTING}/nginx:1.27-0", _web_server()
    for name in ("nautilus", "kitten"):
        yield f"{_TESTING}/{name}:1.8", _picture_server(name)
    own = Layer().file("bin/nnp", (programs / "nonewprivs").read_bytes(), mode=0o6755)
    yield f"{_TESTING}/nonewprivs:1.4", image([_base(), own], {"Cmd": ["nnp"]}, compress=False)
    user = {"Entrypoint": ["/bin/id"], "User": "1234"}
    yield f"{_TESTING}/nonroot:1.5", image([_base()], user, compress=False)


def write_layout(directory: Path, built: ImageFiles) -> None:
    """Write an image as OCI layout."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    for digest, data in (*built.blobs.items(), (built.digest, built.manifest_bytes)):
        (blobs / digest.removeprefix("sha256:")).write_bytes(data)
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entry = {
        "mediaType": built.manifest["mediaType"],
        "digest": built.digest,
        "size": len(built.manifest_bytes),
    }
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
