"""What the start of one container costs, in counts: ``python -m bench.image_starts``; for root.

Each container runs ``/bin/true`` of busybox to its end under strace: as a program of the machine in
a sandbox, and of a stored image of LAYERS layers (default 1 and 10). Both are compared with a
Python that only starts, and with the program itself. The CPU time, without strace, is the median of
ROUNDS runs of a shim with a separate interpreter, and the mean of ROUNDS runs whose shims were
forked by one fork server, as those of an agent.
Needs Debian's packages busybox-static and strace.
"""

import argparse
import asyncio
import functools
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from batholith.local.agent.images.support import first_id
from batholith.local.agent.runtime import rootfs
from batholith.local.agent.runtime.fork_server import ForkServer
from batholith.local.agent.runtime.ids import SHARED, IdMode, Ids, chown
from batholith.local.agent.runtime.image_run import RunImage
from batholith.local.agent.runtime.runs import (
    PYTHON_PREFIXES,
    ContainerProcess,
    IsolationLevel,
    LaunchSpec,
    RunDir,
    detect_isolation,
)
from batholith.local.agent.runtime.spawning import PROGRAM
from batholith.machinery.clock import SystemClock

_BUSYBOX = "/bin/busybox"
_PYTHON = [sys.executable, "-I", "-S"]
_FORKS = re.compile(r"clone3?|v?fork")
_MOUNTS = re.compile(r"mount|umount2|pivot_root|open_tree|move_mount|mount_setattr")
_COUNTED = {"processes": _FORKS, "mounts": _MOUNTS, "all": re.compile(".*")}
Commands = Callable[[], list[str]]
"""Returns the command of a new run."""

Runs = Callable[[], RunDir]
"""Returns a new run."""


def main() -> None:
    """Print a table of counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 10])
    given = parser.parse_args()
    report = detect_isolation(IsolationLevel.UNSHARE)
    if os.geteuid() != 0 or report.id_mode is not IdMode.RANGE:
        raise SystemExit("only root with user namespaces gives pods ids of their own")
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        rows: dict[str, Commands] = {
            "program alone": lambda: [_BUSYBOX, "true"],
            "Python alone": lambda: [*_PYTHON, "-c", "pass"],
        }
        runs: dict[str, Runs] = {"container, program of the machine": lambda: _run(base, None)}
        for number in given.layers:
            image = _image(base, number)
            runs[f"container, image of {number} layers"] = functools.partial(_run, base, image)
        rows |= {name: functools.partial(_shim_command, prepare) for name, prepare in runs.items()}
        print("| start of | processes | mounts | system calls | CPU, Python = 1 | forked |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        python = _cpu_seconds(rows["Python alone"], given.rounds)
        for name, commands in rows.items():
            counts = _count(commands(), base / "counts")
            ratio = _cpu_seconds(commands, given.rounds) / python
            forked = ""
            if name in runs:
                seconds = asyncio.run(_forked_cpu_seconds(base, runs[name], given.rounds))
                forked = f"{seconds / python:.1f}"
            shown = " | ".join(str(counts[each]) for each in _COUNTED)
            print(f"| {name} | {shown} | {ratio:.1f} | {forked} |")


def _image(base: Path, layers: int) -> RunImage:
    """Return an image with the program in its lowest layer."""
    names = [base / "layers" / f"{layers}-{number}" for number in range(layers)]
    for each in names:
        (each / "bin").mkdir(parents=True)
        (each / each.name).write_text("content")
    shutil.copy(_BUSYBOX, names[0] / "bin" / "true")
    owner = first_id()
    for top in names:
        for path in (top, *top.rglob("*")):
            chown(path, owner)
    return RunImage(
        name="bench",
        image_id="sha256:0",
        chains=tuple(each.name for each in names),
        directories=tuple(map(str, reversed(names))),
        first_id=owner,
        working_dir="/",
        volumes=(),
        read_only=False,
    )


def _shim_command(prepare: Runs) -> list[str]:
    return [*_PYTHON, str(PROGRAM), str(prepare().path)]


def _run(base: Path, image: RunImage | None) -> RunDir:
    """Prepare a run."""
    run = RunDir(base / "pods" / str(uuid.uuid4()) / "containers" / "c" / "0")
    steps: Sequence[rootfs.Step] = []
    if image is None:
        home = os.path.expanduser("~")
        steps = rootfs.mount_plan([], hidden=[str(base)], home=home, tools=PYTHON_PREFIXES)
    run.prepare(
        LaunchSpec(
            argv=["/bin/true"] if image else [_BUSYBOX, "true"],
            env={"PATH": os.defpath},
            cwd="/",
            log=base / "logs" / f"{run.path.parts[-4]}.log",
            hostname="bench",
            isolation=IsolationLevel.UNSHARE,
            ids=Ids(SHARED, True),
            steps=steps,
            image=image,
        )
    )
    return run


def _count(command: list[str], output: Path) -> dict[str, int]:
    """Return the system calls of a command and its descendants, by kind."""
    subprocess.run(
        ["strace", "-f", "-qq", "-c", "-U", "calls,name", "-o", str(output), *command], check=True
    )
    calls = {}
    for line in output.read_text().splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[0].isdigit() and fields[1] != "total":
            calls[fields[1]] = int(fields[0])
    return {
        kind: sum(number for name, number in calls.items() if pattern.fullmatch(name))
        for kind, pattern in _COUNTED.items()
    }


def _cpu_seconds(commands: Commands, rounds: int) -> float:
    """Return the median CPU time of a command and of its descendants that it has waited for."""
    found = []
    for _ in range(rounds):
        process = subprocess.Popen(commands())
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        found.append(usage.ru_utime + usage.ru_stime)
    return statistics.median(found)


async def _forked_cpu_seconds(base: Path, prepare: Runs, rounds: int) -> float:
    """Return the mean CPU time of a run whose shim is forked, without the start of the server."""
    first = await _server_cpu_seconds(base, prepare, 1)
    return (await _server_cpu_seconds(base, prepare, 1 + rounds) - first) / rounds


async def _server_cpu_seconds(base: Path, prepare: Runs, rounds: int) -> float:
    """Return the CPU time of a fork server, and of the runs that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shims = ForkServer(base)
    for _ in range(rounds):
        run = prepare()
        process = ContainerProcess(run, await shims.start(run), clock=SystemClock())
        assert (await process.wait()).code == 0
    await asyncio.sleep(0.1)  # until the server has waited for the last one
    shims.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
