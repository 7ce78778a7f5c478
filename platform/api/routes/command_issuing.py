"""Issue a command for a job that a request names: find the job, check it, authorize the caller."""

import uuid
from urllib.parse import quote

from ...kube.errors import NotFoundError
from ...model.names import COMMANDS
from ...store.commands import QUEUES_KIND, CommandRecord
from ..commands.orders import CommandAction, Order, Scope, check_action, order_for_job
from ..identity.caller import AuthenticatedCaller
from ..identity.reviewer import AccessAttributes
from ..jobs.kinds import JobKind
from ..jobs.views import CachedObject
from ..problems import ProblemError
from .dependencies import AppState


async def issue_for_job(
    state: AppState,
    caller: AuthenticatedCaller,
    kind: JobKind,
    key: tuple[str, str],
    wanted: tuple[CommandAction, Scope],
    *,
    operation: uuid.UUID,
    is_repeated: bool = False,
) -> CommandRecord:
    """Issue the *wanted* command for the job with namespace and name *key*.

    *is_repeated*: an earlier attempt may have issued it.

    Raises:
        ProblemError: 403, 404, 409 or 422; nothing is issued.
        ApiError, ConnectionLostError, StoreUnavailableError: see `CommandService.issue`.
    """
    check_action(kind, *wanted)
    await authorize(state, caller, kind, key)
    if is_repeated:
        record = await state.commands.repeat(operation, caller=caller)
        if record is not None:
            return record
    order = await find_order(state, caller, kind, key, wanted)
    return await state.commands.issue(order, caller=caller, operation=operation)


async def authorize(
    state: AppState, caller: AuthenticatedCaller, kind: JobKind, key: tuple[str, str]
) -> None:
    """Check that *caller* may command jobs in this namespace.

    Raises:
        ProblemError: 403 if not.
    """
    namespace, name = key
    access = AccessAttributes(verb="create", resource=COMMANDS, namespace=namespace)
    if not kind.is_volcano:
        access = AccessAttributes(
            verb="patch", resource=kind.resource, namespace=namespace, name=name
        )
    await state.reviewer.authorize(caller.user, access)


async def find_order(
    state: AppState,
    caller: AuthenticatedCaller,
    kind: JobKind,
    key: tuple[str, str],
    wanted: tuple[CommandAction, Scope],
) -> Order:
    """Return the command for the cached job, or if that would be rejected, for the live one.

    Raises:
        ProblemError: 404 or 409 or 422; the live job was read.
    """
    namespace, name = key
    cached: CachedObject | None = state.caches.of(kind).informer.get(f"{namespace}/{name}")
    if cached is not None and cached.metadata.deletion_timestamp is None:
        try:
            return order_for_job(kind, cached, *wanted)
        except ProblemError:
            pass  # The cache may be older than what the caller knows.
    try:
        live = await caller.client.get(kind.resource, name, namespace=namespace, view=kind.view)
    except NotFoundError:
        text = f"{kind.label} {name!r} not found in namespace {namespace!r}"
        if kind.is_volcano:
            text = f"job {name!r} not found in namespace {namespace!r}"
        raise ProblemError(404, text) from None
    return order_for_job(kind, live, *wanted)


def command_location(record: CommandRecord) -> str:
    """Return the path of a command."""
    namespace, name, id_ = (quote(it, safe="") for it in (record.namespace, record.job, record.id))
    if record.kind == QUEUES_KIND:
        return f"/v1/queues/{name}/commands/{id_}"
    return f"/v1/namespaces/{namespace}/{record.kind}/{name}/commands/{id_}"
