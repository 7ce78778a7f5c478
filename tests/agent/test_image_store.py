"""The store of images: what is unpacked, and what hostile archives cannot do."""

import asyncio
import gzip
import io
import json
import os
import stat
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.images import ImageFiles, Layer, digest, entry, image, pack, write_layout
from support.polling import wait_for

from batholith.local.agent.images import archives, references
from batholith.local.agent.images.errors import ImageError
from batholith.local.agent.images.layer_tree import LayerStack, is_whiteout
from batholith.local.agent.images.store import ImageStore, ImageUse, StoreBusyError, StoredImage
from batholith.local.agent.images.unpacking import UnpackLimits
from batholith.local.agent.runtime.ids import IMAGES

pytestmark = pytest.mark.process

NAME = "registry.example/app:1"
NO_RESERVE = UnpackLimits(free=0)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "data")


@pytest.fixture
def load(store: ImageStore, tmp_path: Path) -> Callable[..., StoredImage]:
    """Load an image of some layers."""
    count = 0

    def load_image(
        *layers: Layer | bytes, name: str = NAME, limits: UnpackLimits = NO_RESERVE, **more: Any
    ) -> StoredImage:
        nonlocal count
        count += 1
        layout = write_layout(tmp_path / f"layout-{count}", name, image(layers, **more))
        return archives.load(store, layout, limits=limits)[0]

    return load_image


def content(store: ImageStore, stored: StoredImage, path: str) -> bytes | None:
    """Return a file as a container of the image would see it; ``None`` if there is none."""
    opened = [os.open(store.layer_dir(each), os.O_RDONLY) for each in reversed(stored.layers)]
    try:
        stack = LayerStack(opened)
        if stack.stat(stack.resolve(path.split("/"))) is None:
            return None
        return stack.read_file(path, 1000)
    finally:
        for each in opened:
            os.close(each)


def is_untouched(store: ImageStore) -> bool:
    """Return whether nothing is stored, and nothing was left behind."""
    return [path for path in store.root.rglob("*") if path.name != "lock" and path.is_file()] == []


# --- archives -------------------------------------------------------------------------------


def docker_archive(path: Path, files: ImageFiles, layers: list[bytes]) -> Path:
    """Write an archive as `docker save` does."""
    config = files.blobs[files.manifest["config"]["digest"]]
    created = {f"{number}/layer.tar": data for number, data in enumerate(layers)}
    listed = [{"Config": "config.json", "RepoTags": ["app:1"], "Layers": list(created)}]
    created |= {"config.json": config, "manifest.json": json.dumps(listed).encode()}
    with tarfile.open(path, "w") as archive:
        for name, data in created.items():
            archive.addfile(entry(name, size=len(data)), io.BytesIO(data))
    return path


@pytest.mark.parametrize("form", ["directory", "archive", "compressed archive", "docker save"])
def test_images_are_loaded_from_layouts_and_archives(
    store: ImageStore, tmp_path: Path, form: str
) -> None:
    layers = [Layer().file("a", "1"), Layer().file("b", "2")]
    files = image(layers, {"Cmd": ["/a"]})
    source = write_layout(tmp_path / "layout", "docker.io/library/app:1", files)
    if form == "docker save":
        source = docker_archive(tmp_path / "saved.tar", files, [each.tar() for each in layers])
    elif form != "directory":
        source = pack(source, compress=form == "compressed archive")
    [loaded] = archives.load(store, source, limits=NO_RESERVE)
    assert loaded == store.find(references.parse("app:1"))
    assert loaded.process.cmd == ("/a",)
    assert loaded.id == files.manifest["config"]["digest"]
    own_digest = "" if form == "docker save" else f"docker.io/library/app@{files.digest}"
    assert loaded.image_id == (own_digest or loaded.id)
    assert (content(store, loaded, "a"), content(store, loaded, "b")) == (b"1", b"2")


