"""How the commands reach the REST API, and what they print and exit with on errors."""

import functools
import inspect
import math
import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...wire.jobs import JobKindName
from .shared import (
    FAILED,
    NO_CLUSTER,
    NOT_FOUND,
    NOT_PERMITTED,
    TIMEOUT,
    WRONG_ARGUMENTS,
    CommandFailedError,
    key,
)

if TYPE_CHECKING:
    from ...client import Client, JobHandle

_NO_RESPONSE = "the REST API does not respond; `batholith status` shows whether a cluster is up"


def _option(kind: type, name: str, *flags: str, text: str) -> inspect.Parameter:
    default: Any = False if kind is bool else None
    annotated = kind if kind is bool else kind | None
    option = typer.Option(*flags, help=text, rich_help_panel="Cluster")
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotated, option],
    )


CONNECTION = (
    _option(str, "namespace", "--namespace", "-n", text="Default: that of the context."),
    _option(Path, "kubeconfig", text="Default: $KUBECONFIG, else ~/.kube/config."),
    _option(str, "context", text="Context of the kubeconfig; default: its current one."),
    _option(Path, "data_dir", text="Data directory of `batholith up`."),
    _option(str, "url", text="The REST API; default: $BATHOLITH_API_URL, else a running `up`."),
    _option(Path, "token_file", text="File with a bearer token; read for each request."),
    _option(Path, "ca_file", text="Trust only these CAs."),
    _option(
        bool,
        "kubernetes",
        "--kubernetes",
        text="Use the Kubernetes API of the kubeconfig alone, where no REST API is installed.",
    ),
    _option(bool, "insecure", "--insecure", text="Send the token over HTTP to another host."),
)
"""Options that all commands have: the arguments of the SDK's client."""


