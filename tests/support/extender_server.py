"""An extender of the scheduler, whose responses a test decides."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

Json = dict[str, Any]
Response = Callable[[Json], Any]
"""Returns the body of the response; raises for the status 500."""


class ExtenderServer:
    """Responses by verb, and what was asked."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/extender"
        self.verbs: dict[str, Response] = {}
        self.asked: list[tuple[str, Json]] = []
        self.may_respond = Event()
        self.may_respond.set()

    def respond(self, verb: str, body: Json) -> tuple[int, bytes]:
        """Status and body of a response."""
        self.asked.append((verb, body))
        self.may_respond.wait(20)
        try:
            found = self.verbs[verb](body)
        except Exception:
            return 500, b""
        return 200, found if isinstance(found, bytes) else json.dumps(found).encode()


@contextmanager
def extender_server() -> Iterator[ExtenderServer]:
    """A server for the length of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content = found.respond(self.path.removeprefix("/extender/"), body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        found = ExtenderServer(server.server_address[1])
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.may_respond.set()
            server.shutdown()
            thread.join()
