"""Volumes that replace programs, libraries and modules of the machine inside a sandbox.

Each process that executes or loads one of them reports its user ids and capabilities.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from support.agent_cluster import make_world_writable

from batholith.local.agent.runtime import shim
from batholith.local.agent.runtime.rootfs import Mount

SYS_ADMIN = 21

# At the start of an interpreter only built-in modules can be imported.
_MODULE = r"""
import posix
def _read(path):
    opened = posix.open(path, posix.O_RDONLY)
    data = posix.read(opened, 65536)
    posix.close(opened)
    return data
_status = dict(line.split(b":", 1) for line in _read("/proc/self/status").split(b"\n") if line)
posix.write(2, b" ".join([b"\nRAN", *_status[b"Uid"].split()[:2], _status[b"CapEff"].strip(),
                          *_read("/proc/self/uid_map").split()]) + b"\n")
"""
_LIBRARY = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void report(void) {
    char line[256], real[32] = "", effective[32] = "", caps[32] = "", map[3][32] = {"", "", ""};
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "Uid: %31s %31s", real, effective);
        sscanf(line, "CapEff: %31s", caps);
    }
    file = fopen("/proc/self/uid_map", "r");
    if (file) fscanf(file, "%31s %31s %31s", map[0], map[1], map[2]);
    int n = snprintf(line, sizeof line, "\nRAN %s %s %s %s %s %s\n",
                     real, effective, caps, map[0], map[1], map[2]);
    if (write(2, line, n)) {}
}
"""


@dataclass(frozen=True, slots=True)
class Report:
    """Rights of a process that executed a replacement."""

    host_ids: frozenset[int]
    """Real and effective user id on the host; -1 for an id without a name in its namespace."""

    capabilities: int

    @property
    def is_administrator(self) -> bool:
        """Whether it may mount, in its user namespace at least."""
        return bool(self.capabilities >> SYS_ADMIN & 1)


def reports(output: str) -> list[Report]:
    """Return the reports in *output*."""
    found = []
    for line in output.splitlines():
        fields = line.partition("RAN ")[2].split()
        if len(fields) == 6:
            ids, (inside, outside, count) = map(int, fields[:2]), map(int, fields[3:])
            mapped = {i - inside + outside if 0 <= i - inside < count else -1 for i in ids}
            found.append(Report(frozenset(mapped), int(fields[2], 16)))
    return found


Replacement = Callable[[Path, str], tuple[list[Mount], list[str]]]
"""Returns the mounts of files in an empty directory, and a command that executes one of them.

The second argument is the interpreter of the command and of the agent.
"""


def _standard_library(program: str) -> Path:
    code = "import os; print(os.path.dirname(os.__file__))"
    return Path(subprocess.check_output([program, "-I", "-S", "-c", code], text=True).strip())


def every_module(volume: Path, program: str) -> tuple[list[Mount], list[str]]:
    """Replace the directory of the standard library."""
    for name in sys.stdlib_module_names:
        (volume / f"{name}.py").write_text(_MODULE)
    library = _standard_library(program)
    shutil.copytree(library / "encodings", volume / "encodings")
    for module in (volume / "encodings").glob("*.py"):
        module.write_text(_MODULE)
    return [Mount(str(volume), str(library))], [program, "-c", "import json"]


def appended_modules(volume: Path, program: str) -> tuple[list[Mount], list[str]]:
    """Replace the standard library by a copy that works, and reports as well."""
    library = _standard_library(program)
    shutil.copytree(
        library,
        volume / "copy",
        symlinks=True,
        ignore=shutil.ignore_patterns("*-packages", "test", "__pycache__", "config-*"),
    )
    for name in ("json/__init__", "ctypes/__init__", "signal", "os", "encodings/ascii"):
        with (volume / "copy" / f"{name}.py").open("a") as file:
            file.write(_MODULE)
    return [Mount(str(volume / "copy"), str(library))], [program, "-c", "import json"]


def single_modules(volume: Path, program: str) -> tuple[list[Mount], list[str]]:
    """Replace files of the standard library one by one, as a ConfigMap with sub-paths can."""
    (volume / "module").write_text(_MODULE)
    library = _standard_library(program)
    names = ("encodings/ascii", "traceback", "linecache", "json/__init__", "ctypes/__init__")
    mounts = [
        Mount(str(volume), f"{library}/{name}.py", read_only=True, sub_path="module")
        for name in names
    ]
    return mounts, [program, "-c", "import json"]


def programs_of_the_agent(volume: Path, program: str) -> tuple[list[Mount], list[str]]:
    """Replace the shim and the modules that it imports, where they are installed and shown."""
    directory = Path(shim.__file__).parent
    for module in directory.glob("*.py"):
        (volume / module.name).write_text(_MODULE)
    mounts = [Mount(str(volume), each) for each in (str(directory), "/run/batholith")]
    return mounts, [program, "-I", "-S", f"{directory}/shim.py"]


def shell(volume: Path, program: str) -> tuple[list[Mount], list[str]]:
    """Replace /bin/sh."""
    (volume / "sh").write_text(f"#!{program} -IS\n{_MODULE}")
    (volume / "sh").chmod(0o755)
    return [Mount(str(volume), os.path.realpath("/bin/sh"), sub_path="sh")], ["/bin/sh"]


def c_library(volume: Path, program: str) -> tuple[list[Mount], list[str]]:
    """Replace the C library by a file that is none: no program can be executed any more."""
    (volume / "libc").write_text("none")
    (found,) = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if os.path.basename(line.split()[-1]).startswith("libc.so")
    }
    return [Mount(str(volume), found, sub_path="libc")], ["/bin/true"]


def preloaded_library(volume: Path, program: str) -> tuple[list[Mount], list[str]]:
    """Have the dynamic loader load a library into every program."""
    (volume / "report.c").write_text(_LIBRARY)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(volume / "report.so"), str(volume / "report.c")],
        check=True,
    )
    (volume / "preload").write_text("/replacement/report.so\n")
    mounts = [
        Mount(str(volume), "/replacement"),
        Mount(str(volume), "/etc/ld.so.preload", sub_path="preload"),
    ]
    return mounts, ["/bin/true"]


REPLACEMENTS: list[Replacement] = [
    every_module,
    appended_modules,
    single_modules,
    programs_of_the_agent,
    shell,
    c_library,
    preloaded_library,
]


class ReplacementFiles:
    """The files of replacements: created once in *directory*, and linked into the volumes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._created: dict[Replacement, tuple[list[Mount], list[str]]] = {}

    def volume(
        self, directory: Path, replacement: Replacement, program: str
    ) -> tuple[list[Mount], list[str]]:
        """Create a volume in *directory*, and return its mounts and the command."""
        originals = self._directory / replacement.__name__
        if replacement not in self._created:
            originals.mkdir()
            self._created[replacement] = replacement(originals, program)
        mounts, argv = self._created[replacement]
        volume = make_world_writable(directory / "volume")
        shutil.copytree(originals, volume, symlinks=True, dirs_exist_ok=True, copy_function=os.link)
        moved = [
            replace(each, source=each.source.replace(str(originals), str(volume)))
            for each in mounts
        ]
        return moved, argv
