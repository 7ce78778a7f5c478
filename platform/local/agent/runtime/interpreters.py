"""Python environments for containers: the user's active one, then Batholith's.

The agent inherits the environment variables of `batholith up`. The environment that they name has
the user's packages; the one in which Batholith is installed (a virtual environment of a project, or
of pipx) follows. Both precede the machine's own programs on the PATH.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..state.environment import SEARCH_PATH

_ENVIRONMENT_MARKERS = (("VIRTUAL_ENV", "pyvenv.cfg"), ("CONDA_PREFIX", "conda-meta"))
"""Variables that name an active environment, and an entry of its directory."""


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Directories of Python environments."""

    path_dirs: tuple[str, ...]
    """Directories of programs, first on the PATH."""

    mounted_dirs: tuple[str, ...]
    """Directories to mount into containers so that those programs run."""


def find(variables: Mapping[str, str], *, prefix: str = sys.prefix) -> Interpreters:
    """Return the environments of *variables*, and Batholith's own at *prefix*."""
    order = _environments(variables)
    active = [
        directory
        for name, entry in _ENVIRONMENT_MARKERS
        if os.path.isabs(directory := variables.get(name, "")) and Path(directory, entry).exists()
    ]
    # The environment that was activated last is first on the PATH.
    last = len(order)
    active.sort(key=lambda each: order.index(b) if (b := _bin_dir(each)) in order else last)
    known = [each for each in dict.fromkeys((*active, prefix)) if _has_python(each)]
    search = tuple(_bin_dir(each) for each in known if _bin_dir(each) not in SEARCH_PATH.split(":"))
    mounted = (path for each in known for path in (each, *_base_installations(each)))
    return Interpreters(search, tuple(dict.fromkeys(mounted)))


def search_path(variables: Mapping[str, str], *, sandboxed: bool) -> str:
    """Return the PATH of containers: environments, then the default PATH, then the agent's PATH.

    Without a sandbox, the agent's PATH replaces the default.
    """
    default = SEARCH_PATH.split(":") if sandboxed else []
    directories = [*find(variables).path_dirs, *default, *_environments(variables)]
    return ":".join(dict.fromkeys(directories)) or SEARCH_PATH


def _environments(variables: Mapping[str, str]) -> list[str]:
    found = variables.get("PATH", "").split(":")
    return [os.path.normpath(path) for path in found if path.startswith("/")]


def _bin_dir(prefix: str) -> str:
    return os.path.normpath(os.path.join(prefix, "bin"))


def _has_python(directory: str) -> bool:
    return os.access(os.path.join(_bin_dir(directory), "python3"), os.X_OK)


def _base_installations(directory: str) -> list[str]:
    """Return the base installations of a virtual environment."""
    program = os.path.join(_bin_dir(directory), "python3")
    found = [os.path.dirname(os.path.dirname(os.path.realpath(program)))]
    try:
        lines = Path(directory, "pyvenv.cfg").read_text(errors="replace").splitlines()
    except OSError:
        return found
    named = [
        line.partition("=")[2].strip() for line in lines if line.split("=")[0].strip() == "home"
    ]
    return found + [os.path.dirname(home) for home in named if os.path.isabs(home)]
