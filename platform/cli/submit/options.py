"""The settings of a job, from the lines of its script, the environment and flags. Pure."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ...model.notifications import NotifyEvent, url_error
from . import values
from .directives import OF_FLAGS, Setting
from .errors import SubmitError
from .option_table import OPTIONS, SAME_SETTING, Argument


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """What a job asks for. A number that is not given is ``None``, a text ``""``."""

    job_name: str = ""
    queue: str = ""
    account: str = ""
    nodes: int | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    mem: int | None = None
    """MiB of each pod."""
    mem_per_cpu: int | None = None
    """MiB for each CPU."""
    mem_per_gpu: int | None = None
    """MiB for each GPU."""
    gpus: int | None = None
    """Of all pods together."""
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    array: tuple[str, int | None] | None = None
    """Indices of the members, and how many of them may run at a time."""
    max_parallel: int | None = None
    """Members of a sweep that may run at a time."""
    dependencies: tuple[tuple[str, str], ...] = ()
    """Types and jobs, as they are given."""
    begin: datetime | None = None
    time_limit: int | None = None
    """Seconds."""
    warning: int | None = None
    """Seconds before the time limit."""
    warns_script: bool = False
    """Whether the warning is for the script itself (``B:``)."""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    error: str = ""
    append: bool = False
    chdir: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    requeue: bool | None = None
    """Whether the whole job restarts when a pod is evicted, or ends; ``None``: the pod is created
    again."""
    exclusive: bool = False
    hold: bool = False
    image: str = ""
    workdir_rw: bool = False
    no_workdir: bool = False
    workdir_claim: str = ""
    every_node: bool = False
    priority_class: str = ""
    notify_url: str = ""
    notify_command: tuple[str, ...] = ()
    """Program and arguments of a command that is notified."""
    notify_events: frozenset[NotifyEvent] | None = None
    """Events to notify of; ``None`` for all."""
    ignored: tuple[str, ...] = ()
    """Settings that were left out as asked for."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each option is set, by its name."""

    def where(self, *names: str) -> str:
        """Return where the first of these options that is set is set: the begin of an error."""
        return next((self.sources[name] for name in names if name in self.sources), f"--{names[0]}")


_Parse = Callable[[str], Mapping[str, Any]]


def _text(field_: str) -> _Parse:
    def parse(text: str) -> Mapping[str, Any]:
        if not text:
            raise ValueError("the value is empty")
        return {field_: text}

    return parse


def _number(field_: str, convert: Callable[[str], object] = values.number) -> _Parse:
    return lambda text: {field_: convert(text)}


def _true(field_: str, value: bool = True) -> _Parse:
    return lambda _: {field_: value}


def _open_mode(text: str) -> Mapping[str, Any]:
    if text not in ("append", "truncate"):
        raise ValueError(f"{text!r} is neither append nor truncate")
    return {"append": text == "append"}


def _exclusive(text: str) -> Mapping[str, Any]:
    if text not in ("", "exclusive"):
        raise ValueError(f"{text!r} is not supported: only --exclusive without a value is")
    return {"exclusive": True}


_MAIL_TYPES = {
    "BEGIN": {NotifyEvent.START},
    "END": {NotifyEvent.END},
    "FAIL": {NotifyEvent.FAILURE},
    "INVALID_DEPEND": {NotifyEvent.FAILURE},
    "TIME_LIMIT": {NotifyEvent.TIME_LIMIT},
    "TIME_LIMIT_90": {NotifyEvent.TIME_LIMIT},
    "ALL": set(NotifyEvent),
}


def _mail_type(text: str) -> Mapping[str, Any]:
    types = text.upper().split(",")
    if types == ["NONE"]:
        return {"notify_events": frozenset()}
    if unknown := [each for each in types if each not in _MAIL_TYPES]:
        raise ValueError(f"{unknown[0]!r} is not supported: {', '.join(_MAIL_TYPES)} are")
    return {"notify_events": frozenset().union(*(_MAIL_TYPES[each] for each in types))}


def _notify(text: str) -> Mapping[str, Any]:
    if text.startswith(("http://", "https://")):
        if problem := url_error(text):
            raise ValueError(problem)
        return {"notify_url": text}
    arguments = shlex.split(text)
    if not arguments:
        raise ValueError("the value is empty")
    return {"notify_command": tuple(arguments)}


def _warning(text: str) -> Mapping[str, Any]:
    is_script, seconds = values.warning(text)
    return {"warning": seconds, "warns_script": is_script}