def test_index_of_several_platforms_gives_the_image_of_this_machine(
    store: ImageStore, tmp_path: Path
) -> None:
    files, other = image([Layer().file("a", "mine")]), image([], os="plan9")
    layout = write_layout(tmp_path / "layout", NAME, files)
    entries = [
        {
            "digest": each.digest,
            "size": len(each.manifest_bytes),
            "platform": {"os": system, "architecture": json.loads(config)["architecture"]},
        }
        for each, system in ((other, "plan9"), (files, "linux"))
        for config in [each.blobs[each.manifest["config"]["digest"]]]
    ]
    index = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
    (layout / "blobs/sha256" / digest(index)[7:]).write_bytes(index)
    target = {"digest": digest(index), "size": len(index)}
    target["annotations"] = {"org.opencontainers.image.ref.name": NAME}
    (layout / "index.json").write_text(json.dumps({"manifests": [target]}))
    [loaded] = archives.load(store, layout, limits=NO_RESERVE)
    assert content(store, loaded, "a") == b"mine"
    assert loaded.image_id.endswith(digest(index)), "the digest is that of the index"


def test_image_of_another_platform_is_rejected(load: Callable[..., StoredImage]) -> None:
    with pytest.raises(ImageError, match="the image is for 'linux/vax', this machine is linux/"):
        load(Layer().file("a"), architecture="vax")


def test_image_without_a_name_needs_one(store: ImageStore, tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", "", image([Layer().file("a")]))
    with pytest.raises(ImageError, match="--name"):
        archives.load(store, layout)
    [loaded] = archives.load(store, layout, name="app", limits=NO_RESERVE)
    assert loaded.name == "docker.io/library/app:latest"


def test_layers_are_unpacked_once_and_shared(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    base = Layer().file("base", "x")
    first = load(base, Layer().file("one"), name="one")
    inode = (store.layer_dir(first.layers[0]) / "base").stat().st_ino
    second = load(base, Layer().file("two"), name="two")
    assert first.layers[0] == second.layers[0]
    assert (store.layer_dir(second.layers[0]) / "base").stat().st_ino == inode
    assert len(list((store.root / "layers").iterdir())) == 3


@pytest.mark.parametrize("changed", ["layer", "config", "manifest", "diff_id", "size"])
def test_content_with_another_digest_is_not_stored(
    store: ImageStore, tmp_path: Path, changed: str
) -> None:
    files = image([Layer().file("a")])
    if changed == "diff_id":
        files = image([Layer().file("a")], rootfs={"diff_ids": [digest(b"other")]})
    layout = write_layout(tmp_path / "layout", NAME, files)
    blobs = {
        "layer": files.manifest["layers"][0]["digest"],
        "config": files.manifest["config"]["digest"],
        "manifest": files.digest,
        "size": files.manifest["layers"][0]["digest"],
    }
    if changed in blobs:
        path = layout / "blobs/sha256" / blobs[changed][7:]
        data = path.read_bytes()
        same_size = gzip.compress(Layer().file("b").tar(), mtime=0).ljust(len(data), b"\0")
        replaced = same_size if changed == "layer" else data.replace(b"2", b"3")
        path.write_bytes(data + b" " if changed == "size" else replaced)
    with pytest.raises(ImageError, match=r"digest|bytes, not"):
        archives.load(store, layout, limits=NO_RESERVE)
    assert is_untouched(store)


@pytest.mark.parametrize(
    "text", ['{"manifests": 3}', "[", '{"manifests": []}', '{"manifests": [{"size": 1}]}']
)
def test_malformed_index_is_reported(store: ImageStore, tmp_path: Path, text: str) -> None:
    layout = write_layout(tmp_path / "layout", NAME, image([]))
    (layout / "index.json").write_text(text)
    with pytest.raises(ImageError, match=r"index\.json"):
        archives.load(store, layout)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "link"])
