"""The ASGI application of the pages, in front of the REST API's."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...machinery.clock import Clock
from ..identity.authentication import REJECTION, Callers
from ..problems import ProblemError
from . import cluster, history, job, jobs, queues, rerun
from .rendering import static_files
from .rest import RestCalls, RestError
from .sessions import LIFETIME, Session, Sessions
from .web import HEADERS, Page, is_same_origin, parse_form, render

log = logging.getLogger(__name__)

LOGIN, LOGOUT, HOME = "/login", "/logout", "/jobs"
SESSION_CHECK_INTERVAL = 1.0
"""Seconds between checks whether the session of a stream has ended."""

MAX_LOGIN_BODY = 16 * 1024
"""Maximum bytes of the form with a token, which is read before the caller is known."""

_PREFIXES = frozenset(("login", "logout", "jobs", "queues", "cluster", "history", "live", "static"))
"""First segments of the paths of pages."""
_COOKIE, _TLS_COOKIE = "batholith_session", "__Host-batholith_session"

ROUTES = (
    *(*jobs.ROUTES, *job.ROUTES, *rerun.ROUTES),
    *(*queues.ROUTES, *cluster.ROUTES, *history.ROUTES),
)

Endpoint = Callable[[Page], Awaitable[ASGIApp]]


def owns(path: str) -> bool:
    """Return whether *path* is that of a page."""
    return path == "/" or path.split("/", 2)[1] in _PREFIXES


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesSettings:
    """How browsers sign in."""

    sign_in_file: Path | None = None
    """Private file with a one-time code and the token of its user; see `prepare_sign_in`."""

    lifetime: timedelta = LIFETIME
    """How long a session lasts."""


class Pages:
    """Serves the pages, and passes all other requests on to the REST API."""

    def __init__(
        self, rest: ASGIApp, settings: PagesSettings, *, callers: Callers, clock: Clock
    ) -> None:
        """Serve pages in front of *rest*, an application that authenticates its callers.

        Raises:
            UnsafePathError: other users may have read or written the file of the settings.
            OSError: it cannot be read.
        """
        self._rest = rest
        self._callers = callers
        self._clock = clock
        self._sessions = Sessions(
            clock, sign_in_file=settings.sign_in_file, lifetime=settings.lifetime
        )
        page = self._page
        self._router = Router(
            [
                Route("/", page(_home)),
                Route(LOGIN, self._show_login),
                Route(LOGIN, self._login, methods=["POST"]),
                Route(LOGOUT, self._logout, methods=["POST"]),
                Route("/static/{version}/{name}", _static),
                *(
                    Route(path, page(endpoint), methods=[method])
                    for method, path, endpoint in ROUTES
                ),
            ],
            redirect_slashes=False,
            default=_not_found,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http" or not owns(scope["path"]):
            await self._rest(scope, receive, send)
            return
        close = scope.setdefault("state", {}).get(REJECTION) is not None

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", ())}
                more = [
                    (name.lower().encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.lower().encode() not in given
                ]
                if close:
                    more.append((b"connection", b"close"))
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        request = Request(scope, receive)
        if scope["method"] not in ("GET", "HEAD") and not is_same_origin(request):
            text = "This request is not from a page of this server."
            rejection = _error_page(HTTPStatus.FORBIDDEN, text, user="")
            await rejection(scope, receive, send_with_headers)
            return
        await self._router(scope, receive, send_with_headers)

    def find_rejection(self, path: str, cookie: str | None) -> ProblemError | None:
        """Return why the body of a request for a page is not read; ``None`` if it is."""
        if path == LOGIN or self._session_of(cookie)[1] is not None:
            return None
        return ProblemError(401, "the session has ended")

    def _session_of(self, cookie: str | None) -> tuple[str, Session | None]:
        """Return id and session of a ``Cookie`` header."""
        found = cookie_parser(cookie or "")
        for name in (_TLS_COOKIE, _COOKIE):
            if name in found:
                return found[name], self._sessions.find(found[name])
        return "", None

    def _page(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[ASGIApp]]:
        """Return the endpoint of a page that only sessions get."""

        async def serve(request: Request) -> ASGIApp:
            id_, session = self._session_of(request.headers.get("cookie"))
            if session is None:
                return _to_login(request)
            rest = RestCalls(self._rest, request.scope, session.token)
            wait = partial(self._wait_end, id_)
            page = Page(request, session, rest, clock=self._clock, session_end=wait)
            try:
                return await endpoint(page)
            except RestError as error:
                if error.status == HTTPStatus.UNAUTHORIZED:
                    self._sessions.end(id_)
                    return _to_login(request)
                return _error_page(
                    error.status, error.detail, user=session.user, fragment=page.is_fragment
                )

        return serve

    async def _wait_end(self, id_: str) -> None:
        while self._sessions.find(id_) is not None:
            await self._clock.sleep(SESSION_CHECK_INTERVAL)

    async def _show_login(self, request: Request) -> Response:
        code = request.query_params.get("code")
        if code is None or request.method == "HEAD":  # which must not use up a link
            return _login_page()
        token = self._sessions.token_of_code(code)
        if token is None:
            text = "This link was used already, or is not of this server's last start."
            return _login_page(text, status=HTTPStatus.FORBIDDEN)
        return await self._sign_in(request, token, code=code)

    async def _login(self, request: Request) -> Response:
        body = await request.body()
        token = parse_form(body).get("token", [""])[0].strip()
        if not token or len(body) > MAX_LOGIN_BODY:
            return _login_page("Enter a token.", status=HTTPStatus.UNPROCESSABLE_ENTITY)
        return await self._sign_in(request, token)

    async def _sign_in(self, request: Request, token: str, *, code: str | None = None) -> Response:
        """Create a session of the user with *token*, and void *code* if it is given."""
        source = request.client.host if request.client else ""
        try:
            caller = await self._callers.authenticate(
                f"Bearer {token}", certificate=None, source=source
            )
        except ProblemError as problem:
            fields = {"audit": "session", "source": source, "status": problem.status}
            log.info("sign-in rejected", extra=fields)
            return _login_page(f"Cannot sign in: {problem.detail}.", status=problem.status)
        user, end = caller.user.username, caller.expires_at
        if code is None:
            id_: str | None = self._sessions.create(token, user, expires_at=end)
        else:
            id_ = self._sessions.redeem(code, user, expires_at=end)
        if id_ is None:  # used by a concurrent request
            return _login_page("This link was used already.", status=HTTPStatus.FORBIDDEN)
        log.info("signed in", extra={"audit": "session", "user": user, "source": source})
        response = RedirectResponse(HOME, HTTPStatus.SEE_OTHER)
        _set_cookie(response, request, id_)
        return response

    async def _logout(self, request: Request) -> Response:
        id_, session = self._session_of(request.headers.get("cookie"))
        if session is not None:
            self._sessions.end(id_)
            log.info("signed out", extra={"audit": "session", "user": session.user})
        response = RedirectResponse(LOGIN, HTTPStatus.SEE_OTHER)
        _set_cookie(response, request, "")
        return response


async def _home(page: Page) -> Response:
    return RedirectResponse(HOME, HTTPStatus.SEE_OTHER)


async def _static(request: Request) -> Response:
    file = static_files().get(request.path_params["name"])
    if file is None or file.version != request.path_params["version"]:
        return await _missing(request)
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(file.content, headers=headers, media_type=file.media_type)


async def _missing(request: Request) -> Response:
    return _error_page(HTTPStatus.NOT_FOUND, "There is no such page.", user="")


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await (await _missing(Request(scope)))(scope, receive, send)


def _to_login(request: Request) -> Response:
    """Return the response to a request without a session."""
    if request.headers.get("hx-request") == "true":
        return Response("", HTTPStatus.UNAUTHORIZED, {"HX-Redirect": LOGIN})
    if "text/html" not in request.headers.get("accept", ""):
        return Response("", HTTPStatus.UNAUTHORIZED)  # a stream would follow a redirect
    return RedirectResponse(LOGIN, HTTPStatus.SEE_OTHER)


def _login_page(problem: str = "", *, status: int = HTTPStatus.OK) -> Response:
    return render("login.html", status=status, problem=problem, user="")


def _error_page(status: int, detail: str, *, user: str, fragment: bool = False) -> Response:
    template = "error_fragment.html" if fragment else "error.html"
    title = HTTPStatus(status).phrase
    return render(template, status=status, title=title, detail=detail, user=user)


def _set_cookie(response: Response, request: Request, id_: str) -> None:
    """Set the cookie of a session, or delete it if *id_* is empty.

    It is ``Secure`` if the browser uses TLS, which may end before this server.
    """
    origin = request.headers.get("origin", "")
    secure = request.url.scheme == "https" or origin.startswith("https://")
    response.set_cookie(
        _TLS_COOKIE if secure else _COOKIE,
        id_,
        max_age=None if id_ else 0,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
