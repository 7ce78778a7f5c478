"""Plan of a simulated pod: from annotations, else inferred from the commands.

| annotation (`simulate.batholith.io/`) | meaning |
| --- | --- |
| `start-delay` | from binding to running, such as `500ms`, or `1s~3s` for a random delay |
| `run-for` | duration of each run; `inf` for no end |
| `exit-code` | exit code of each run, for the pod (`1`) or by container (`main=0,helper=137`) |
| `ignore-term` | `true`: only SIGKILL at the end of the grace period stops it |
| `never-start` | `true`: it stays pending |

Of commands, `sleep N`, `exit N`, `true`, `false` and shell lines of them are simulated. An image
without a command runs as `images` defines; any other command exits immediately with code 0.
"""

import math
import random
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ....model.durations import DurationError
from ....model.durations import parse as parse_duration
from ....model.names import SIMULATE_PREFIX
from ..runtime.images import RUN_FOREVER, ProgramNotFoundError, command_line
from ..state.core_types import Container, Pod

START_DELAY = SIMULATE_PREFIX + "start-delay"
RUN_FOR = SIMULATE_PREFIX + "run-for"
EXIT_CODE = SIMULATE_PREFIX + "exit-code"
IGNORE_TERM = SIMULATE_PREFIX + "ignore-term"
NEVER_START = SIMULATE_PREFIX + "never-start"

_COMPOUND = frozenset({"if", "while", "until", "for", "case"})
_SHELLS = frozenset({"sh", "bash", "dash", "ash"})
_SEPARATOR = re.compile(r"(&&|\|\||;|\n)")
_SLEEP = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NAME = re.compile(r"[A-Za-z0-9_]+")
_KNOWN_COMMANDS = frozenset({"true", "echo", "date", "env", "hostname", "ls", "pwd", "wait", ":"})
COMMAND_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One simulated run."""

    seconds: float
    """``inf`` for a server."""

    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """Behaviour of a simulated pod."""

    start_delay: float = 0.0
    ignores_term: bool = False
    never_starts: bool = False


def plan_pod(pod: Pod, *, default_delay: float, seed: str) -> SimulationPlan:
    """Return the plan of a pod; a malformed annotation counts as absent."""
    annotations = pod.metadata.annotations
    return SimulationPlan(
        start_delay=_parse_duration_range(annotations.get(START_DELAY, ""), seed, default_delay),
        ignores_term=annotations.get(IGNORE_TERM) == "true",
        never_starts=annotations.get(NEVER_START) == "true",
    )


def plan_run(pod: Pod, container: Container, seed: str) -> SimulatedRun:
    """Return the next run of *container*."""
    annotations = pod.metadata.annotations
    guess = guess_run(container)
    is_init = container in pod.spec.init_containers
    if is_init and not container.is_sidecar and math.isinf(guess.seconds):
        guess = SimulatedRun(0.0)
    seconds = (
        guess.seconds
        if is_init
        else _parse_duration_range(annotations.get(RUN_FOR, ""), seed, guess.seconds)
    )
    exit_code = annotations.get(EXIT_CODE)
    if exit_code is not None and not is_init and RUN_FOR not in annotations and math.isinf(seconds):
        seconds = 0.0  # an exit code implies an exit
    return SimulatedRun(seconds, _parse_exit_code(exit_code or "", container.name, guess.exit_code))


def _parse_duration_range(text: str, seed: str, default: float) -> float:
    """Parse ``500ms``, ``1s~3s`` or ``inf`` to seconds; the same *seed* gives the same result."""
    if text == "inf":
        return math.inf
    if not text:
        return default
    low, tilde, high = text.partition("~")
    try:
        first = parse_duration(low).total_seconds()
        last = parse_duration(high).total_seconds() if tilde else first
    except DurationError:
        return default
    return random.Random(seed).uniform(first, last) if tilde else first


def _parse_exit_code(text: str, name: str, default: int) -> int:
    for entry in filter(None, text.split(",")):
        container, equals, code = entry.strip().rpartition("=")
        if (not equals or container.strip() == name) and code.isdigit():
            return int(code)
    return default


def guess_run(container: Container) -> SimulatedRun:
    """Infer the run of a container from its command."""
    try:
        argv = command_line(
            container.image, container.command, container.args, find=lambda program: program
        )
    except ProgramNotFoundError:
        return SimulatedRun(0.0)
    return run_of(argv)


def run_of(argv: Sequence[str]) -> SimulatedRun:
    """Infer duration and exit code of a command."""
    if tuple(argv) == RUN_FOREVER:
        return SimulatedRun(math.inf)
    script = _script(argv)
    return _run_script(script) if script is not None else _run_command(list(argv))


def _script(argv: Sequence[str]) -> str | None:
    if argv[0].rpartition("/")[2] not in _SHELLS:
        return None
    for at, argument in enumerate(argv[1:], 1):
        if argument.startswith("-") and argument.endswith("c"):
            return " ".join(argv[at + 1 : at + 2])
        if not argument.startswith("-"):
            return None
    return ""


def _run_script(script: str) -> SimulatedRun:
    """A line of simple commands with ``;``, ``&&`` and ``||``."""
    seconds, code, separator = 0.0, 0, ";"
    for token in _SEPARATOR.split(script):
        if _SEPARATOR.fullmatch(token):
            separator = token
            continue
        argv = _split_arguments(token)
        if argv and argv[0] in _COMPOUND:
            return SimulatedRun(seconds)  # compound commands are not simulated
        if not argv or (separator == "&&" and code != 0) or (separator == "||" and code == 0):
            continue
        run = _run_command(argv, chained=separator == "&&")
        seconds, code = seconds + run.seconds, run.exit_code
        if argv[0] == "exit" or math.isinf(seconds):
            break
    return SimulatedRun(seconds, code)


def _split_arguments(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _run_command(argv: list[str], *, chained: bool = False) -> SimulatedRun:
    """Infer the run of one simple command.

    *chained*: it follows ``&&``, where tests use an unknown program without arguments to fail.
    """
    program, rest = argv[0].rpartition("/")[2], argv[1:]
    if program == "sleep" and rest:
        return SimulatedRun(sum(map(_parse_sleep, rest)))
    if program == "exit":
        return SimulatedRun(0.0, int(rest[0]) % 256 if rest and rest[0].isdigit() else 0)
    if program == "false":
        return SimulatedRun(0.0, 1)
    if (program == "tail" and "-f" in rest) or (program == "ray" and "--block" in rest):
        return SimulatedRun(math.inf)
    is_name = chained and not rest and _NAME.fullmatch(argv[0])
    if is_name and argv[0] not in _KNOWN_COMMANDS:
        return SimulatedRun(0.0, COMMAND_NOT_FOUND)
    return SimulatedRun(0.0)


def _parse_sleep(argument: str) -> float:
    if argument in ("inf", "infinity"):
        return math.inf
    match = _SLEEP.fullmatch(argument)
    return float(match.group(1)) * _UNIT[match.group(2)] if match else 0.0
