"""Runs Kubernetes' conformance cases on an embedded cluster: ``make conformance``.

Each case runs alone on its cluster, with a limit of its own; several clusters share the cases, each
in a network namespace. The results are written as lines of JSON, and printed by SIG with the cases
that failed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from conformance.images import images, write_layout

HERE = Path(__file__).parent
_BATHOLITH = (sys.executable, "-m", "batholith.cli")
_SCHEDULER = HERE / "scheduler.yaml"
_MOUNTED = ("/tmp/home", "/tmp/job-e2e")
"""Directories of the machine that cases mount."""

_IN_NAMESPACE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
_SIG = re.compile(r"\[(sig-[a-z-]+)\]")
_FAILURE = re.compile(r"^  \[FAILED\] (?!in \[)(.*?)\n  In \[", re.DOTALL | re.MULTILINE)
_MAX_REASON = 300


class Result(NamedTuple):
    """How a case ended."""

    case: str
    passed: bool
    reason: str = ""

    @property
    def sig(self) -> str:
        """The special interest group of the case."""
        found = _SIG.search(self.case)
        return found[1] if found else ""


@contextmanager
def running_cluster(directory: Path, programs: Path, *options: str) -> Iterator[Path]:
    """Run a cluster with the images of the cases and *options*; yield its kubeconfig."""
    data = directory / "data"
    environment = {**os.environ, "XDG_DATA_HOME": str(directory)}
    with tempfile.TemporaryDirectory(dir=directory) as layouts:
        for number, (name, built) in enumerate(images(programs)):
            layout = Path(layouts, str(number))
            write_layout(layout, built)
            load = (*_BATHOLITH, "image", "load", layout, "--name", name, "--data-dir", data)
            subprocess.run(load, check=True, env=environment, stdout=subprocess.DEVNULL)
    start = (*_BATHOLITH, "up", "--detach", "--port=0", "--api-port=0", *options)
    subprocess.run((*start, "--data-dir", data), check=True, env=environment)
    try:
        yield data / "kubeconfig"
    finally:
        subprocess.run((*_BATHOLITH, "down", "--data-dir", data), check=False, env=environment)


class Suite:
    """The suite's program."""

    def __init__(self, program: Path, directory: Path, timeout: int) -> None:
        self._program = program
        self._directory = directory
        self._timeout = timeout

    def cases(self, focus: str) -> list[str]:
        """Return the names of the conformance cases that match *focus*."""
        report = self._directory / "cases.json"
        options = ("--ginkgo.dry-run", f"--ginkgo.json-report={report}")
        self._run(rf"--ginkgo.focus={focus}", "--ginkgo.silence-skips", *options, kubeconfig=None)
        specs: list[Any] = json.loads(report.read_text())[0]["SpecReports"]
        names = (
            " ".join([*(each["ContainerHierarchyTexts"] or ()), each["LeafNodeText"]])
            for each in specs
            if each["LeafNodeType"] == "It" and each["State"] != "skipped"
        )
        return sorted(name for name in names if "[Conformance]" in name)

    def run_case(self, case: str, kubeconfig: Path) -> Result:
        """Run one case."""
        try:
            ended = self._run(f"--ginkgo.focus={re.escape(case)}$", kubeconfig=kubeconfig)
        except subprocess.TimeoutExpired:
            return Result(case, False, f"took longer than {self._timeout} s")
        passed = ended.returncode == 0 and "1 Passed" in ended.stdout
        found = _FAILURE.search(ended.stdout)
        reason = found[1] if found else ended.stdout.strip()[-_MAX_REASON:]
        return Result(case, passed, "" if passed else " ".join(reason.split())[:_MAX_REASON])

    def _run(self, *options: str, kubeconfig: Path | None) -> "subprocess.CompletedProcess[str]":
        common = (
            "--test.run=TestConformance",
            "--provider=local",
            "--minStartupPods=0",
            "--disable-log-dump",
            "--ginkgo.no-color",
            f"--ginkgo.timeout={self._timeout}s",
            f"--kubectl-path={shutil.which('kubectl') or 'kubectl'}",
        )
        given = (f"--kubeconfig={kubeconfig}",) if kubeconfig else ()
        return subprocess.run(
            (self._program, *common, *given, *options),
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=self._timeout + 60,
        )


