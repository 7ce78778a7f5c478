"""The root file system of a container that runs an image: its layers, and the pod's mounts.

Imported by `shim`, so of Batholith it imports only `mounting` and `forking`. The image is hostile,
and this process may be root: paths in it are resolved as inside of it, by descriptor, and the
directories of /dev, /proc and /sys may not be links. Nothing of it is executed here.
"""

import ctypes
import os
import signal
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence

TYPE_CHECKING = False  # as in `typing`, which each start of a container would take time to import
if TYPE_CHECKING:
    from typing import Any

if __package__:
    from . import mounting
    from .mounting import CannotStartError, HostChangedError
else:
    import mounting  # type: ignore[import-not-found, no-redef]
    from mounting import CannotStartError, HostChangedError  # type: ignore[no-redef]

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT = 428, 429  # the same on every architecture
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_AT_FDCWD, _AT_EMPTY_PATH, _MOVE_FROM_EMPTY_PATH = -100, 0x1000, 4
_ATTR_IDMAP = 0x00100000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_CLONE_VM = 0x100
_SLEEPER_SECONDS = 60
_SLEEPER_STACK = ctypes.create_string_buffer(1 << 14)
_MAX_LINKS = 40
_LAYERS_SIZE = 1 << 20
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_layer_ids(launch: "Mapping[str, Any]") -> int:
    """Return a user namespace as a descriptor, by which the owners of layers are those of the pod.

    It is -1 if none is needed: there are no layers to mount, or they belong to this process's user.

    Raises:
        CannotStartError: the kernel does not permit it.
    """
    owner = launch["ids"]["base"]
    images = [each["image"] for each in launch.get("volume_images", ())]
    if launch.get("image"):
        images.append(launch["image"])
    firsts = {each["first_id"] for each in images if each["overlay"]}
    if owner is None or not firsts:
        return -1
    (first,) = firsts  # the layers of all images belong to one range of ids
    child = _start_in_user_namespace()
    try:
        for name in ("uid_map", "gid_map"):
            ids = f"{first} {owner} {mounting.ID_RANGE_SIZE}"
            mounting.write_proc_file(f"/proc/{child}/{name}", ids)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _start_in_user_namespace() -> int:
    """Start a process that sleeps in a new user namespace; return its process id.

    It shares the memory of this one, and has a stack of its own: it executes nothing but a function
    of libc. The copy of this process that a fork makes would take ten times as long. If this
    process is killed, it exits when it has slept.

    Raises:
        CannotStartError: the kernel does not permit it.
    """
    top = ctypes.addressof(_SLEEPER_STACK) + len(_SLEEPER_STACK) & -16
    flags = _CLONE_VM | mounting.NEW_USER | signal.SIGCHLD
    child: int = _LIBC.clone(
        _LIBC.sleep, ctypes.c_void_p(top), flags, ctypes.c_void_p(_SLEEPER_SECONDS)
    )
    mounting.check_syscall(child, "clone")
    return child


def build(
    image: Mapping[str, "Any"],
    writable: str,
    root: str,
    steps: Iterable[Sequence[str]],
    *,
    owner: int | None,
    tmpfs_size: int,
    ids: int,
) -> None:
    """Build a container's root at the directory *root*, in this process's own mount namespace.

    Args:
        image: a `RunImage`.
        writable: directory of what the container writes.
        root: path of an empty directory of the agent.
        steps: the pod's mounts (`ro` and `rw`), as `mounting.build_root` has them.
        owner: host id of the pod's root; ``None`` if it is this process's user.
        tmpfs_size: bytes of /dev/shm.
        ids: a descriptor of `open_layer_ids`.

    Raises:
        CannotStartError: the image cannot be mounted, or has links where it must not.
    """
    mounting.detach_mounts()
    _mount_image(image, writable, root, owner, ids)
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _own_directory(top, "dev")
        mounting.mount_tmpfs(f"{root}/dev", mode="755", size=tmpfs_size, owner=owner)
        mounting.mount_devices(root, tmpfs_size)
        _own_directory(top, "sys")
        mounting.bind_mount(top, "/sys", "/sys", read_only=True)
        for kind, source, path, sub_path in steps:
            target = _without_links(top, path)
            if target == "/":
                raise CannotStartError(f"{path!r} is a link to the root directory of the image")
            _create_dirs(root, top, os.path.dirname(target), owner)
            mounting.bind_mount(top, source, target, sub_path=sub_path, read_only=kind == "ro")
        for path in image["volumes"]:
            volume = _without_links(top, path)
            _create_dirs(root, top, volume, owner)
            _keep_writable(top, volume)
        _create_dirs(root, top, _without_links(top, image["working_dir"]), owner)
        # Last: what the pod mounts below a link to /proc is in the directory that it covers.
        _own_directory(top, "proc")
        mounting.mount_proc(root)
    except (OSError, HostChangedError) as error:
        raise CannotStartError(f"in the image: {error}") from error
    finally:
        os.close(top)
    if image["read_only"]:
        mounting.set_read_only(root, recursive=False)


