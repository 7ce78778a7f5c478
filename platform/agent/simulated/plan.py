"""What a simulated container would do: read from annotations, else guessed from its command.

| annotation (`simulate.batholith.io/`) | meaning |
| --- | --- |
| `start-delay` | from binding to running, such as `500ms`, or `1s~3s` for a draw between the two |
| `run-for` | how long each run takes; `inf` never ends |
| `exit-code` | how each run ends, for the pod (`1`) or by container (`main=0,helper=137`) |
| `ignore-term` | `true`: only the kill at the end of the grace ends it |
| `never-start` | `true`: it stays pending |

Commands: `sleep N`, `exit N`, `true`, `false` and shell lines of them count as written; images
without a command as `images` says; anything else ends at once, well.
"""

import math
import random
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from ...model.durations import DurationError
from ...model.durations import parse as parse_duration
from ...model.names import SIMULATE_PREFIX
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
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_]+")
_KNOWN_COMMANDS = frozenset({"true", "echo", "date", "env", "hostname", "ls", "pwd", "wait", ":"})
COMMAND_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One pretended run."""

    seconds: float
    """``inf`` for a server."""

    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """How a simulated pod behaves as a whole."""

    start_delay: float = 0.0
    ignores_term: bool = False
    never_starts: bool = False


def plan_pod(pod: Pod, *, default_delay: float, seed: str) -> SimulationPlan:
    """The plan for a pod; an annotation that cannot be read counts as absent."""
    notes = pod.metadata.annotations
    return SimulationPlan(
        start_delay=_parse_duration_range(notes.get(START_DELAY, ""), seed, default_delay),
        ignores_term=notes.get(IGNORE_TERM) == "true",
        never_starts=notes.get(NEVER_START) == "true",
    )


def plan_run(pod: Pod, container: Container, seed: str) -> SimulatedRun:
    """What the next run of *container* does."""
    notes = pod.metadata.annotations
    guess = guess_run(container)
    is_init = container in pod.spec.init_containers
    if is_init and not container.is_sidecar and math.isinf(guess.seconds):
        guess = SimulatedRun(0.0)
    seconds = (
        guess.seconds
        if is_init
        else _parse_duration_range(notes.get(RUN_FOR, ""), seed, guess.seconds)
    )
    if EXIT_CODE in notes and not is_init and RUN_FOR not in notes and math.isinf(seconds):
        seconds = 0.0  # who asks for an exit code wants an exit
    return SimulatedRun(
        seconds, _parse_exit_code(notes.get(EXIT_CODE, ""), container.name, guess.exit_code)
    )


def _parse_duration_range(text: str, seed: str, default: float) -> float:
    """``500ms``, ``1s~3s`` or ``inf`` in seconds; the same draw for the same *seed*."""
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
    for part in filter(None, text.split(",")):
        who, equals, code = part.strip().rpartition("=")
        if (not equals or who.strip() == name) and code.isdigit():
            return int(code)
    return default


def guess_run(container: Container) -> SimulatedRun:
    """What the command says the container does."""
    try:
        argv = command_line(
            container.image, container.command, container.args, find=lambda program: program
        )
    except ProgramNotFoundError:
        return SimulatedRun(0.0)
    return run_of(argv)


def run_of(argv: Sequence[str]) -> SimulatedRun:
    """Length and exit code of a command, as far as they can be read off it."""
    if tuple(argv) == RUN_FOREVER:
        return SimulatedRun(math.inf)
    script = _script(argv)
    return _run_script(script) if script is not None else _run_words(list(argv))


def _script(argv: Sequence[str]) -> str | None:
    if argv[0].rpartition("/")[2] not in _SHELLS:
        return None
    for at, word in enumerate(argv[1:], 1):
        if word.startswith("-") and word.endswith("c"):
            return " ".join(argv[at + 1 : at + 2])
        if not word.startswith("-"):
            return None
    return ""


def _run_script(script: str) -> SimulatedRun:
    """A line of simple commands with ``;``, ``&&`` and ``||``."""
    seconds, code, before = 0.0, 0, ";"
    for part in _SEPARATOR.split(script):
        if _SEPARATOR.fullmatch(part):
            before = part
            continue
        words = _split_words(part)
        if words and words[0] in _COMPOUND:
            return SimulatedRun(seconds)  # what comes of it cannot be read off it
        if not words or (before == "&&" and code != 0) or (before == "||" and code == 0):
            continue
        run = _run_words(words, chained=before == "&&")
        seconds, code = seconds + run.seconds, run.exit_code
        if words[0] == "exit" or math.isinf(seconds):
            break
    return SimulatedRun(seconds, code)


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _run_words(words: list[str], *, chained: bool = False) -> SimulatedRun:
    """One simple command; *chained*: it stands after ``&&``, where a lone odd word is a test's way
    of failing."""
    program, rest = words[0].rpartition("/")[2], words[1:]
    if program == "sleep" and rest:
        return SimulatedRun(sum(_parse_sleep(word) for word in rest))
    if program == "exit":
        return SimulatedRun(0.0, int(rest[0]) % 256 if rest and rest[0].isdigit() else 0)
    if program == "false":
        return SimulatedRun(0.0, 1)
    if (program == "tail" and "-f" in rest) or (program == "ray" and "--block" in rest):
        return SimulatedRun(math.inf)
    odd = chained and not rest and _PLAIN_WORD.fullmatch(words[0])
    if odd and words[0] not in _KNOWN_COMMANDS:
        return SimulatedRun(0.0, COMMAND_NOT_FOUND)
    return SimulatedRun(0.0)


def _parse_sleep(word: str) -> float:
    if word in ("inf", "infinity"):
        return math.inf
    match = _SLEEP.fullmatch(word)
    return float(match.group(1)) * _UNIT[match.group(2)] if match else 0.0