def on_cluster(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command that calls *function* with a client, as the options describe it."""
    own = [*inspect.signature(function).parameters.values()][1:]

    def command(**arguments: Any) -> None:
        given = {each.name: arguments.pop(each.name) for each in CONNECTION}
        try:
            if given.pop("kubernetes"):
                reached = _kubernetes_client(
                    function.__name__, given, everywhere=arguments.get("all_namespaces", False)
                )
            else:
                reached = _client(given)
            with reached as client:
                function(client, **arguments)
        except Exception as error:
            raise typer.Exit(report(error)) from None

    functools.update_wrapper(command, function)
    del command.__wrapped__  # type: ignore[attr-defined]
    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    parameters = [*keyword, *CONNECTION]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _client(given: dict[str, Any], **options: Any) -> "Client":
    from ...client import Client, Retries

    arguments = {name: value for name, value in given.items() if value is not None}
    options = {"retries": Retries(on_retry=RetryNotice()), **options}
    return Client(arguments.pop("url", None), **arguments, **options)


class RetryNotice:
    """Prints that a call is tried again, once it has taken noticeably long."""

    THRESHOLD = 1.0
    """Seconds from the first failure to the next attempt after which that is printed."""
    REPEAT = 30.0
    """Seconds after which a failure counts as another one."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._first = self._last = -math.inf
        self._is_printed = False

    def __call__(self, failure: Exception, delay: float) -> None:
        """Note that *failure* is followed by another attempt after *delay* seconds."""
        now = self._monotonic()
        if now - self._last > self.REPEAT:
            self._first, self._is_printed = now, False
        self._last = now + delay
        if self._is_printed or self._last - self._first < self.THRESHOLD:
            return
        self._is_printed = True
        text = printable(describe_error(failure)[0].partition(";")[0])
        typer.echo(f"batholith: {text}; trying again", err=True)


NEED_REST = ("history", "usage", "mcp", "simulate", "reservations")
"""Commands that read what only the REST API stores, or what it alone may ask the scheduler."""


def _kubernetes_client(command: str, given: dict[str, Any], *, everywhere: bool) -> "Client":
    """Return a client of the REST API in this process.

    Raises:
        CommandFailedError: the command needs an installed REST API, or the API server does not
            respond.
        ValueError: an option is of a REST API.
    """
    from ...client.kubeconfig import load_context
    from ...kube.errors import ApiError, ConfigError, ConnectionLostError, NotSentError
    from ...model.kubeconfig import default_paths
    from .kubernetes import InProcessTransport, KubernetesClient

    if command in NEED_REST:
        raise CommandFailedError(
            f"`{command}` needs the REST API: leave out --kubernetes",
            WRONG_ARGUMENTS,
        )
    wrong = [each for each in ("url", "data_dir", "token_file", "ca_file") if given[each]]
    if wrong:
        names = ", ".join(f"--{each.replace('_', '-')}" for each in wrong)
        raise ValueError(f"--kubernetes uses a kubeconfig alone: leave out {names}")
    kubeconfig, context = given["kubeconfig"], given["context"]
    paths = [kubeconfig] if kubeconfig is not None else default_paths()
    namespace = given["namespace"] or load_context(paths, context).namespace
    try:
        transport = InProcessTransport(kubeconfig, context, "" if everywhere else namespace)
    except ApiError as error:
        raise CommandFailedError(f"the API server rejects you: {error}", NOT_PERMITTED) from None
    except (ConfigError, ConnectionLostError, NotSentError, OSError) as error:
        text = f"cannot reach the Kubernetes API: {error}; try `kubectl version`"
        raise CommandFailedError(text, NO_CLUSTER) from None
    return KubernetesClient(transport, namespace)


def report(error: Exception) -> int:
    """Print what is wrong and what to do next; return the exit code.

    Raises:
        Exception: *error*, if it is a defect of the program.
    """
    message, code = describe_error(error)
    typer.echo(f"batholith: {printable(message)}", err=True)
    return code


def printable(message: str) -> str:
    """Return a message, which may be of a server, as one line without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in message).split())


def describe_error(error: Exception) -> tuple[str, int]:
    """Return what is wrong and what to do next, and the exit code.

    Raises:
        Exception: *error*, if it is a defect of the program.
    """
    from ...client import errors

    if isinstance(error, CommandFailedError):
        return str(error), error.code
    if isinstance(error, errors.ConflictError) and error.allowed_phases:
        phases = " or ".join(error.allowed_phases)
        return f"{error.detail}; it is possible in phase {phases}", FAILED
    if isinstance(error, errors.InvalidError) and error.fields:
        return "; ".join(f"{name}: {text}" for name, text in error.fields.items()), FAILED
    # The first class that matches; subclasses are before their bases.
    advice = (
        (errors.ConfigError, "{}", NO_CLUSTER),
        (errors.WaitTimeoutError, "{}", TIMEOUT),
        (errors.UnavailableError, "the REST API is not available: {}; try again", NO_CLUSTER),
        (errors.UnreachableError, _NO_RESPONSE, NO_CLUSTER),
        (errors.DeadlineError, _NO_RESPONSE, NO_CLUSTER),
        (
            errors.UnauthorizedError,
            "the credentials are rejected: {}; see --context",
            NOT_PERMITTED,
        ),
        (errors.ForbiddenError, "not permitted: {}; ask who grants roles", NOT_PERMITTED),
        (errors.NotFoundError, "{}; see `batholith jobs -A` or `batholith queues`", NOT_FOUND),
        (errors.ClientError, "{}", FAILED),
        (ValueError, "{}", WRONG_ARGUMENTS),
    )
    for each, text, code in advice:
        if isinstance(error, each):
            return text.format(error.detail if isinstance(error, errors.ApiError) else error), code
    raise error


def find_job(client: "Client", text: str) -> "JobHandle":
    """Return the job of ``NAME`` or ``KIND/NAME``.

    Raises:
        CommandFailedError: there is none, or jobs of several kinds have the name.
        ClientError: it cannot be read.
        ValueError: there is no such kind, or the name is malformed.
    """
    from ...client.errors import ForbiddenError, NotFoundError

    kind, slash, name = text.rpartition("/")
    if slash:
        return client.jobs.of_kind(kind).get(name)
    found: list[JobHandle] = []
    forbidden: ForbiddenError | None = None
    for each in JobKindName:
        try:
            found.append(client.jobs.of_kind(each).get(name))
        except NotFoundError:
            continue
        except ForbiddenError as error:
            forbidden = forbidden or error
    if not found:
        raise forbidden or CommandFailedError(
            f"no job {name!r} in namespace {client.namespace!r}; `batholith jobs -A` lists all",
            NOT_FOUND,
        )
    if len(found) > 1:
        names = " or ".join(key(each) for each in found)
        raise CommandFailedError(f"{text!r} is ambiguous: write {names}", WRONG_ARGUMENTS)
    return found[0]


def for_each(client: "Client", jobs: Iterable[str], act: Callable[["JobHandle"], str]) -> None:
    """Call *act* with each job, and print its result.

    An error of one job does not prevent the others.

    Raises:
        typer.Exit: with the code of the first error.
    """
    codes = []
    for text in jobs:
        try:
            typer.echo(act(find_job(client, text)))
        except Exception as error:
            codes.append(report(error))
    if codes:
        raise typer.Exit(codes[0])


def parse_since(text: str, now: datetime) -> datetime:
    """Return the time of ``90m``, ``12h``, ``7d`` before *now*, or of a date in local time.

    Raises:
        ValueError: it is neither.
    """
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match:
        unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[match[2]]
        return now - timedelta(**{unit: int(match[1])})
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ValueError(
            f"--since: {text!r} is neither a duration such as 12h or 7d nor a date such as"
            " 2025-01-31"
        ) from None


def complete_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of jobs of all kinds for the completion of the shell; after ``KIND/`` those of
    this kind."""
    kind, slash, _ = incomplete.rpartition("/")

    def names(client: "Client") -> Iterable[str]:
        if slash:
            return (f"{kind}/{name}" for name in _names_of_kind(client, kind))
        return dict.fromkeys(name for each in JobKindName for name in _names_of_kind(client, each))

    return _complete(context, incomplete, names)


def complete_queues(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of queues for the completion of the shell."""
    return _complete(
        context, incomplete, lambda client: (each.name for each in client.queues.list())
    )


def _names_of_kind(client: "Client", kind: str) -> list[str]:
    """Return the names of jobs; none if the kind is not installed, or may not be read."""
    from ...client.errors import ForbiddenError, NotFoundError

    try:
        return [each.name for each in client.jobs.of_kind(kind).list(fields=["name"])]
    except (ForbiddenError, NotFoundError):
        return []


def _complete(
    context: typer.Context, incomplete: str, names: Callable[["Client"], Iterable[str]]
) -> list[str]:
    from ...client import ClientError, Retries

    given = {each.name: context.params.get(each.name) for each in CONNECTION}
    if given.pop("kubernetes"):
        return []  # It would take too long.
    try:
        with _client(given, timeout=2.0, retries=Retries(attempts=1)) as client:
            return [each for each in names(client) if each.startswith(incomplete)]
    except (ClientError, OSError, ValueError):
        return []  # A completion must print nothing else.
