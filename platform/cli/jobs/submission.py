"""``batholith submit``: run a script or a command as a Volcano job."""

import contextlib
import dataclasses
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from ...model.names import JOB_ID
from ...model.notifications import NotifyEvent
from ...wire.jobs import JobKindName
from ...wire.renewal import new_number
from ..submit import option_table
from ..submit.directives import WRAPPER, Script, from_environment, from_flags, read_script
from ..submit.errors import SubmitError
from ..submit.manifest import Claim, Program, build_manifest
from ..submit.option_table import Argument
from ..submit.options import parse_options
from .forwarded_signals import SignalForwarder
from .hooks import CommandHook
from .output import Output, emit, show_data
from .shared import FAILED, IN_PROCESS, WRONG_ARGUMENTS, key
from .simulation import print_simulation

if TYPE_CHECKING:
    from ...client import Client, JobHandle

CANCEL_TIMEOUT = 30
"""Seconds to wait for the end of an interrupted job."""
_OF_SIGNAL = 128
"""Exit code of a program that a signal has ended, minus its number."""
_AFTER_DASHES = "batholith.after-dashes"
_NOT_ON_COMMAND_LINE = ("n", "o")
"""Short options that have another meaning in all commands."""


class ProgramCommand(TyperCommand):
    """A command whose arguments are those of a program: a script, or what follows ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and record whether a ``--`` precedes the program."""
        given = list(args)
        rest = super().parse_args(ctx, args)
        count = len(ctx.params.get("program") or ())
        before = given[: len(given) - count]
        ctx.meta[_AFTER_DASHES] = before[-1:] == ["--"]
        return rest


PROGRAM_SETTINGS: dict[str, Any] = {
    "cls": ProgramCommand,
    "context_settings": {"allow_interspersed_args": False},
}
ProgramArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGS]... | -- COMMAND [ARGS]...", show_default=False),
]
Flags = dict[str, str | bool | None]
"""Values of the flags by the names of their options; ``None`` is not set."""
Wait = Annotated[
    bool, typer.Option("--wait", "-W", help="Print the logs, and exit as the job does.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the manifest after the server has checked it.")
]
Format = Annotated[
    Literal["yaml", "json"] | None,
    typer.Option("--format", "-o", help="Of the manifest; default: yaml.", show_default=False),
]
Wrap = Annotated[str | None, typer.Option(help="Run these lines of sh instead of a script.")]


def with_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Return *function* with a flag for each option; it gets them as the dictionary ``flags``."""
    names = {each.name.replace("-", "_"): each.name for each in option_table.SUPPORTED}
    own = [each for each in inspect.signature(function).parameters.values() if each.name != "flags"]

    def command(client: "Client", **arguments: Any) -> None:
        flags = {option: arguments.pop(name) for name, option in names.items()}
        function(client, flags=flags, **arguments)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    parameters = [*own, *map(_parameter, option_table.SUPPORTED)]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    return command


def _parameter(option: option_table.Option) -> inspect.Parameter:
    is_switch = option.argument is not Argument.REQUIRED
    names = [f"--{option.name}"]
    if option.short and option.short not in _NOT_ON_COMMAND_LINE:
        names.append(f"-{option.short}")
    panel = "Batholith" if option.own else "As of sbatch"
    return inspect.Parameter(
        option.name.replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=False if is_switch else None,
        annotation=Annotated[
            bool if is_switch else str | None,
            typer.Option(*names, help=option.help, rich_help_panel=panel, show_default=False),
        ],
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Submission:
    """A job that is to be created."""

    manifest: dict[str, Any]
    hook: CommandHook | None = None
    """The command that is notified of it."""
    archive: bytes = b""
    """Its working directory; empty for none."""
    claim: Claim | None = None
    """Where that is stored; ``None`` for ConfigMaps."""


@with_flags
def submit(
    client: "Client",
    invocation: typer.Context,
    program: ProgramArgument = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="Print what `batholith simulate` does, and no more.")
    ] = False,
    output_format: Format = None,
    wrap: Wrap = None,
    *,
    flags: Flags,
) -> None:
    """Submit a script with #SBATCH lines, or a command, as a job."""
    with each_problem_on_its_line():
        if test_only:
            _check_test(client, wait=wait, dry_run=dry_run)
        script, found = read_program(invocation, program or [], wrap)
        job = prepare(client, invocation, script, found, flags)
        check_hook(job.hook, waits=wait or dry_run or test_only)
    if test_only:
        print_simulation(client, job.manifest, output_format or "table")
        return
    create(client, job, dry_run=dry_run, wait=wait, output_format=output_format)


