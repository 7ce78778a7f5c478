"""The commands of ``batholith``, with what their list shows, so that it imports none of them.

A program has all of them, and of those that are not called the names and help alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

import typer

from .version import Version


class Kind(StrEnum):
    """How a command is added to a program."""

    PLAIN = "plain"
    JOBS = "jobs"
    """It gets a client of the REST API."""
    PROGRAM = "program"
    """The same, and its arguments are a program with its own ones."""
    COMPONENT = "component"
    """A process of a cluster."""
    GO = "go"
    """The same, with flags in Go's syntax."""
    GROUP = "group"
    """Its module has several commands, in ``app``."""


@dataclass(frozen=True, slots=True)
class Row:
    """A command."""

    name: str
    """Also that of its function."""
    module: str
    """In this package."""
    help: str
    """The first line of the function's docstring."""
    kind: Kind = Kind.PLAIN


def _of(kind: Kind, module: str, commands: dict[str, str]) -> tuple[Row, ...]:
    return tuple(Row(name, module, help_, kind) for name, help_ in commands.items())


TABLE: tuple[Row, ...] = (
    *_of(Kind.PLAIN, "cluster", {
        "up": "Start a Kubernetes-compatible cluster with Batholith on this machine.",
        "down": "Stop the cluster: terminate its pods gracefully, then all components.",
        "status": "Show the components of the cluster and its addresses; exit with 3 if it is not"
        " up.",
        "demo": "Run a gang job on a temporary cluster: suspend it, resume it, wait for"
        " completion.",
    }),
    Row("join", "nodes", "Run pods of the cluster of another machine on this one."),
    Row("export", "export",
        "Print the objects of a cluster that is up, as manifests to apply on Kubernetes."),
    Row("preflight", "preflight",
        "Check whether Batholith can be installed; exit with 1 and print what to do if not."),
    Row("apiserver", "components", "Run the embedded Kubernetes API server.", Kind.COMPONENT),
    Row("controllers", "controllers",
        "Run the controllers: of queues, jobs and PodGroups, and others by name.", Kind.GO),
    Row("scheduler", "scheduler", "Run the gang scheduler.", Kind.GO),
    Row("admission", "admission", "Serve the admission rules as webhooks over HTTPS.", Kind.GO),
    *_of(Kind.COMPONENT, "components", {
        "agent": "Run pods as processes of this machine, or simulate nodes.",
        "api": "Serve the REST command API, with /livez and /readyz.",
        "workloads": "Run the controllers that an embedded cluster needs and a Kubernetes cluster"
        " has already.",
        "proxy": "Connect the addresses of an embedded cluster's Services to their pods, and"
        " serve names.",
    }),
    Row("pasta", "node_network", "Connect the network namespace of an embedded cluster's node.",
        Kind.COMPONENT),
    Row("image", "images", "Images that pods of the embedded cluster run.", Kind.GROUP),
    Row("nodes", "node_revocation",
        "Nodes of other machines that have joined the cluster of this one.", Kind.GROUP),
    Row("token", "nodes", "Tokens with which other machines join the cluster of this one.",
        Kind.GROUP),
    Row("version", "cluster", "Print the version."),
    *_of(Kind.PROGRAM, "jobs.submission", {
        "submit": "Submit a script with #SBATCH lines, or a command, as a job.",
        "run": "Run a command as a job: print its output, exit as it does, and cancel it with"
        " Ctrl-C.",
        "sweep": "Run a script or a command once for each combination of parameters, which replace"
        " {NAME}.",
    }),
    Row("simulate", "jobs.simulate",
        "Print when a job would start and where, or what would let it; nothing is created.",
        Kind.PROGRAM),
    *_of(Kind.JOBS, "jobs.commands", {
        "jobs": "List jobs of all kinds.",
        "job": "Show a job with its pods.",
        "why": "Explain why a job waits.",
        "logs": "Print the logs of a job: of its first pod, or of the pods that are chosen.",
        "exec": "Run a command in a pod of a job: by default in the first that runs.",
        "wait": "Wait until jobs have finished; exit with 1 if one has not completed.",
        "cancel": "End jobs for good. They stay as Terminated, unless they are deleted.",
        "suspend": "Terminate the pods of jobs, and keep the jobs to be resumed.",
        "resume": "Start suspended jobs again.",
        "hold": "Keep jobs that have not started from starting, until they are released.",
        "release": "Let held jobs wait in their queue again.",
        "restart": "Terminate the pods of Volcano jobs, and create them again.",
    }),
    Row("rerun", "jobs.past_jobs",
        "Submit a job again under a new name, also one that was deleted.", Kind.JOBS),
    *_of(Kind.JOBS, "jobs.commands", {
        "queues": "List queues.",
        "queue": "Show a queue: what it has and may have.",
        "history": "List jobs that ran, also deleted ones: unfinished ones first, then the last"
        " that ended.",
    }),
    Row("reservations", "jobs.reservations",
        "List what the scheduler has reserved on nodes for jobs that wait.", Kind.JOBS),
    Row("usage", "jobs.past_jobs",
        "Show the resources that pods have used: requests times seconds, by queue, user or"
        " account.",
        Kind.JOBS),
    Row("mcp", "jobs.mcp_server",
        "Serve jobs as tools of the Model Context Protocol, over stdin and stdout.", Kind.JOBS),
)  # fmt: skip
"""All commands, in the order of their list."""
_OF_JOBS = (Kind.JOBS, Kind.PROGRAM)


def new_program(*names: str) -> typer.Typer:
    """Return the program, in which the commands *names* can be called; by default all can."""
    app = typer.Typer(name="batholith", no_args_is_help=True, pretty_exceptions_enable=False)

    @app.callback()
    def batholith(context: typer.Context, version: Version = False) -> None:
        """A batch platform for Kubernetes, with an embedded cluster for one machine."""
        context.obj = new_program  # `up` runs other commands

    for row in TABLE:
        if not names or row.name in names:
            _add(app, row)
        else:
            _add_listed(app, row)
    return app


def command_function(row: Row) -> Callable[..., None]:
    """Import the function of a command."""
    function: Callable[..., None] = getattr(import_module(f".{row.module}", __package__), row.name)
    return function


def _add(app: typer.Typer, row: Row) -> None:
    settings: dict[str, Any] = {}
    if row.kind is Kind.GROUP:
        app.add_typer(import_module(f".{row.module}", __package__).app, name=row.name)
        return
    function = command_function(row)
    if row.kind is Kind.GO:
        from .go_flags import GoFlagCommand

        settings["cls"] = GoFlagCommand
    elif row.kind in _OF_JOBS:
        from .jobs.connection import on_cluster

        function = on_cluster(function)
        settings["rich_help_panel"] = "Jobs"
        if row.kind is Kind.PROGRAM:
            from .jobs.submission import PROGRAM_SETTINGS

            settings |= PROGRAM_SETTINGS
    app.command(row.name, **settings)(function)


def _add_listed(app: typer.Typer, row: Row) -> None:
    def listed() -> None:
        """Nothing: another command is called."""

    if row.kind is Kind.GROUP:
        app.add_typer(typer.Typer(help=row.help), name=row.name)
        return
    panel = "Jobs" if row.kind in _OF_JOBS else None
    app.command(row.name, help=row.help, rich_help_panel=panel)(listed)
