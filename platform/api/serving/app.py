"""The ASGI application: routers, middleware, health and description pages."""

import html
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.routing import BaseRoute

from .. import problems
from ..http.access_log import RequestMiddleware
from ..http.cors import CorsMiddleware, OriginPatterns
from ..http.idempotency import IdempotencyMiddleware
from ..http.operations import OperationMiddleware, OperationTable, check_query
from ..identity.audit import AuditMiddleware, RouteMiddleware
from ..identity.authentication import AuthenticationMiddleware
from ..routes import (
    bulk,
    commands,
    cronjobs,
    events,
    history,
    jobflows,
    jobs,
    logs,
    nodes,
    podgroups,
    pods,
    queues,
    reservations,
    simulate,
    submissions,
    timeline,
    usage,
    watch,
    why,
)
from ..routes.dependencies import AppState, Caller
from . import openapi
from .limits import BodyLimitMiddleware

ROUTERS = (
    jobs.router,
    submissions.router,
    commands.router,
    bulk.router,
    jobflows.router,
    cronjobs.router,
    pods.router,
    logs.router,
    events.router,
    timeline.router,
    why.router,
    simulate.router,
    watch.router,
    queues.router,
    podgroups.router,
    nodes.router,
    reservations.router,
    history.router,
    usage.router,
)


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes of all applications of the process.

    They are shared because FastAPI analyses the parameters of all endpoints, which takes long,
    when a route is matched for the first time.
    """
    router = APIRouter(generate_unique_id_function=openapi.operation_id)
    for each in ROUTERS:
        router.include_router(each, dependencies=[Depends(_check_request)])
    return router.routes


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI description."""
    return openapi.describe(_routes())


def _docs_page() -> str:
    """Return the API description as one HTML page without external resources."""
    rows = []
    for path, operations in document()["paths"].items():
        for verb, operation in operations.items():
            cells = (verb.upper(), path, operation.get("summary", ""))
            rows.append("".join(f"<td><code>{html.escape(cell)}</code></td>" for cell in cells))
    table = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        "<!doctype html><meta charset=utf-8><title>Batholith REST API</title>"
        "<style>body{font:16px sans-serif;margin:3em}td{padding:.3em 1em .3em 0}</style>"
        "<h1>Batholith REST API</h1><p>Send a bearer token with each call. "
        "The full description: <a href=/openapi.json>/openapi.json</a>.</p>"
        f"<table>{table}</table>"
    )


async def _check_request(request: Request, _: Caller) -> None:
    """Check the query, after the caller is authenticated."""
    check_query(request)


async def _readiness_errors(state: AppState) -> list[str]:
    """Return why the API is not ready; empty if it is."""
    synced = state.outcomes.synced and state.caches.synced
    errors = [] if synced else ["informers: not synced"]
    if not await state.store.ping():
        errors.append("store: not reachable")
    return errors


def _readiness_details(state: AppState) -> list[str]:
    """Return the state of each informer. Clients need no credentials for it: no counts."""
    informers = [cache.informer for cache in state.caches.kinds.values() if cache.is_served]
    details = []
    for informer in (*informers, state.caches.queues, state.caches.podgroups):
        mark = "[+]" if informer.synced else "[-]"
        stale = round(informer.stale_seconds, 1)
        found = "synced" if informer.synced else "not synced"
        details.append(f"{mark}informer {informer.name}: {found}, stale for {stale:g} s")
    return details


def create_app(state: AppState, *, access_log: bool = False) -> FastAPI:
    """Create the ASGI application; with *access_log* it logs each request."""
    # FastAPI's own pages load external scripts, which fail on isolated networks.
    app = FastAPI(title=openapi.TITLE, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.dependencies = state
    app.openapi = document  # type: ignore[method-assign]
    app.router.routes.extend(_routes())
    # The last one is the outermost.
    app.add_middleware(IdempotencyMiddleware, service=state.idempotency)
    app.add_middleware(RouteMiddleware)
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(OperationMiddleware, table=OperationTable(document()))
    app.add_middleware(AuthenticationMiddleware, callers=state.callers)
    if state.security.cors_allowed_origins:
        origins = OriginPatterns(state.security.cors_allowed_origins)
        app.add_middleware(CorsMiddleware, origins=origins)
    app.add_middleware(AuditMiddleware)
    app.add_middleware(RequestMiddleware, metrics=state.metrics, access_log=access_log)
    problems.add_exception_handlers(app)

    @app.get("/healthz", include_in_schema=False)
    @app.get("/livez", include_in_schema=False)
    async def healthz() -> Response:
        return Response("ok", media_type="text/plain")

    @app.get("/readyz", include_in_schema=False)
    async def readyz(request: Request) -> Response:
        errors = await _readiness_errors(state)
        text = "".join(f"[-]{line}\n" for line in errors)
        if "verbose" in request.query_params:
            text += "".join(f"{line}\n" for line in _readiness_details(state))
        return Response(text or "ok", status_code=503 if errors else 200, media_type="text/plain")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_docs_page())

    return app