@with_flags
def sweep(
    client: "Client",
    invocation: typer.Context,
    program: ProgramArgument = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--param", help="NAME=V1,V2,… or NAME=FIRST..LAST. Repeatable."),
    ] = None,
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Members that run at a time. Default: all.")
    ] = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    output_format: Format = None,
    *,
    flags: Flags,
) -> None:
    """Run a script or a command once for each combination of parameters, which replace {NAME}."""
    with each_problem_on_its_line():
        if not parameters:
            raise SubmitError(["--param is missing"])
        script, found = read_program(invocation, program or [], None)
        found = dataclasses.replace(found, parameters=parameters)
        job = prepare(client, invocation, script, found, flags, max_parallel=max_parallel)
        check_hook(job.hook, waits=wait or dry_run)
    create(client, job, dry_run=dry_run, wait=wait, output_format=output_format)


@with_flags
def run(
    client: "Client",
    invocation: typer.Context,
    program: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGS]...", show_default=False)],
    pty: Annotated[
        bool, typer.Option("--pty", help="Connect this terminal to the command's own one.")
    ] = False,
    *,
    flags: Flags,
) -> None:
    """Run a command as a job: print its output, exit as it does, and cancel it with Ctrl-C.

    Its pods get SIGQUIT, SIGUSR1 and SIGUSR2, too.
    """
    _end_by_signals()
    forwarder = SignalForwarder()
    with each_problem_on_its_line():
        found = Program(arguments=program, name=Path(program[0]).name)
        prepared = prepare(client, invocation, Script(""), found, flags)
        session = _terminal_session(invocation, prepared) if pty else None
    job = _submitted(client, prepared)
    typer.echo(f"batholith: {key(job)}", err=True)
    forwarder.start(job, invocation.params)
    try:
        if session is not None:
            session(job)
        else:
            follow(job, prepared.hook)
    except KeyboardInterrupt as error:
        job.terminate(wait=CANCEL_TIMEOUT)
        typer.echo(f"batholith: {key(job)}: {job.phase}", err=True)
        number = error.number if isinstance(error, _SignalledError) else signal.SIGINT
        raise typer.Exit(_OF_SIGNAL + number) from None


