"""``batholith mcp``: the REST API as tools of the Model Context Protocol, over stdin and stdout.

A program such as an assistant in an editor gets what the commands show, with the caller's
identity. It can submit jobs only if the caller permits that, and each one is checked without being
created unless the program asks for more.
"""

import functools
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .connection import describe_error, find_job, parse_since
from .shared import CommandFailedError, key

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from ...client import Client

MAX_LINES, MAX_ITEMS = 1_000, 200
"""Of logs, and of jobs, in one result."""

_INSTRUCTIONS = (
    "Jobs of a Kubernetes batch cluster. Names are NAME or KIND/NAME, as list_jobs returns them. "
    "Ask why for a job that waits, and logs for one that has failed."
)
Json = dict[str, Any]


def mcp(
    client: "Client",
    may_submit: Annotated[
        bool, typer.Option("--may-submit", help="Let jobs be created, not only checked.")
    ] = False,
) -> None:
    """Serve jobs as tools of the Model Context Protocol, over stdin and stdout."""
    try:
        server = server_of(client, may_submit=may_submit)
    except ImportError:
        text = "this command needs more packages: pip install 'batholith[mcp]'"
        raise CommandFailedError(text) from None
    if threading.current_thread() is threading.main_thread():
        # The server reads stdin in a thread, which no exception interrupts: as without a handler,
        # Ctrl-C ends this process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    server.run(transport="stdio")


def server_of(client: "Client", *, may_submit: bool) -> "MCPServer":
    """Return the server of the tools.

    Raises:
        ImportError: the package ``mcp`` is not installed.
    """
    from mcp.server import MCPServer

    server = MCPServer("batholith", instructions=_INSTRUCTIONS)
    tools = Tools(client, may_submit=may_submit)
    for tool in (
        tools.list_jobs, tools.job, tools.why, tools.logs,
        tools.history, tools.simulate, tools.submit,
    ):  # fmt: skip
        server.tool()(_with_readable_errors(tool))
    return server


def _with_readable_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(tool)
    def run(*args: Any, **kwargs: Any) -> Any:
        from mcp.server.mcpserver.exceptions import ToolError

        try:
            return tool(*args, **kwargs)
        except Exception as error:
            raise ToolError(describe_error(error)[0]) from None

    return run


class Tools:
    """The tools; their docstrings are the descriptions that programs get."""

    def __init__(self, client: "Client", *, may_submit: bool) -> None:
        """Use the identity of *client*."""
        self._client = client
        self._may_submit = may_submit

    def list_jobs(
        self,
        queue: str | None = None,
        phase: str | None = None,
        label_selector: str | None = None,
        limit: int = 50,
    ) -> list[Json]:
        """List Volcano jobs with phase, queue, pods and times, 200 at most."""
        found = self._client.jobs.list(queue=queue, phase=phase, label_selector=label_selector)
        return [_fields(each.info) for each, _ in zip(found, range(_bound(limit)), strict=False)]

    def job(self, name: str) -> Json:
        """Return one job with its pods, their nodes and exit codes."""
        found = find_job(self._client, name)
        return {**_fields(found.info), "pods": _builtins(found.pods())}

    def why(self, name: str) -> Json:
        """Explain why a job waits, and what would help."""
        found: Json = _builtins(find_job(self._client, name).why())
        return found

    def logs(self, name: str, pod: str | None = None, lines: int = 100) -> str:
        """Return the last lines of the logs of a job: of all its pods, or of one."""
        found = find_job(self._client, name)
        tail = min(max(lines, 1), MAX_LINES)
        text = found.logs(pod=pod, tail_lines=tail, prefix=pod is None and found.info.replicas > 1)
        return "\n".join(line for line, _ in zip(text, range(MAX_LINES), strict=False))

    def history(
        self,
        name: str | None = None,
        queue: str | None = None,
        user: str | None = None,
        account: str | None = None,
        since: str = "7d",
        limit: int = 50,
    ) -> list[Json]:
        """List jobs that ran, also deleted ones; since is a date, or a duration such as 7d."""
        found = self._client.history.list(
            name=name,
            queue=queue,
            user=user,
            account=account,
            start=parse_since(since, datetime.now(UTC)),
        )
        return [_fields(each) for each, _ in zip(found, range(_bound(limit)), strict=False)]

    def simulate(self, manifest: Json) -> Json:
        """Return whether a Volcano job would start now and where, or when, and what would help.
        Nothing is created."""
        found: Json = _builtins(self._client.jobs.simulate(manifest))
        return found

    def submit(self, manifest: Json, dry_run: bool = True) -> str:
        """Check the manifest of a Volcano job; create the job if dry_run is false."""
        if dry_run:
            self._client.jobs.validate(manifest)
            return "the job is valid, and was not created"
        if not self._may_submit:
            text = "jobs can only be checked: `batholith mcp` was started without --may-submit"
            raise CommandFailedError(text)
        return f"created {key(self._client.jobs.submit(manifest))}"


def _bound(limit: int) -> int:
    return min(max(limit, 1), MAX_ITEMS)


def _fields(record: Any) -> Json:
    found: Json = _builtins(record)
    return found


def _builtins(value: object) -> Any:
    import msgspec

    return msgspec.to_builtins(value)