def test_archive_names_no_files_outside_of_it(store: ImageStore, tmp_path: Path, path: str) -> None:
    layout = tmp_path / "layout"
    layout.mkdir()
    (tmp_path / "secret").write_text("{}")
    (layout / "link").symlink_to("/etc/passwd")
    (layout / "manifest.json").write_text(
        json.dumps([{"Config": path, "RepoTags": ["a:1"], "Layers": []}])
    )
    with pytest.raises(OSError, match=r"cross-device|too many levels|Invalid cross"):
        archives.load(store, layout)


# --- hostile layers -------------------------------------------------------------------------


def sparse_entry() -> bytes:
    """Return an archive of a sparse file of 2 PiB."""
    created = entry("sparse")
    created.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(1 << 51),
    }
    return Layer().add(created, b"0\n".ljust(512, b"\0")).tar()


def header_bomb() -> bytes:
    """Return an archive with a header of 1 GiB, of which it has only the beginning."""
    created = entry("long", tarfile.XHDTYPE)
    created.size = 1 << 30
    return created.tobuf() + bytes(10240)


REJECTED: dict[str, tuple[Layer | bytes, str]] = {
    "parent directory": (Layer().file("a/../../b"), r"'\.\.'"),
    "hard link to a file outside": (Layer().hard_link("a", "/etc/passwd"), "not in its layer"),
    "hard link upwards": (Layer().hard_link("a", "../../etc/passwd"), r"'\.\.'"),
    "hard link through a link": (
        Layer().link("out", "/etc").hard_link("a", "out/passwd"), "not in its layer",
    ),
    "hard link to a directory": (Layer().dir("d").hard_link("a", "d"), "not in its layer"),
    "file below a file": (Layer().file("a").file("a/b"), "is not a directory"),
    "links in a circle": (Layer().link("a", "b").link("b", "a").file("a/f"), "too many links"),
    "link to itself": (Layer().link("a", "a/a/a").file("a/f"), "too many links"),
    "long name": (Layer().file("n" * 300), "File name too long"),
    "long path": (Layer().file("n/" * 3000 + "f"), "longer than 4096"),
    "root is a file": (Layer().file("."), "root directory"),
    "file in a whiteout": (Layer().file(".wh.a/b"), "inside a whiteout"),
    "whiteout of the parent": (Layer().file("a/.wh..."), "invalid whiteout"),
    "unknown type": (Layer().add(entry("a", b"Z")), "unknown type|not a valid"),
    "sparse file": (sparse_entry(), "sparse"),
    "header of a gigabyte": (header_bomb(), "header of a layer is larger"),
    "garbage": (b"garbage" * 1000, "not a valid archive"),
    "garbage after an entry": (
        Layer().file("a").tar()[:512] + b"garbage." * 640, "not a valid archive",
    ),
    "end in a file": (Layer().file("a", b"x" * 5000).tar()[:2048], "not a valid archive|ends in"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd, which is not supported"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_hostile_layer_is_rejected(
    store: ImageStore, load: Callable[..., StoredImage], name: str
) -> None:
    layer, message = REJECTED[name]
    with pytest.raises(ImageError, match=message):
        load(layer, compress=name != "zstd")
    assert is_untouched(store)


def test_files_behind_links_out_of_the_image_stay_inside(
    store: ImageStore, load: Callable[..., StoredImage], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    depth = "../" * 40
    loaded = load(
        Layer().link("abs", str(outside)).file("abs/f", "1")
        .link("rel", f"{depth}{outside}2").file("rel/f", "2")
        .file(f"{outside}3/f", "3")
        .link("passwd", "/etc/passwd").file("passwd", "replaced"),
    )  # fmt: skip
    assert list(outside.iterdir()) == []
    assert not Path(f"{outside}2").exists()
    assert not Path(f"{outside}3").exists()
    for number, path in enumerate(("abs/f", "rel/f", f"{outside}3/f"), 1):
        assert content(store, loaded, path) == str(number).encode()
    assert content(store, loaded, "passwd") == b"replaced"


def test_links_out_of_lower_layers_stay_inside(
    store: ImageStore, load: Callable[..., StoredImage], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    loaded = load(Layer().link("lib", str(outside)), Layer().file("lib/f", "1"))
    assert list(outside.iterdir()) == []
    assert content(store, loaded, "lib/f") == b"1"
    assert content(store, loaded, f"{outside}/f") == b"1", "written through the link, inside"


def test_devices_and_forged_whiteouts_are_left_out(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    loaded = load(
        Layer().file("kept", "1"),
        Layer().add(entry("kept", tarfile.CHRTYPE)).add(entry("sda", tarfile.BLKTYPE, devmajor=8)),
    )
    assert content(store, loaded, "kept") == b"1"
    assert content(store, loaded, "sda") is None
    assert "2 device files" in loaded.notes[0]


def test_files_have_no_rights_on_the_machine(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    xattrs = {
        "SCHILY.xattr.security.capability": "\1\0\0\2\xff\xff\xff\xff" + "\0" * 12,
        "SCHILY.xattr.user.overlay.opaque": "y",
    }
    loaded = load(
        Layer().file("su", "x", mode=0o6755).dir("d", mode=0o2777, pax_headers=xattrs)
        .file("caps", "x", pax_headers=xattrs).file("theirs", uid=1000, gid=50)
    )  # fmt: skip
    top = store.layer_dir(loaded.layers[0])
    for path in (top, *top.rglob("*")):
        found = path.lstat()
        assert not found.st_mode & 0o6000
        assert os.listxattr(path) == []
        first = IMAGES if os.geteuid() == 0 else 0
        assert found.st_uid >= (first or os.geteuid())
    if os.geteuid() == 0:
        assert ((top / "theirs").stat().st_uid, (top / "theirs").stat().st_gid) == (
            IMAGES + 1000, IMAGES + 50,
        )  # fmt: skip
    parent = store.root.stat()
    assert stat.S_IMODE(parent.st_mode) == 0o700


def test_names_that_are_not_text_are_kept(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    name = os.fsdecode(b"\xff\xfe \n")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(entry(name, size=1), io.BytesIO(b"x"))
    loaded = load(raw.getvalue())
    assert os.listdir(os.fsencode(store.layer_dir(loaded.layers[0]))) == [b"\xff\xfe \n"]


def test_later_entries_replace_earlier_ones(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    loaded = load(
        Layer().file("a", "1").file("a", "2")
        .file("b", "file").dir("b").file("b/c", "3")
        .dir("d/e/f").file("d", "4")
        .file("target", "5").link("g", "target").file("g", "6")
        .file("h", "7").hard_link("i", "h").file("h", "8")
    )  # fmt: skip
    found = {
        name: content(store, loaded, name) for name in ("a", "b/c", "d", "target", "g", "h", "i")
    }
    assert found == {
        "a": b"2", "b/c": b"3", "d": b"4", "target": b"5", "g": b"6", "h": b"8", "i": b"7",
    }  # fmt: skip


def test_whiteouts_remove_files_of_lower_layers_only(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    base = (
        Layer().file("a", "1").file("d/x", "1").file("d/y", "1").file("e/x", "1").file("f/x", "1")
    )
    upper = (
        Layer().file(".wh.a").file(".wh.missing")
        .file("d/x", "2").file("d/.wh..wh..opq").file("d/z", "2")
        .file(".wh.e").dir("e").file("e/new", "2")
        .file("f/x", "2").file(".wh.f")
        .file(".wh..wh.plnk", "ignored")
    )  # fmt: skip
    loaded = load(base, upper)
    seen = {name: content(store, loaded, name) for name in (
        "a", "d/x", "d/y", "d/z", "e/x", "e/new", "f/x", "missing",
    )}  # fmt: skip
    assert seen == {
        "a": None, "d/x": b"2", "d/y": None, "d/z": b"2", "e/x": None, "e/new": b"2", "f/x": b"2",
        "missing": None,
    }  # fmt: skip
    third = load(base, upper, Layer().file("a", "3"), name="third")
    assert content(store, third, "a") == b"3"


def test_directories_that_a_layer_implies_keep_their_attributes(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    loaded = load(Layer().dir("tmp", mode=0o1777, uid=7), Layer().file("tmp/a/b"))
    found = (store.layer_dir(loaded.layers[1]) / "tmp").stat()
    assert stat.S_IMODE(found.st_mode) == 0o1777
    if os.geteuid() == 0:
        assert found.st_uid == IMAGES + 7


def test_directories_without_permissions_can_be_filled(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    loaded = load(Layer().dir("d", mode=0o555).dir("n", mode=0).file("d/f", "1").file("n/f", "2"))
    assert (store.layer_dir(loaded.layers[0]) / "d").stat().st_mode & 0o777 == 0o555
    assert content(store, loaded, "d/f") == b"1"
    store.remove(loaded.name, uses=list)
    assert list((store.root / "layers").iterdir()) == []


def test_owners_beyond_those_of_pods_become_nobody(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    if os.geteuid():
        pytest.skip("a normal user owns all files itself")
    loaded = load(Layer().file("a", uid=197609, gid=5))
    found = (store.layer_dir(loaded.layers[0]) / "a").stat()
    assert (found.st_uid, found.st_gid) == (IMAGES + 65534, IMAGES + 5)
    assert "above 65535" in loaded.notes[0]


@pytest.mark.parametrize(
    ("layer", "limits", "message"),
    [
        (Layer().file("a", bytes(1 << 20)), UnpackLimits(size=1 << 19, free=0), "limit of 524288"),
        (Layer().tar() + bytes(1 << 20), UnpackLimits(size=1 << 19, free=0), "larger than 524288"),
        (Layer().dir("a").dir("b").dir("c"), UnpackLimits(entries=2, free=0), "more files"),
        (Layer().file("a"), UnpackLimits(free=1 << 60), "remain free"),
    ],
)
def test_limits_stop_bombs(
    store: ImageStore,
    load: Callable[..., StoredImage],
    layer: Layer | bytes,
    limits: UnpackLimits,
    message: str,
) -> None:
    with pytest.raises(ImageError, match=message):
        load(layer, limits=limits)
    assert is_untouched(store)


def test_limits_count_all_layers(load: Callable[..., StoredImage]) -> None:
    layers = [Layer().file(str(number), bytes(400_000)) for number in range(3)]
    with pytest.raises(ImageError, match="limit of"):
        load(*layers, limits=UnpackLimits(size=1_000_000, free=0))


def test_users_are_those_of_the_image_only(
    load: Callable[..., StoredImage], tmp_path: Path
) -> None:
    outside = tmp_path / "passwd"
    outside.write_text("outside:x:77:77::/:/bin/sh\n")
    etc = Layer().dir("etc").file("etc/group", "g:x:5:a\nbroken\n:x:6:\nbig:x:99999999999:\n")
    for number, target in enumerate((str(outside), "../" * 30 + str(outside), "passwd", "/")):
        loaded = load(etc, Layer().link("etc/passwd", target), name=f"linked{number}")
        assert loaded.users == ()
        assert [each.name for each in loaded.groups] == ["g"]
    own = (
        Layer().link("etc/passwd", "../own").file("own", "a:x:1:2::/home/a:/bin/sh\nb:x:y:z::/:\n")
    )
    [user] = load(etc, own).users
    assert (user.name, user.uid, user.gid, user.home) == ("a", 1, 2, "/home/a")


# --- crashes and removal --------------------------------------------------------------------

LOAD = """
import sys, pathlib
from batholith.local.agent.images import archives
from batholith.local.agent.images.store import ImageStore
from batholith.local.agent.images.unpacking import UnpackLimits
store = ImageStore(pathlib.Path(sys.argv[1]))
archives.load(store, pathlib.Path(sys.argv[2]), limits=UnpackLimits(free=0))
"""


async def test_killed_load_leaves_nothing_valid(store: ImageStore, tmp_path: Path) -> None:
    layers = [Layer().file("base", "1"), Layer()]
    for number in range(3000):
        layers[1].file(f"files/{number}", "x")
    layout = write_layout(tmp_path / "layout", NAME, image(layers))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOAD, str(tmp_path / "data"), str(layout)
    )
    await wait_for(lambda: any((store.root / "tmp").glob("*/fs/files/*")))
    process.kill()
    await process.wait()
    assert store.images() == []
    assert [store.layer(path.name) is not None for path in (store.root / "layers").iterdir()] == [
        True
    ]

    def is_collected() -> bool:
        store.collect(list)  # the unpacking process may still hold the store's lock
        return not list((store.root / "tmp").iterdir())

    await wait_for(is_collected)
    assert list((store.root / "layers").iterdir()) == [], "no image needs the first layer"
    [loaded] = archives.load(store, layout, limits=NO_RESERVE)
    assert content(store, loaded, "files/2999") == b"x"


def test_damaged_record_is_no_image(store: ImageStore, load: Callable[..., StoredImage]) -> None:
    damaged, other = load(Layer().file("a")), load(Layer().file("b"), name="other")
    [record] = [each for each in (store.root / "names").iterdir() if NAME in each.read_text()]
    record.write_text("{")
    assert store.images() == [other]
    assert store.find(references.parse(NAME)) is None
    store.collect(list)
    assert store.layer(damaged.layers[0]) is None
    assert load(Layer().file("a")) == damaged


def test_removal_keeps_layers_of_other_images_and_pods(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    base = Layer().file("base")
    one, two = load(base, Layer().file("one"), name="one"), load(base, name="two")
    running = load(Layer().file("running"), name="three")
    replaced = load(Layer().file("newer"), name="three")
    uses = [ImageUse("default/p", "docker.io/library/other:1", running.layers)]
    store.remove(one.name, uses=lambda: uses)
    left = {path.name for path in (store.root / "layers").iterdir()}
    assert left == {*two.layers, *running.layers, *replaced.layers}
    assert store.find(references.parse("one")) is None
    store.remove(two.name, uses=list)
    assert {path.name for path in (store.root / "layers").iterdir()} == {*replaced.layers}


def test_image_of_a_pod_is_not_removed(store: ImageStore, load: Callable[..., StoredImage]) -> None:
    stored = load(Layer().file("a"))
    with pytest.raises(ImageError, match="in use by default/p"):
        store.remove(stored.name, uses=lambda: [ImageUse("default/p", NAME, stored.layers)])
    assert store.images() == [stored]


def test_nothing_is_removed_while_the_store_is_in_use(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    stored = load(Layer().file("a"))
    with store.in_use():
        with pytest.raises(StoreBusyError):
            store.remove(stored.name, uses=list)
        store.collect(list)
    assert store.images() == [stored]


def test_whiteout_in_a_layer_is_the_one_of_overlayfs(
    store: ImageStore, load: Callable[..., StoredImage]
) -> None:
    loaded = load(Layer().file("a"), Layer().file(".wh.a"))
    assert is_whiteout((store.layer_dir(loaded.layers[1]) / "a").lstat())


# --- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("me/app", "docker.io/me/app:latest"),
        ("index.docker.io/busybox", "docker.io/library/busybox:latest"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/a/b:v1", "localhost:5000/a/b:v1"),
        ("registry.example/a", "registry.example/a:latest"),
        ("[::1]:5000/a:1", "[::1]:5000/a:1"),
        (f"app:1@sha256:{'a' * 64}", f"docker.io/library/app@sha256:{'a' * 64}"),
    ],
)
def test_names_are_completed(text: str, complete: str) -> None:
    assert str(references.parse(text)) == complete


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "a:",
        "a:b:c",
        "UPPER",
        "a/../b",
        "/a",
        "a//b",
        "a@b",
        "a@sha256:1",
        "a b",
        "-a",
        "a" * 300,
    ],
)
def test_malformed_names_are_rejected(text: str) -> None:
    with pytest.raises(ImageError):
        references.parse(text)