class _SignalledError(KeyboardInterrupt):
    """This process is to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _end_by_signals() -> None:
    """Let SIGTERM and SIGHUP have the effect of Ctrl-C, unless they are ignored, as by nohup."""

    def end(number: int, _: object) -> None:
        raise _SignalledError(number)

    if threading.current_thread() is not threading.main_thread():
        return  # which Python does not permit
    for each in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) == signal.SIG_DFL:
            signal.signal(each, end)


def _terminal_session(
    invocation: typer.Context, submission: Submission
) -> Callable[["JobHandle"], None]:
    """Give the program of a job a terminal; return what connects to it once the job is created.

    Raises:
        SubmitError: there is no terminal here, or not one program.
        CommandFailedError: there are no credentials of the Kubernetes API.
    """
    from . import interactive

    if not interactive.is_terminal():
        raise SubmitError(["--pty: input and output are no terminal here"])
    tasks = submission.manifest["spec"]["tasks"]
    if [task.get("replicas", 1) for task in tasks] != [1]:
        raise SubmitError(["--pty is for one pod: leave out --ntasks and --array"])
    container = tasks[0]["template"]["spec"]["containers"][0]
    container |= {"stdin": True, "stdinOnce": True, "tty": True}
    credentials = interactive.find_credentials(invocation.params)

    def connect(job: "JobHandle") -> None:
        if submission.hook is not None:
            submission.hook.wait_started(job)
        interactive.attach(credentials, job)
        exit_as(job, submission.hook)

    return connect


@contextlib.contextmanager
def each_problem_on_its_line() -> Iterator[None]:
    """Print the problems of a `SubmitError`, and exit."""
    try:
        yield
    except SubmitError as error:
        for problem in error.problems:
            typer.echo(f"batholith: {problem}", err=True)
        raise typer.Exit(WRONG_ARGUMENTS) from None


def read_program(
    invocation: typer.Context, arguments: Sequence[str], wrap: str | None
) -> tuple[Script, Program]:
    """Return the script, which is empty for a command, and what runs.

    Raises:
        SubmitError: there is neither a script nor a command, or the script is malformed.
    """
    if wrap is not None:
        if arguments:
            raise SubmitError(["give either --wrap or a script"])
        text = WRAPPER.format(wrap)
        return read_script(text), Program(script=text, name="wrap")
    if invocation.meta.get(_AFTER_DASHES) and arguments:
        return Script(""), Program(arguments=arguments, name=Path(arguments[0]).name)
    if arguments:
        path = Path(arguments[0])
        script = read_script(_read_text(path))
        return script, Program(script=script.text, arguments=arguments[1:], name=path.name)
    if sys.stdin.isatty():
        raise SubmitError(["give a script, or a command after --"])
    script = read_script(sys.stdin.read())
    return script, Program(script=script.text, name="sbatch")


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise SubmitError([f"{path} is not UTF-8"]) from None
    except OSError as error:
        raise SubmitError(
            [f"cannot read {path}: {error.strerror}; a command is preceded by --"]
        ) from None


def prepare(
    client: "Client", invocation: typer.Context, script: Script, program: Program, flags: Flags,
    *, max_parallel: int | None = None,
) -> Submission:  # fmt: skip
    """Return a job for the cluster of *client*; print notes about it.

    Raises:
        SubmitError: an option is wrong, or does not fit the others or the cluster.
    """
    from .workspace import find_workspace

    if client.namespace.isdecimal():
        raise SubmitError([f"-n is the namespace here: write --ntasks={client.namespace}"])
    settings = [*script.settings, *from_environment(os.environ), *from_flags(flags)]
    options = parse_options(settings, os.environ)
    if max_parallel is not None:
        options = dataclasses.replace(options, max_parallel=max_parallel)
    if options.dependencies:
        where = options.where("dependency")
        found = [(kind, _name_of(client, job, where)) for kind, job in options.dependencies]
        options = dataclasses.replace(options, dependencies=tuple(found))
    workspace = find_workspace(options, client, invocation.params)
    manifest = build_manifest(options, program, workspace, number=new_number())
    notes = [*script.notes, *(f"left out: {each}" for each in options.ignored)]
    for note in notes:
        typer.echo(f"batholith: {note}", err=True)
    events = frozenset(NotifyEvent) if options.notify_events is None else options.notify_events
    hook = CommandHook(options.notify_command, events) if options.notify_command else None
    return Submission(manifest, hook, workspace.archive, workspace.claim)


def _check_test(client: "Client", *, wait: bool, dry_run: bool) -> None:
    if wait or dry_run:
        raise SubmitError([f"{'--wait' if wait else '--dry-run'}: --test-only excludes it"])
    if client.url == IN_PROCESS:
        raise SubmitError(["--test-only needs the REST API: leave out --kubernetes"])


def check_hook(hook: CommandHook | None, *, waits: bool) -> None:
    """Check that *hook* is called: that the command *waits* for the job, or creates none.

    Raises:
        SubmitError: it would not be.
    """
    if hook is not None and not waits:
        raise SubmitError(
            [
                "--notify: a command is notified only while this one waits: use --wait, or"
                " `batholith wait --notify`"
            ]
        )


def _name_of(client: "Client", text: str, where: str) -> str:
    """Return the name of the Volcano job of a number, a name or ``jobs/NAME``.

    Raises:
        SubmitError: there is none.
    """
    from ...client.errors import NotFoundError

    if not text:  # of a singleton
        return ""
    if text.isdecimal():
        found = list(client.jobs.list(label_selector=f"{JOB_ID}={text}"))
        if found:
            return found[0].name
    try:
        return client.jobs.get(text.removeprefix(f"{JobKindName.JOBS}/")).name
    except (NotFoundError, ValueError):
        raise SubmitError([f"{where}: there is no job {text!r}"]) from None


def create(
    client: "Client",
    submission: Submission,
    *,
    dry_run: bool,
    wait: bool,
    output_format: str | None,
) -> None:
    """Create a job and print its name, or with *dry_run* print its manifest."""
    if dry_run:
        client.jobs.validate(submission.manifest)
        show_data(submission.manifest, Output(output_format or Output.YAML))
        return
    job = _submitted(client, submission)
    emit([key(job)])
    if not wait:
        return
    try:
        follow(job, submission.hook)
    except KeyboardInterrupt:
        text = f"{key(job)} continues: `batholith wait` waits for it, `batholith cancel` ends it"
        typer.echo(f"batholith: {text}", err=True)
        raise


def _submitted(client: "Client", submission: Submission) -> "JobHandle":
    """Create a job, and what its pods need.

    Raises:
        CommandFailedError: the working directory cannot be stored; the job is deleted again.
    """
    if not submission.archive:
        return client.jobs.submit(submission.manifest)
    from .packed_submission import submit_packed

    return submit_packed(client, submission.manifest, submission.archive, submission.claim)


def follow(job: "JobHandle", hook: CommandHook | None = None) -> None:
    """Print the logs of a job until it has finished, and notify *hook*.

    Raises:
        typer.Exit: it failed: with the exit code of the first pod that did.
    """
    if hook is not None:
        hook.wait_started(job)
    for line in job.logs(follow=True, prefix=job.info.replicas > 1):
        typer.echo(line)
    exit_as(job, hook)


def exit_as(job: "JobHandle", hook: CommandHook | None = None) -> None:
    """Wait until a job has finished, and notify *hook*.

    Raises:
        typer.Exit: it failed: with the exit code of the first pod that did.
    """
    job.wait(on_change=None if hook is None else hook.observe)
    if job.info.succeeded_finally:
        return
    typer.echo(f"batholith: {key(job)}: {job.phase} {job.info.message}".rstrip(), err=True)
    codes = (pod.exit_code for pod in sorted(job.pods(), key=lambda pod: pod.index or 0))
    raise typer.Exit(next((code for code in codes if code), FAILED))