def _mount_image(
    image: Mapping[str, "Any"], writable: str, root: str, owner: int | None, ids: int
) -> None:
    """Mount the files of the image at *root*; the arguments are those of `build`."""
    upper = os.open(f"{writable}/upper", _DIR_FLAGS)
    work = os.open(f"{writable}/work", _DIR_FLAGS)
    _copy_root_attributes(image, upper, owner)
    if image["overlay"]:
        writes = f",upperdir=/proc/self/fd/{upper},workdir=/proc/self/fd/{work}"
        _mount_overlay(root, image, writes, ids)
    else:
        _copy(image, upper, root, owner)
    os.close(upper)
    os.close(work)


def mount_volumes(
    volumes: Iterable[Mapping[str, "Any"]], *, owner: int | None, ids: int = -1
) -> None:
    """Mount volumes with the files of images, in this process's own mount namespace.

    Args:
        volumes: each a `VolumeImage`.
        owner: as in `build`, as is *ids*.

    Raises:
        CannotStartError: an image cannot be mounted.
    """
    mounting.detach_mounts()
    for each in volumes:
        image, target = each["image"], each["target"]
        if image["overlay"]:
            _mount_overlay(target, image, "", ids)
        else:
            copy = os.open(each["copy"], _DIR_FLAGS)
            _copy_root_attributes(image, copy, owner)
            _copy(image, copy, target, owner)
            os.close(copy)
        flags = _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV | _NOEXEC
        kept = os.statvfs(target).f_flag & mounting.KEPT_FLAGS
        mounting.mount(None, target, None, flags | kept)


def _copy_root_attributes(image: Mapping[str, "Any"], upper: int, owner: int | None) -> None:
    """Give the root directory the mode and the owner that it has in the image."""
    mode, uid, gid = 0o755, 0, 0
    if image["directories"]:
        found = os.stat(image["directories"][0])
        mode = stat.S_IMODE(found.st_mode) & 0o1777
        if owner is not None:
            uid, gid = found.st_uid - image["first_id"], found.st_gid - image["first_id"]
    os.fchmod(upper, mode)
    if owner is not None:
        os.fchown(upper, owner + uid, owner + gid)


def _mount_overlay(root: str, image: Mapping[str, "Any"], writes: str, ids: int) -> None:
    """Mount the layers at *root*, the ids of their owners mapped to the pod's.

    *writes* are the options of what is written, empty for a read-only mount.
    """
    mounting.mount_tmpfs(root, mode="700", size=_LAYERS_SIZE, owner=None)
    # Short paths: the options of a mount must fit into a page, and have no ',' or ':'.
    os.chdir(root)
    layers = image["directories"]
    for number, directory in enumerate(layers):
        os.mkdir(str(number))
        _attach(directory, str(number), ids)
    # A read-only mount needs two directories.
    count = max(len(layers), 1 if writes else 2)
    for number in range(len(layers), count):
        os.mkdir(str(number), 0o755)
    lower = ":".join(map(str, range(count)))
    options = f"lowerdir={lower}{writes},userxattr"
    mounting.mount("overlay", root, "overlay", _NOSUID | _NODEV, options)
    os.chdir("/")


