"""Array jobs: independent pods of one task, each with an index or with parameters.

The plugin ``array`` of a Volcano job has them as arguments: ``--indices=1,3,5-9:2``, or
``--param=lr=0.1,0.01`` once for each parameter, of which each combination is one member.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from .field_errors import quote
from .job import Job
from .job_size import MAX_PODS
from .names import MAX_PARALLEL

PLUGIN = "array"
MAX_INDEX = 4_000_000
PARAMETER_PREFIX = "BATHOLITH_PARAM_"
"""Begin of the names of the variables of parameters."""
_ELEMENT = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_RANGE = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})")


def parse_indices(text: str) -> Sequence[int]:
    """Return the indices of ``0-99``, ``1,3,5-9:2``, ascending, each once.

    Raises:
        ValueError: the text is malformed, or there are too many.
    """
    found: set[int] = set()
    for element in text.split(","):
        match = _ELEMENT.fullmatch(element)
        if match is None:
            raise ValueError(f"{element!r} is no index such as 7, 0-9 or 0-9:2")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or not step:
            raise ValueError(f"{element!r} has no indices")
        if last > MAX_INDEX:
            raise ValueError(f"{last} is more than {MAX_INDEX}")
        indices = range(first, last + 1, step)
        if len(indices) > MAX_PODS:
            raise ValueError(f"{element!r} has more than {MAX_PODS} indices")
        found.update(indices)
    return sorted(found)


@dataclass(frozen=True)
class Parameter:
    """A parameter with its values."""

    name: str
    values: Sequence[str]

    @classmethod
    def parse(cls, text: str) -> "Parameter":
        """Return the parameter of ``NAME=V1,V2`` or ``NAME=FIRST..LAST``.

        Raises:
            ValueError: it is malformed.
        """
        name, equals, given = text.partition("=")
        if not equals or not given:
            raise ValueError(f"{text!r} is not NAME=VALUE,VALUE or NAME=FIRST..LAST")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of letters, digits and underscores")
        match = _RANGE.fullmatch(given)
        if match is None:
            return cls(name, given.split(","))
        numbers = range(int(match[1]), int(match[2]) + 1)
        if not 0 < len(numbers) <= MAX_PODS:
            raise ValueError(f"{given!r} has {len(numbers)} values")
        return cls(name, [str(each) for each in numbers])


@dataclass(frozen=True)
class ArrayMembers:
    """The members of an array job: by indices, by parameters, or both counted from 0."""

    indices: Sequence[int]
    parameters: Sequence[Parameter] = ()

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "ArrayMembers":
        """Return the members of the arguments of the plugin.

        Raises:
            ValueError: an argument is unknown or malformed, or there are too many members.
        """
        indices: Sequence[int] | None = None
        parameters = []
        for argument in arguments:
            flag, _, value = argument.removeprefix("--").partition("=")
            if flag == "indices" and indices is None:
                indices = parse_indices(value)
            elif flag == "param":
                parameters.append(Parameter.parse(value))
            else:
                raise ValueError(f"{argument!r} is neither --indices=… (once) nor --param=NAME=…")
        if len({each.name for each in parameters}) < len(parameters):
            raise ValueError("two parameters have the same name")
        if (indices is None) == (not parameters):
            raise ValueError("give either --indices or --param")
        if indices is None:
            count = prod(len(each.values) for each in parameters)
            if count > MAX_PODS:
                raise ValueError(f"{count} combinations are more than {MAX_PODS}")
            indices = range(count)
        return cls(indices, parameters)

    def values(self, member: int) -> Mapping[str, str]:
        """Return the parameters of a member; the last one varies fastest.

        Raises:
            IndexError: there is no such member.
        """
        if not 0 <= member < len(self.indices):
            raise IndexError(f"there are {len(self.indices)} members, and no member {member}")
        found = {}
        for each in reversed(self.parameters):
            member, chosen = divmod(member, len(each.values))
            found[each.name] = each.values[chosen]
        return found

    @cached_property
    def step(self) -> int:
        """The distance of the indices if it is equal for all, else 1."""
        pairs = zip(self.indices, self.indices[1:], strict=False)
        steps = {after - before for before, after in pairs}
        return steps.pop() if len(steps) == 1 else 1


def max_parallel(annotations: Mapping[str, str]) -> int | None:
    """Return how many pods of each task may be unfinished at a time; ``None`` for any number.

    A malformed value, which admission denies, limits nothing.
    """
    text = annotations.get(MAX_PARALLEL, "")
    return None if not text or max_parallel_error(text) else int(text)


def max_parallel_error(text: str) -> str:
    """Return why *text* is no such limit; empty if it is one."""
    return "" if re.fullmatch(r"[1-9][0-9]{0,8}", text) else "must be a whole number above 0"


def array_errors(job: Job) -> Iterator[str]:
    """Yield what is wrong with the plugin ``array`` of a job, and with its limit of pods."""
    yield from _limit_errors(job)
    if PLUGIN not in job.spec.plugins:
        return
    try:
        count = len(ArrayMembers.parse(job.spec.plugins[PLUGIN]).indices)
    except ValueError as error:
        yield f"spec.plugins[{PLUGIN}]: {error}"
        return
    for task in job.spec.tasks:
        if task.replicas > count:
            yield (
                f"spec.plugins[{PLUGIN}]: there are {count} members, and task {task.name} has"
                f" {task.replicas} replicas"
            )


def _limit_errors(job: Job) -> Iterator[str]:
    text = job.metadata.annotations.get(MAX_PARALLEL)
    if text is None:
        return
    path = f"metadata.annotations[{MAX_PARALLEL}]: Invalid value: {quote(text)}"
    if error := max_parallel_error(text):
        yield f"{path}: {error}"
        return
    limit, spec = int(text), job.spec
    for task in spec.tasks:
        if (task.min_available or 0) > limit:
            yield f"{path}: task {task.name} needs minAvailable {task.min_available} pods at a time"
    if sum(min(task.replicas, limit) for task in spec.tasks) < spec.min_available:
        yield f"{path}: the job needs minAvailable {spec.min_available} pods at a time"
