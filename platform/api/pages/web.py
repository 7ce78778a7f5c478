"""What all pages have: the request with its session, templates, and headers of responses."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from ...machinery.clock import Clock
from .live import StreamResponse
from .rendering import environment
from .rest import Query, RestCalls
from .sessions import Session

HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: browsers load and run nothing but the static files."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer" forms would have no Origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every response."""


class Page:
    """A request of a session."""

    def __init__(
        self,
        request: Request,
        session: Session,
        rest: RestCalls,
        *,
        clock: Clock,
        session_end: Callable[[], Awaitable[None]],
    ) -> None:
        """*session_end* returns when the session has ended."""
        self.request = request
        self.session = session
        self.rest = rest
        self._clock = clock
        self._session_end = session_end

    @property
    def query(self) -> QueryParams:
        """The query of the URL."""
        return self.request.query_params

    @property
    def path(self) -> Mapping[str, str]:
        """Parameters of the path."""
        return self.request.path_params

    @property
    def now(self) -> datetime:
        """The current time."""
        return self._clock.now()

    @property
    def is_fragment(self) -> bool:
        """Whether a part of a page is requested by a script."""
        return self.request.headers.get("hx-request") == "true"

    async def form(self) -> dict[str, list[str]]:
        """Return the fields of the body, a form; empty ones are omitted."""
        return parse_form(await self.request.body())

    def stream(
        self, path: str, query: Query, convert: Callable[[bytes], bytes] = lambda piece: piece
    ) -> StreamResponse:
        """Return a response with a stream of the REST API, resumed at the browser's position."""
        return StreamResponse(
            self.rest,
            path,
            query,
            convert=convert,
            session_end=self._session_end,
            last_event_id=self.request.headers.get("last-event-id"),
        )

    def render(self, template: str, **values: Any) -> Response:
        """Return the page or fragment of a template."""
        return render(template, user=self.session.user, now=self.now, **values)


def parse_form(body: bytes) -> dict[str, list[str]]:
    """Return the fields of a form."""
    try:
        return parse_qs(body.decode(), max_num_fields=2000)
    except ValueError:  # no UTF-8, or too many fields
        return {}


def render(template: str, *, status: int = HTTPStatus.OK, **values: Any) -> Response:
    """Return a response with a template; browsers must not store it."""
    content = environment().get_template(template).render(values)
    return Response(content, status, {"Cache-Control": "no-store"}, media_type=HTML)


def is_same_origin(request: Request) -> bool:
    """Return whether a request that changes something is from a page of this server.

    Browsers send ``Origin`` with every POST. Its scheme is not compared, since TLS may end before.
    """
    host = request.headers.get("host", "")
    try:
        origin = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:  # brackets that are no IPv6 address
        return False
    return bool(host) and origin.lower() == host.lower()