def print_summary(results: list[Result]) -> None:
    """Print the numbers by SIG, and what failed."""
    counts = Counter((each.sig, each.passed) for each in results)
    for sig in sorted({each.sig for each in results}):
        passed = counts[sig, True]
        print(f"{sig:24} {passed:4} of {passed + counts[sig, False]}")
    for each in results:
        if not each.passed:
            print(f"FAILED {each.case}\n    {each.reason}")


def _share(directory: str) -> None:
    """Create a directory for the pods, which are other users, unless another user has."""
    Path(directory).mkdir(exist_ok=True)
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            raise PermissionError(f"{directory} belongs to another user: remove it")
        os.fchmod(opened, 0o1777)
    finally:
        os.close(opened)


def run_on_one(options: argparse.Namespace, programs: Path) -> list[Result]:
    """Run the cases of one cluster, and write their results."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        directory = Path(name)
        suite = Suite(programs / "e2e.test", directory, options.timeout)
        cluster = [
            f"--pod-network={options.pod_network}",
            f"--pods={options.pods}",
            f"--scheduler-conf={_SCHEDULER}",
        ]
        for each in _MOUNTED:
            _share(each)
            cluster += ["--mount", each]
        results = []
        with (
            running_cluster(directory, programs, *cluster) as kubeconfig,
            options.results.open("w") as written,
        ):
            for case in suite.cases(options.focus)[options.first :: options.clusters]:
                result = suite.run_case(case, kubeconfig)
                results.append(result)
                print(json.dumps(result._asdict()), file=written, flush=True)
                print("passed" if result.passed else "FAILED", case, flush=True)
        return results


def run_on_several(options: argparse.Namespace) -> list[Result]:
    """Run the cases on several clusters at once, and write all results to one file."""
    written = [options.results.with_suffix(f".{first}.jsonl") for first in range(options.clusters)]
    own = (sys.executable, "-m", "conformance.run", *sys.argv[1:])
    runs = [
        subprocess.Popen((*_IN_NAMESPACE, *own, f"--first={first}", f"--results={path}"))
        for first, path in enumerate(written)
    ]
    for each in runs:
        each.wait()
    lines = [line for path in written if path.exists() for line in path.read_text().splitlines()]
    options.results.write_text("".join(f"{line}\n" for line in sorted(lines)))
    for path in written:
        path.unlink(missing_ok=True)
    return [Result(**json.loads(line)) for line in lines]


def main() -> int:
    """Run the cases; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--focus", default=r"\[Conformance\]", help="regular expression of cases")
    parser.add_argument("--timeout", type=int, default=600, help="seconds of one case")
    parser.add_argument("--results", type=Path, default=Path("conformance.jsonl"))
    parser.add_argument("--pod-network", choices=("host", "namespaces"), default="host")
    parser.add_argument("--pods", choices=("auto", "images"), default="auto")
    parser.add_argument(
        "--clusters", type=int, default=1, help="clusters at once; for more than one run as root"
    )
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)  # of the cases of one of them
    options = parser.parse_args()
    built = subprocess.run((HERE / "build",), check=True, stdout=subprocess.PIPE, text=True)
    programs = Path(built.stdout.strip())
    if options.clusters > 1 and options.first is None:
        results = run_on_several(options)
    else:
        options.first = options.first or 0
        results = run_on_one(options, programs)
        if options.clusters > 1:
            return 0  # the process that started this one prints the results
    print_summary(results)
    return 0 if results and all(each.passed for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
