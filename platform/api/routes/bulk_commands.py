"""The same command for many jobs.

The targets are chosen once: they are recorded with the Idempotency-Key before the first command, so
that a repeated request resumes with the same ones. The command of each target has an id that
follows from the operation and the target.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...kube.errors import ApiError, ConnectionLostError
from ...machinery.batches import run_concurrently
from ...model.selectors import SelectorError, parse_label_selector
from ...store.commands import CommandRecord
from ...store.database import StoreUnavailableError
from ..commands.orders import MAX_TARGETS, CommandAction, Scope, check_action
from ..http.idempotency import Attempt
from ..identity.caller import AuthenticatedCaller
from ..identity.reviewer import AccessAttributes
from ..jobs.kinds import JobKind
from ..jobs.selection import JobFilter
from ..problems import RETRY_AFTER, ProblemError, from_api_error
from .command_issuing import authorize, find_order
from .dependencies import AppState

log = logging.getLogger(__name__)

CONCURRENCY = 32
"""Commands that one request issues concurrently."""
_RETRYABLE = 429
_SERVER_ERROR = 500
_ACCEPTED, _DRY_RUN = 202, 200


class Target(msgspec.Struct, frozen=True, array_like=True):
    """A job to command."""

    namespace: str
    name: str
    uid: str


_PLAN = msgspec.json.Decoder(tuple[Target, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOrder:
    """A command for all jobs that match."""

    kind: JobKind
    action: CommandAction
    namespace: str
    """Empty for all namespaces."""
    label_selector: str | None = None
    phases: frozenset[str] = frozenset()
    queue: str | None = None
    names: frozenset[str] | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """What became of one target."""

    target: Target
    record: CommandRecord | None = None
    problem: ProblemError | None = None

    @property
    def status(self) -> int:
        """The status that a request for this job alone has; 200 in a dry run."""
        if self.problem is not None:
            return self.problem.status
        return _DRY_RUN if self.record is None else _ACCEPTED


async def run_bulk(
    state: AppState,
    caller: AuthenticatedCaller,
    order: BulkOrder,
    *,
    operation: uuid.UUID,
    attempt: Attempt | None,
) -> Sequence[TargetResult]:
    """Issue the command for each job that matches; return the results by namespace and name.

    Raises:
        ProblemError: 403 or 422; nothing is issued.
        StoreUnavailableError: the targets cannot be recorded; nothing is issued.
    """
    check_action(order.kind, order.action, Scope())
    await state.reviewer.authorize(
        caller.user,
        AccessAttributes(verb="list", resource=order.kind.resource, namespace=order.namespace),
    )
    if attempt is not None and attempt.plan is not None:
        targets = _PLAN.decode(attempt.plan)
    else:
        targets = _choose_targets(state, order)
        if attempt is not None and not order.dry_run:
            await attempt.set_plan(msgspec.json.encode(targets))
    is_repeated = attempt is not None and attempt.is_repeated
    slots = asyncio.Semaphore(CONCURRENCY)
    results: dict[Target, TargetResult] = {}

    async def run(target: Target) -> None:
        async with slots:
            results[target] = await _run_one(
                state, caller, order, target, operation=operation, is_repeated=is_repeated
            )

    await run_concurrently(targets, run)
    return [results[target] for target in targets]


def is_complete(results: Sequence[TargetResult]) -> bool:
    """Return whether a repetition would change nothing: no target failed for a passing cause."""
    return all(each.status < _SERVER_ERROR and each.status != _RETRYABLE for each in results)


def _choose_targets(state: AppState, order: BulkOrder) -> tuple[Target, ...]:
    given = (order.label_selector, order.queue, order.names, order.phases or None)
    if all(each is None for each in given):
        raise _invalid("label_selector", "give label_selector, phase, queue or names")
    try:
        labels = parse_label_selector(order.label_selector or "")
    except SelectorError as error:
        raise _invalid("label_selector", str(error)) from None
    filter_ = JobFilter(
        namespace=order.namespace, phases=order.phases, queue=order.queue, labels=labels
    )
    found = []
    for job in state.caches.of(order.kind).informer:
        meta = job.metadata
        if order.names is not None and meta.name not in order.names:
            continue
        if filter_.matches(order.kind.summarize(job)):
            found.append(Target(meta.namespace, meta.name, meta.uid))
    if len(found) > MAX_TARGETS:
        text = f"{len(found)} jobs match, and one request commands at most {MAX_TARGETS}"
        raise ProblemError(422, text)
    return tuple(sorted(found, key=lambda each: (each.namespace, each.name)))


async def _run_one(
    state: AppState,
    caller: AuthenticatedCaller,
    order: BulkOrder,
    target: Target,
    *,
    operation: uuid.UUID,
    is_repeated: bool,
) -> TargetResult:
    try:
        record = await _issue(
            state, caller, order, target, operation=operation, is_repeated=is_repeated
        )
    except ProblemError as problem:
        return TargetResult(target=target, problem=problem)
    except ApiError as error:
        return TargetResult(target=target, problem=from_api_error(error))
    except (ConnectionLostError, StoreUnavailableError) as error:
        log.warning("cannot issue command of many", extra={"error": str(error)})
        text = "the Kubernetes API or the command database is unavailable"
        unavailable = ProblemError(503, text, retry_after=RETRY_AFTER)
        return TargetResult(target=target, problem=unavailable)
    return TargetResult(target=target, record=record)


async def _issue(
    state: AppState,
    caller: AuthenticatedCaller,
    order: BulkOrder,
    target: Target,
    *,
    operation: uuid.UUID,
    is_repeated: bool,
) -> CommandRecord | None:
    key = (target.namespace, target.name)
    own_operation = uuid.uuid5(operation, f"{order.kind.name}/{target.uid}")
    await authorize(state, caller, order.kind, key)
    if is_repeated:
        record = await state.commands.repeat(own_operation, caller=caller)
        if record is not None:
            return record
    found = await find_order(state, caller, order.kind, key, (order.action, Scope()))
    if found.metadata.uid != target.uid:
        raise ProblemError(404, f"job {target.name!r} was deleted, and created again")
    if order.dry_run:
        return None
    return await state.commands.issue(found, caller=caller, operation=own_operation)


def _invalid(field: str, message: str) -> ProblemError:
    return ProblemError(422, f"{field}: {message}", errors=({"field": field, "message": message},))