def _copy(image: Mapping[str, "Any"], upper: int, root: str, owner: int | None) -> None:
    """Copy the layers, where overlayfs cannot stack them with the pod's ids, and mount the copy."""
    if __package__:
        from .layer_copy import copy_layers
    else:
        from layer_copy import copy_layers  # type: ignore[import-not-found, no-redef]

    shift = 0 if owner is None else owner - image["first_id"]
    copy_layers(reversed(image["directories"]), upper, shift)
    mounting.mount(f"/proc/self/fd/{upper}", root, None, _BIND)
    kept = os.statvfs(root).f_flag & mounting.KEPT_FLAGS
    mounting.mount(None, root, None, _BIND | _REMOUNT | _NOSUID | _NODEV | kept)


def _attach(directory: str, target: str, ids: int) -> None:
    """Mount *directory* at *target* with the ids of the user namespace *ids*, if any."""
    if ids < 0:
        mounting.mount(directory, target, None, _BIND)
        return
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
    tree = _LIBC.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(directory), flags)
    mounting.check_syscall(tree, "open_tree")
    map_layer_ids(tree, ids)
    moved = _LIBC.syscall(
        _SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_FROM_EMPTY_PATH
    )
    os.close(tree)
    mounting.check_syscall(moved, "move_mount")


def map_layer_ids(tree: int, ids: int) -> None:
    """Give a detached mount the id map of the user namespace *ids*."""
    attributes = struct.pack("QQQQ", _ATTR_IDMAP, 0, 0, ids)
    result = _LIBC.syscall(
        mounting.SYS_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes)
    )
    mounting.check_syscall(result, "mount_setattr")


def _own_directory(top: int, name: str) -> None:
    """Create a directory of the root that must not be a link."""
    try:
        os.close(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top))
    except FileNotFoundError:
        os.close(mounting.mount_point(top, name, is_dir=True))
    except OSError:
        raise CannotStartError(f"the image's /{name} is not a directory") from None


def _create_dirs(root: str, top: int, path: str, owner: int | None) -> None:
    """Create the directory *path*, which has no links, for the pod's root.

    Not in a volume: there another pod could exchange it before its owner changes.
    """
    names = path.strip("/").split("/")
    for number in range(1, len(names) + 1):
        try:
            os.close(mounting.open_in_root(top, "/".join(names[:number])))
        except FileNotFoundError:
            above = mounting.open_in_root(top, "/".join(names[: number - 1]))
            is_own = _mount_id(above) == _mount_id(top)
            os.close(above)
            if is_own:
                mounting.mkdir_beneath(root, "/".join(names), mode=0o755, owner=owner)
            return


def _mount_id(opened: int) -> str:
    with open(f"/proc/self/fdinfo/{opened}", encoding="ascii") as file:
        return next(line for line in file if line.startswith("mnt_id:"))


def _without_links(top: int, path: str) -> str:
    """Return *path* with the links of the image resolved, also where their targets are missing.

    Only a name: where a running pod may change a volume, the mount point is resolved again.
    """
    pending, done, links = path.split("/")[::-1], list[str](), 0
    while pending:
        name = pending.pop()
        if name == "..":
            del done[-1:]
        if name in ("", ".", ".."):
            continue
        target = _link_target(top, done, name)
        if target is None:
            done.append(name)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise CannotStartError(f"too many links in {path!r}")
        if target.startswith("/"):
            done.clear()
        pending += target.split("/")[::-1]
    return "/" + "/".join(done)


def _link_target(top: int, above: Sequence[str], name: str) -> str | None:
    try:
        directory = mounting.open_in_root(top, "/".join(above))
    except OSError:
        return None
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None
    finally:
        os.close(directory)


def _keep_writable(top: int, path: str) -> None:
    """Mount a directory on itself, so that it is not part of the root's mount."""
    opened = mounting.mount_point(top, path, is_dir=True)
    try:
        mounting.mount(f"/proc/self/fd/{opened}", f"/proc/self/fd/{opened}", None, _BIND)
    finally:
        os.close(opened)
