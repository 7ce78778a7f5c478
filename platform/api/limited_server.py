"""uvicorn behind a listener that limits what clients may take."""

import json
import socket
from http import HTTPStatus

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..httpserver.buffering import BufferingListener
from ..httpserver.limits import Limits
from ..httpserver.listener import explain
from ..httpserver.metrics import ListenerMetrics
from .limits import MAX_BODY


class LimitedServer(uvicorn.Server):
    """A uvicorn server that reads each request to its end before it is served."""

    def __init__(self, config: uvicorn.Config, *, limits: Limits, metrics: ListenerMetrics) -> None:
        super().__init__(config)
        # The listener's own limit is to be the first.
        config.timeout_keep_alive = int(2 * limits.idle_timeout) + 1
        self._listener = BufferingListener(
            name="api",
            body_limit=MAX_BODY,
            limits=limits,
            metrics=metrics,
            error_content=_describe,
        )
        self._listener.backend_factory = lambda: _Protocol(self, self._listener)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on *sockets* in the place of uvicorn."""
        await super().startup(sockets=[])
        for listening in sockets or ():
            self._listener.listen(listening, tls=self.config.ssl)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and let answers under way finish."""
        self._listener.stop()
        await super().shutdown(sockets)
        self._listener.abort_all()


class _Protocol(HttpToolsProtocol):
    """Tells when a request is answered."""

    def __init__(self, server: LimitedServer, listener: BufferingListener) -> None:
        super().__init__(
            config=server.config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
        )
        self._listener = listener

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._listener.on_response_sent(self)


def _describe(status: int) -> tuple[str, bytes]:
    """A problem as the API's own."""
    text = f"the body is larger than {MAX_BODY} bytes" if status == 413 else explain(status)
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": text,
    }
    return "application/problem+json", json.dumps(problem).encode()
