"""Warnings of what the isolation of pods lacks on this machine."""

import grp
import os

from . import groups, mounting
from .ids import IdMode
from .runs import IsolationLevel, IsolationReport


def isolation_warning(report: IsolationReport, *, root: bool) -> str:
    """Return what isolation pods lack; empty if none. *root*: the agent runs as root."""
    if report.isolation is IsolationLevel.PLAIN:
        if root:
            return "no sandbox: pods run as root, with all of root's rights on this machine"
        return "no sandbox: pods can read and write all files of the agent's user"
    if root and report.id_mode is IdMode.OWN:
        return "no separate user ids for pods: they run as root inside their sandbox"
    if report.id_mode is IdMode.SWITCHED:
        return "no user namespaces: pods cannot run as root, not even inside their sandbox"
    if not report.safe_paths:
        return "no subPath, and no mounts inside other mounts: pods that use them do not start"
    return ""


def groups_warning(report: IsolationReport) -> str:
    """Return that pods have the supplementary groups of the agent's user; empty if not."""
    kept = groups.supplementary()
    if not kept or os.geteuid() == 0:
        return ""
    is_sandboxed = report.isolation is not IsolationLevel.PLAIN
    if is_sandboxed and report.safe_paths and mounting.drops_groups():
        return ""
    names = ", ".join(sorted(map(_group_name, kept)))
    remedy = " (to drop them: install newgidmap, and add your user to /etc/subgid)"
    return f"pods have the rights of your groups {names}{remedy if is_sandboxed else ''}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
