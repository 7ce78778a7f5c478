"""The commands: ``jobs``, ``job``, ``why``, ``logs``, ``cancel`` and so on."""

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ...model.names import ACCOUNT
from ...model.notifications import NotifyEvent
from ...wire.jobs import JobKindName, Phase
from .connection import complete_jobs, complete_queues, find_job, for_each, parse_since
from .hooks import CommandHook
from .output import Output, OutputOption, Table, emit, show, show_data
from .shared import FAILED, IN_PROCESS, CommandFailedError, key
from .views import (
    POD_COLUMNS,
    QUEUE_COLUMNS,
    explanations,
    job_columns,
    show_job,
    show_queue,
    show_why,
)
from .waits import competition_lines, unknown_competition_lines

if TYPE_CHECKING:
    import msgspec

    from ...client import Client, JobHandle
    from ...wire.commands import CommandResult
    from ...wire.jobs import Explanation

JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="NAME or KIND/NAME.", autocompletion=complete_jobs)
]
JobNames = Annotated[
    list[str],
    typer.Argument(metavar="JOB...", help="NAME or KIND/NAME.", autocompletion=complete_jobs),
]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", autocompletion=complete_queues)]
KindsOption = Annotated[
    list[JobKindName] | None, typer.Option("--kind", help="Default: all kinds. Repeatable.")
]
PhasesOption = Annotated[
    list[Phase] | None, typer.Option("--phase", help="Jobs in this phase. Repeatable.")
]
QueueFilter = Annotated[
    str | None, typer.Option("--queue", "-q", autocompletion=complete_queues, help="Its jobs.")
]
UserFilter = Annotated[
    str | None, typer.Option("--user", "-u", help="Jobs that this user created over REST.")
]
AccountFilter = Annotated[
    str | None, typer.Option("--account", help="Jobs with this `submit --account`.")
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A")]
CommandWait = Annotated[
    int, typer.Option("--wait", min=1, max=60, help="Seconds to wait for the effect.")
]


def jobs(
    client: "Client",
    kind: KindsOption = None,
    queue: QueueFilter = None,
    phase: PhasesOption = None,
    user: UserFilter = None,
    account: AccountFilter = None,
    selector: Annotated[
        str | None, typer.Option("--selector", "-l", help="Labels, as of kubectl.")
    ] = None,
    all_namespaces: AllNamespaces = False,
    sort: Annotated[
        Literal["name", "created", "phase", "queue", "-name", "-created", "-phase", "-queue"],
        typer.Option(help="With a '-' before it, descending."),
    ] = "name",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print changes until interrupted.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs of all kinds."""
    from .listing import list_jobs

    kinds = [str(each) for each in kind or JobKindName]
    filters: dict[str, Any] = {
        "queue": queue,
        "phase": [str(each) for each in phase or ()] or None,
        "label_selector": _with_account(selector, account),
        "all_namespaces": all_namespaces,
    }
    if watch:
        if sort != "name":
            raise ValueError("--watch prints changes as they happen: leave out --sort")
        _watch_jobs(client, kinds, filters, user, output)
        return
    found = list_jobs(client, kinds, user=user, sort=sort, **filters)
    waits = _waits(client, all_namespaces) if output in (Output.WIDE, Output.CSV) else {}
    show(found, job_columns(waits, all_namespaces=all_namespaces), output, name=key)


def _with_account(selector: str | None, account: str | None) -> str | None:
    """Return a label selector of the jobs that *selector* selects and that have an account.

    Raises:
        ValueError: the account is malformed.
    """
    if account is None:
        return selector
    from ..submit.values import account as checked

    wanted = f"{ACCOUNT}={checked(account)}"
    return f"{selector},{wanted}" if selector else wanted


def _waits(client: "Client", all_namespaces: bool) -> "dict[str, Explanation]":
    """Return why jobs wait, by uid; nothing if PodGroups may not be read."""
    from ...client.errors import ForbiddenError

    try:
        return explanations(client.podgroups.list(all_namespaces=all_namespaces))
    except ForbiddenError as error:
        typer.echo(f"batholith: no positions and starts: {error.detail}", err=True)
        return {}


def _watch_jobs(
    client: "Client", kinds: list[str], filters: dict[str, Any], user: str | None, output: Output
) -> None:
    """Print each change as a row: of ``json`` as a line, with its type."""
    from .listing import watch_jobs

    if output in (Output.YAML, Output.CSV):
        raise ValueError(f"--watch has no output {output}: choose table, wide, json or name")
    columns = job_columns({}, all_namespaces=filters["all_namespaces"])
    # What the scheduler has explained is not part of the stream.
    shown = [each for each in columns if each.title not in ("POSITION", "START")]
    table = Table(shown, wide=output is Output.WIDE)
    is_first = True
    for type_, job in watch_jobs(client, kinds, **filters):
        if user is not None and job.user != user:
            continue
        if output is Output.JSON:
            emit([_json_line({"type": type_, "object": job})])
        elif output is Output.NAME:
            emit([key(job)])
        else:
            row = table.lines([job], header=is_first)
            emit([*row[:-1], row[-1] + ("  (deleted)" if type_ == "deleted" else "")])
            is_first = False


def _json_line(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def job(client: "Client", name: JobName, output: OutputOption = Output.TABLE) -> None:
    """Show a job with its pods."""
    found = find_job(client, name)
    if output is Output.NAME:
        emit([key(found)])
        return
    pods = found.pods()
    match output:
        case Output.JSON | Output.YAML:
            show_data({**_fields(found.info), "pods": list(pods)}, output)
        case Output.CSV:
            show(list(pods), POD_COLUMNS, output, name=lambda pod: pod.name)
        case _:
            show_job(found.info, pods, wide=output is Output.WIDE)


def _fields(record: "msgspec.Struct") -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


DataOutput = Annotated[
    Literal["table", "json", "yaml"], typer.Option("--output", "-o", help="Format.")
]


def why(client: "Client", name: JobName, output: DataOutput = "table") -> None:
    """Explain why a job waits."""
    found = find_job(client, name)
    reason = found.why()
    if output == "table":
        show_why(key(found), reason)
        if reason.competition is not None:
            emit(competition_lines(reason.competition))
        elif reason.competition_error:
            emit(unknown_competition_lines(reason.competition_error, client.url == IN_PROCESS))
    else:
        show_data(reason, Output(output))


def logs(
    client: "Client",
    name: JobName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the job has finished.")
    ] = False,
    task: Annotated[str | None, typer.Option(help="All pods of this task.")] = None,
    pod: Annotated[str | None, typer.Option(help="This pod.")] = None,
    all_pods: Annotated[bool, typer.Option("--all", help="All pods of the job.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="The last lines of each pod.")] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps")] = False,
) -> None:
    """Print the logs of a job: of its first pod, or of the pods that are chosen."""
    if sum((task is not None, pod is not None, all_pods)) > 1:
        raise ValueError("give one of --task, --pod and --all")
    found = find_job(client, name)
    options: dict[str, Any] = {"follow": follow, "tail_lines": tail, "timestamps": timestamps}
    if task is None and not all_pods:
        options["pod"] = pod or _first_pod(found)
    else:
        options["task"] = task
    for line in found.logs(**options):
        typer.echo(line)


def exec(  # noqa: A001 - the name of the command
    client: "Client",
    invocation: typer.Context,
    name: JobName,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND [ARGS]...", show_default=False)
    ],
    task: Annotated[str | None, typer.Option(help="In a pod of this task.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="In this pod of the task.")] = None,
    pod: Annotated[str | None, typer.Option(help="In this pod.")] = None,
    container: Annotated[str, typer.Option(help="Of the pod; default: its only one.")] = "",
    tty: Annotated[
        bool | None,
        typer.Option(
            "--tty/--no-tty",
            help="With a terminal. Default: if both input and output are one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a command in a pod of a job: by default in the first that runs."""
    from . import interactive

    found = find_job(client, name)
    chosen = interactive.choose_pod(found, task=task, index=index, pod=pod)
    code = interactive.stream(
        interactive.find_credentials(invocation.params),
        "exec",
        (found.namespace, chosen.name),
        container=container,
        command=command,
        tty=interactive.is_terminal() if tty is None else tty,
    )
    if code:
        raise typer.Exit(code)


def _first_pod(found: "JobHandle") -> str:
    """Return the name of a job's first pod; if there are others, print a note.

    Raises:
        CommandFailedError: there is none.
    """
    pods = found.pods()
    if not pods:
        raise CommandFailedError(
            f"{key(found)} has no pods; `batholith why {key(found)}` explains it, --all --follow"
            " waits for them"
        )
    tasks = [each.name for each in found.info.tasks]
    # Pods without an index, as those of other controllers, are by name.
    first = min(
        pods,
        key=lambda pod: (
            tasks.index(pod.task) if pod.task in tasks else len(tasks),
            pod.index or 0,
            pod.name,
        ),
    )
    if len(pods) > 1:
        typer.echo(f"batholith: {first.name}, one of {len(pods)} pods; all: --all", err=True)
    return first.name


def cancel(
    client: "Client",
    names: JobNames,
    wait: CommandWait = 10,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the job, of any kind; its history stays.")
    ] = False,
) -> None:
    """End jobs for good. They stay as Terminated, unless they are deleted."""

    def act(found: "JobHandle") -> str:
        if delete:
            found.delete()
            return f"{key(found)}: deleted"
        if found.kind != JobKindName.JOBS:
            raise CommandFailedError(
                f"{key(found)} can be suspended or deleted, and not ended otherwise: use"
                " `batholith suspend` or --delete"
            )
        return _outcome(found, found.terminate(wait=wait))

    for_each(client, names, act)


def suspend(client: "Client", names: JobNames, wait: CommandWait = 10) -> None:
    """Terminate the pods of jobs, and keep the jobs to be resumed."""
    for_each(client, names, lambda found: _outcome(found, found.suspend(wait=wait)))


def resume(client: "Client", names: JobNames, wait: CommandWait = 10) -> None:
    """Start suspended jobs again."""
    for_each(client, names, lambda found: _outcome(found, found.resume(wait=wait)))


def hold(client: "Client", names: JobNames, wait: CommandWait = 10) -> None:
    """Keep jobs that have not started from starting, until they are released."""

    def act(found: "JobHandle") -> str:
        if found.phase != Phase.PENDING:
            raise CommandFailedError(
                f"{key(found)} is {found.phase}: only a job that has not started can be held;"
                " `batholith suspend` ends the pods of others"
            )
        return _outcome(found, found.suspend(wait=wait))

    for_each(client, names, act)


def release(client: "Client", names: JobNames, wait: CommandWait = 1) -> None:
    """Let held jobs wait in their queue again."""
    resume(client, names, wait)


def restart(
    client: "Client",
    names: JobNames,
    task: Annotated[str | None, typer.Option(help="Only the pods of this task.")] = None,
    pod: Annotated[str | None, typer.Option(help="Only this pod.")] = None,
    wait: CommandWait = 10,
) -> None:
    """Terminate the pods of Volcano jobs, and create them again."""
    if task is not None and pod is not None:
        raise ValueError("give either --task or --pod")

    def act(found: "JobHandle") -> str:
        return _outcome(found, found.restart(task=task, pod=pod, wait=wait))

    for_each(client, names, act)


def _outcome(found: "JobHandle", result: "CommandResult") -> str:
    """Return the line of a command's result.

    Raises:
        CommandFailedError: it was without effect.
    """
    state = result.command.state
    if state in ("Ignored", "Failed"):
        raise CommandFailedError(f"{key(found)}: without effect: {result.command.detail}")
    if result.reached:
        return f"{key(found)}: {result.phase}"
    return f"{key(found)}: {result.phase}, the command is {state}; {result.detail}".rstrip("; ")


def wait(
    client: "Client",
    names: JobNames,
    phase: Annotated[
        list[Phase] | None, typer.Option("--for", help="Default: until it has finished.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds for each job.")] = None,
    notify: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Run this at start, end and failure of each job."),
    ] = None,
) -> None:
    """Wait until jobs have finished; exit with 1 if one has not completed."""
    phases = [str(each) for each in phase or ()] or None
    arguments = None if notify is None else shlex.split(notify)
    if arguments == []:
        raise ValueError("--notify: the command is empty")

    def act(found: "JobHandle") -> str:
        hook = None if arguments is None else CommandHook(arguments, frozenset(NotifyEvent))
        found.wait(phases, timeout=timeout, on_change=None if hook is None else hook.observe)
        if phases is None and not found.info.succeeded_finally:
            raise CommandFailedError(f"{key(found)}: {found.phase} {found.info.message}", FAILED)
        return f"{key(found)}: {found.phase}"

    for_each(client, names, act)


