"""The Python environments that containers find: the one that the user has activated, then our own.

`batholith up` hands its environment variables down to the agent. An environment that they name is
where the user's packages are; the one in which Batholith itself is installed (a virtual environment
of a project, or pipx's) comes second. Both go before the machine's own programs.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..state.environment import SEARCH_PATH

_ENVIRONMENT_MARKERS = (("VIRTUAL_ENV", "pyvenv.cfg"), ("CONDA_PREFIX", "conda-meta"))
"""Variables that name an active environment, and what is in its folder."""


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Where Python and its packages are."""

    path_dirs: tuple[str, ...]
    """Folders of programs, to be searched before any other."""

    mounted_dirs: tuple[str, ...]
    """What containers have to see so that those programs run."""


def find(variables: Mapping[str, str], *, prefix: str = sys.prefix) -> Interpreters:
    """What *variables* and the environment at *prefix*, our own, offer."""
    order = _environments(variables)
    active = [
        folder
        for name, mark in _ENVIRONMENT_MARKERS
        if os.path.isabs(folder := variables.get(name, "")) and Path(folder, mark).exists()
    ]
    # Which of two was activated last, PATH tells: it comes first there.
    last = len(order)
    active.sort(key=lambda folder: order.index(b) if (b := _bin_dir(folder)) in order else last)
    known = [each for each in dict.fromkeys((*active, prefix)) if _has_python(each)]
    search = tuple(_bin_dir(each) for each in known if _bin_dir(each) not in SEARCH_PATH.split(":"))
    needed = (folder for each in known for folder in (each, *_base_installations(each)))
    return Interpreters(search, tuple(dict.fromkeys(needed)))


def search_path(variables: Mapping[str, str], *, sandboxed: bool) -> str:
    """The PATH of containers: interpreters, then the usual places, then what we search ourselves.

    Without a sandbox a container's programs are ours, in our order.
    """
    usual = SEARCH_PATH.split(":") if sandboxed else []
    places = [*find(variables).path_dirs, *usual, *_environments(variables)]
    return ":".join(dict.fromkeys(places)) or SEARCH_PATH


def _environments(variables: Mapping[str, str]) -> list[str]:
    found = variables.get("PATH", "").split(":")
    return [os.path.normpath(part) for part in found if part.startswith("/")]


def _bin_dir(prefix: str) -> str:
    return os.path.normpath(os.path.join(prefix, "bin"))


def _has_python(directory: str) -> bool:
    return os.access(os.path.join(_bin_dir(directory), "python3"), os.X_OK)


def _base_installations(directory: str) -> list[str]:
    """The installations that a virtual environment is made of."""
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
