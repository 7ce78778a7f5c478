"""The ASGI application: routers, middleware, health and description pages."""

import html

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

from . import problems
from .audit import AuditMiddleware, RouteMiddleware
from .cors import CorsMiddleware, OriginPatterns
from .dependencies import AppState
from .identity import AuthenticationMiddleware
from .limits import BodyLimitMiddleware
from .routes import (
    commands,
    cronjobs,
    events,
    jobflows,
    jobs,
    logs,
    podgroups,
    pods,
    queues,
    timeline,
    why,
)

ROUTERS = (
    jobs.router,
    commands.router,
    jobflows.router,
    cronjobs.router,
    pods.router,
    logs.router,
    events.router,
    timeline.router,
    why.router,
    queues.router,
    podgroups.router,
)


def _docs_page(app: FastAPI) -> str:
    """Return the API description as one HTML page without external resources."""
    rows = []
    for path, operations in app.openapi()["paths"].items():
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


async def _readiness_errors(state: AppState) -> list[str]:
    """Return why the API is not ready; empty if it is."""
    synced = state.commands.synced and state.caches.synced
    errors = [] if synced else ["informers: not synced"]
    if not await state.store.ping():
        errors.append("store: not reachable")
    return errors


def create_app(state: AppState) -> FastAPI:
    """Create the ASGI application."""
    # FastAPI's own pages load external scripts, which fail on isolated networks.
    app = FastAPI(title="Batholith", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.dependencies = state
    for router in ROUTERS:
        app.include_router(router)
    # The last one is the outermost.
    app.add_middleware(RouteMiddleware)
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(AuthenticationMiddleware, callers=state.callers)
    if state.security.cors_allowed_origins:
        origins = OriginPatterns(state.security.cors_allowed_origins)
        app.add_middleware(CorsMiddleware, origins=origins)
    app.add_middleware(AuditMiddleware)
    problems.add_exception_handlers(app)

    @app.get("/healthz", include_in_schema=False)
    @app.get("/livez", include_in_schema=False)
    async def healthz() -> Response:
        return Response("ok", media_type="text/plain")

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        errors = await _readiness_errors(state)
        text = "".join(f"[-]{line}\n" for line in errors) or "ok"
        return Response(text, status_code=503 if errors else 200, media_type="text/plain")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_docs_page(app))

    return app