def queues(client: "Client", output: OutputOption = Output.TABLE) -> None:
    """List queues."""
    show(list(client.queues.list()), QUEUE_COLUMNS, output, name=lambda each: f"queues/{each.name}")


def queue(client: "Client", name: QueueName, output: DataOutput = "table") -> None:
    """Show a queue: what it has and may have."""
    found = client.queues.get(name)
    usage = client.queues.usage(name)
    if output == "table":
        show_queue(found, usage)
    else:
        show_data({**_fields(found), "usage": usage}, Output(output))


def history(
    client: "Client",
    name: Annotated[str | None, typer.Argument(help="Only jobs of this name.")] = None,
    kind: KindsOption = None,
    queue: QueueFilter = None,
    phase: PhasesOption = None,
    user: UserFilter = None,
    account: AccountFilter = None,
    since: Annotated[
        str | None, typer.Option(help="A duration such as 90m, 12h or 7d, or a date.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Jobs at most.")] = 100,
    fields: Annotated[
        str | None,
        typer.Option(
            "--format", help="Columns, as of sacct: JobID,JobName%20,State,ExitCode,Elapsed."
        ),
    ] = None,
    all_namespaces: AllNamespaces = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs that ran, also deleted ones: unfinished ones first, then the last that ended."""
    from .record_fields import chosen_columns, record_columns

    columns = record_columns(all_namespaces=all_namespaces)
    if fields is not None:
        columns = chosen_columns(fields)
        if output in (Output.JSON, Output.YAML, Output.NAME):
            raise ValueError(f"--format chooses columns, and {output} has none: leave out one")
    records = client.history.list(
        name=name,
        kind=[str(each) for each in kind or ()] or None,
        queue=queue,
        phase=[str(each) for each in phase or ()] or None,
        user=user,
        account=account,
        start=None if since is None else parse_since(since, datetime.now(UTC)),
        all_namespaces=all_namespaces,
    )
    found = _first(records, limit)
    show(found, columns, output, name=key)
    if len(found) == limit:
        typer.echo(f"batholith: the first {limit} jobs; more: --limit", err=True)


def _first(records: Iterator[Any], limit: int) -> list[Any]:
    return [record for record, _ in zip(records, range(limit), strict=False)]
