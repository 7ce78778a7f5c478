"""``--output`` and ``--error``: the files that a job writes instead of its logs. Pure."""

import re
from collections.abc import Mapping, Sequence

from .environment import literal
from .errors import SubmitError
from .options import SubmitOptions

OPEN_FILES = """\
out=$1 err=$2 mode=$3
shift 3
if [ "$mode" = truncate ]; then
  [ -z "$out" ] || : > "$out" || exit 1
  [ -z "$err" ] || : > "$err" || exit 1
fi
[ -z "$err" ] || exec 2>> "$err" || exit 1
if [ -n "$out" ]; then
  exec >> "$out" || exit 1
  [ -n "$err" ] || exec 2>&1
fi
"""
"""Opens both files. They are appended to, since both may be the same one."""

_IN_POD = {
    "j": "$(SLURM_JOB_ID)",
    "J": "$(SLURM_JOB_ID)",
    "N": "$(SLURMD_NODENAME)",
    "n": "$(SLURM_NODEID)",
    "t": "$(SLURM_PROCID)",
}
"""What Kubernetes replaces in each pod."""


def file_arguments(options: SubmitOptions, *, name: str, is_array: bool) -> Sequence[str]:
    """Return the arguments of :data:`OPEN_FILES`; none if there are no files.

    *name* is the name of the job as Slurm has it.

    Raises:
        SubmitError: a pattern of a name is not supported.
    """
    if not options.output and not options.error:
        return ()
    replaced = {**_IN_POD, "x": literal(name), "A": "$(SLURM_JOB_ID)"}
    if is_array:
        replaced |= {"A": "$(SLURM_ARRAY_JOB_ID)", "a": "$(SLURM_ARRAY_TASK_ID)"}
    found = []
    for option, pattern in (("output", options.output), ("error", options.error)):
        try:
            found.append(_expand(pattern, replaced))
        except ValueError as error:
            raise SubmitError([f"{options.where(option)}: {error}"]) from None
    return (*found, "append" if options.append else "truncate")


def _expand(pattern: str, replaced: Mapping[str, str]) -> str:
    """Return a file name for each pod. With a backslash in it nothing is replaced, as of sbatch.

    Raises:
        ValueError: the pattern has something that is not replaced.
    """
    if "\\" in pattern:
        return literal(pattern.replace("\\", ""))

    def value(match: re.Match[str]) -> str:
        width, kind = match.groups()
        if kind == "%":
            return "%"
        if width or kind not in replaced:
            raise ValueError(f"{match[0]} in the name of a file is not supported")
        return replaced[kind]

    return re.sub(r"%([0-9]*)(.?)", value, literal(pattern))