_PARSERS: Mapping[str, _Parse] = {
    "job-name": _text("job_name"),
    "partition": _text("queue"),
    "account": _number("account", values.account),
    "nodes": _number("nodes", values.nodes),
    "ntasks": _number("ntasks"),
    "ntasks-per-node": _number("ntasks_per_node"),
    "cpus-per-task": _number("cpus_per_task"),
    "mem": _number("mem", values.mebibytes),
    "mem-per-cpu": _number("mem_per_cpu", values.mebibytes),
    "mem-per-gpu": _number("mem_per_gpu", values.mebibytes),
    "gres": _number("gpus_per_node", values.gres),
    "gpus": _number("gpus", values.gpus),
    "gpus-per-node": _number("gpus_per_node", values.gpus),
    "gpus-per-task": _number("gpus_per_task", values.gpus),
    "dependency": _number("dependencies", values.dependencies),
    "array": _number("array", values.array),
    "time": _number("time_limit", values.time_limit),
    "signal": _warning,
    "constraint": _number("node_labels", values.constraint),
    "output": _text("output"),
    "error": _text("error"),
    "open-mode": _open_mode,
    "chdir": _text("chdir"),
    "mail-type": _mail_type,
    "hold": _true("hold"),
    "requeue": _true("requeue"),
    "no-requeue": _true("requeue", False),
    "exclusive": _exclusive,
    "image": _text("image"),
    "workdir-rw": _true("workdir_rw"),
    "no-workdir": _true("no_workdir"),
    "workdir-claim": _text("workdir_claim"),
    "every-node": _true("every_node"),
    "priority-class": _text("priority_class"),
    "notify": _notify,
}


def parse_options(
    settings: Iterable[Setting],
    environment: Mapping[str, str] | None = None,
    now: datetime | None = None,
) -> SubmitOptions:
    """Return the options of *settings*; those of a greater source override others.

    *environment* has the values of variables that ``--export`` names; *now* is the time in the zone
    of ``--begin``, by default that of the machine.

    Raises:
        SubmitError: a value is malformed, options exclude each other, or one is not supported.
    """
    problems: list[str] = []
    effective = _merge(settings, problems)
    left_out = _ignored_names(effective.pop("ignore", None), problems)
    ignored: list[str] = []
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, setting in effective.items():
        option, where = setting.option, setting.where
        if option.name in left_out and setting.source != OF_FLAGS:
            ignored.append(where)
            continue
        try:
            found |= _parse(setting, environment or {}, now or datetime.now().astimezone())
        except ValueError as error:
            problems.append(f"{where}: {error}")
        except _NotSupportedError as error:
            problems.append(f"{where} is not supported{f': {error}' if str(error) else ''}")
        sources[key] = sources[option.name] = where
    if found.get("notify_events") and not found.keys() & {"notify_url", "notify_command"}:
        problems.append(f"{sources['mail-type']}: there are no mails; --notify is missing")
    if problems:
        raise SubmitError(sorted(problems, key=_line_number))
    return SubmitOptions(**found, ignored=tuple(ignored), sources=sources)


class _NotSupportedError(Exception):
    """The option has no effect here; the text is why, or what to use instead."""


def _merge(settings: Iterable[Setting], problems: list[str]) -> dict[str, Setting]:
    """Return the settings that count, by what they set."""
    found: dict[str, Setting] = {}
    for setting in sorted(settings, key=lambda each: each.source):
        name = setting.option.name
        key = SAME_SETTING.get(name, name)
        other = found.get(key)
        if (
            other is not None
            and other.source == setting.source
            and other.option.argument is not Argument.NONE
            and other.option.name != name
        ):
            problems.append(f"{setting.where}: {other.where} sets the same")
        found[key] = setting
    return found


def _ignored_names(setting: Setting | None, problems: list[str]) -> frozenset[str]:
    if setting is None:
        return frozenset()
    names = setting.value.split(",")
    unknown = [each for each in names if each not in OPTIONS]
    problems += [f"{setting.where}: {each!r} is no option of sbatch" for each in unknown]
    return frozenset(names)


def _parse(setting: Setting, environment: Mapping[str, str], now: datetime) -> Mapping[str, Any]:
    option, value = setting.option, setting.value
    if not option.is_supported:
        raise _NotSupportedError(option.reason)
    if option.name == "export":
        return {"variables": values.export(value, environment)}
    if option.name == "begin":
        return {"begin": values.begin(value, now)}
    return _PARSERS[option.name](value)


def _line_number(problem: str) -> int:
    number = problem.removeprefix("line ").partition(":")[0]
    return int(number) if number.isdecimal() else 0
