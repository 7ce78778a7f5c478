"""The route of the usage over time.

It shows no more than the caller could add up itself: the usage of a namespace whose jobs it may
list, of queues that it may read, or its own. All else requires to list the jobs of all namespaces.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from ...model.names import JOBS, QUEUES
from ...store.pod_records import DAY, HOUR
from ...store.usage import TooMuchUsageError, UsageQuery
from ...wire.history import Usage
from ..http.query_values import NAME_PATTERN, QueryTime, StorableText
from ..identity.reviewer import AccessAttributes
from ..problems import invalid_fields
from ..schemas.responses import WireRoute
from .dependencies import Caller, State

router = APIRouter(prefix="/v1", tags=["usage"], route_class=WireRoute)

MAX_INTERVALS = 1000
"""Maximum number of intervals in a response."""
DEFAULT_INTERVALS = {HOUR: 24, DAY: 30}
STEPS = {"1h": HOUR, "1d": DAY}

_EARLIEST, _LATEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


@router.get("/usage", summary="Resource-seconds by queue, user, account or namespace over time")
async def get_usage(
    state: State,
    caller: Caller,
    by: Annotated[
        Literal["queue", "user", "account", "namespace"], Query(description="One series each.")
    ],
    from_: Annotated[
        QueryTime | None,
        Query(alias="from", description="Begin, rounded down to the step."),
    ] = None,
    to: Annotated[QueryTime | None, Query(description="End, rounded up; by default now.")] = None,
    step: Annotated[Literal["1h", "1d"], Query(description="Length of an interval.")] = "1h",
    queue: Annotated[str | None, Query(max_length=253, pattern=NAME_PATTERN)] = None,
    user: Annotated[StorableText | None, Query(max_length=1024)] = None,
    account: Annotated[
        StorableText | None, Query(max_length=63, description="Label `batholith.io/account`.")
    ] = None,
    namespace: Annotated[str | None, Query(max_length=63, pattern=NAME_PATTERN)] = None,
) -> Usage:
    """Return the requests of pods times seconds, from the start of each pod to its end."""
    now = state.clock.now()
    start, end = usage_interval(from_, to, STEPS[step], now)
    query = UsageQuery(
        by=by,
        start=start,
        end=end,
        step=STEPS[step],
        queue=queue,
        user=user,
        account=account,
        namespace=namespace,
    )
    attributes = required_attributes(query, caller)
    if attributes is not None:
        await state.reviewer.authorize(caller.user, attributes)
    try:
        series = await state.usage.series(query, now=now)
    except TooMuchUsageError as error:
        raise invalid_fields(("from", f"{error}: shorten the time, or name a queue")) from None
    return Usage(
        by=by,
        start=start,
        end=end,
        step_seconds=query.step,
        series=list(series),
    )


def usage_interval(
    from_: datetime | None, to: datetime | None, step: int, now: datetime
) -> tuple[datetime, datetime]:
    """Return begin and end as multiples of *step*.

    Raises:
        ProblemError: 422 if there is no interval in between, or too many.
    """
    width = timedelta(seconds=step)
    end = min(max(to or now, _EARLIEST), _LATEST)
    start = min(max(from_ or end - DEFAULT_INTERVALS[step] * width, _EARLIEST), _LATEST)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    first, last = (start - epoch) // width, -((epoch - end) // width)
    if first >= last:
        raise invalid_fields(("from", "must be before `to`"))
    if last - first > MAX_INTERVALS:
        raise invalid_fields(("from", f"more than {MAX_INTERVALS} intervals of the step"))
    return epoch + first * width, epoch + last * width


def required_attributes(query: UsageQuery, caller: Caller) -> AccessAttributes | None:
    """Return what the caller must be allowed to do; ``None`` for its own usage."""
    if query.namespace is not None:
        return AccessAttributes(verb="list", resource=JOBS, namespace=query.namespace)
    if query.user is not None and query.user == caller.user.username:
        return None
    if (query.user, query.account) != (None, None) or query.by != "queue":
        return AccessAttributes(verb="list", resource=JOBS, namespace="")
    if query.queue is not None:
        return AccessAttributes(verb="get", resource=QUEUES, namespace="", name=query.queue)
    return AccessAttributes(verb="list", resource=QUEUES, namespace="")
