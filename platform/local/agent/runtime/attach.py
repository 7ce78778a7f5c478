"""Attached clients of a container with an input or a terminal: the shim's end, a local socket.

Imported by `shim`, so it imports nothing of Batholith. The agent connects for each client. Each
packet begins with its kind: `STDIN`, `RESIZE` and `CLAIM_STDIN` to the shim, `STDOUT` and `STDERR`
from it; an empty `STDIN` is the end of the input.

Memory is bounded: a client's input is not received while the container does not read, and the
container's output is not read while a client does not receive it, for `STALL_TIMEOUT`.
"""

import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Callable

STDIN, STDOUT, STDERR, CLAIM_STDIN, RESIZE = b"\0", b"\1", b"\2", b"\3", b"\4"
SOCKET = "attach.sock"
MAX_PACKET = 16 * 1024
STALL_TIMEOUT = 10.0
"""Seconds after which a client that receives nothing is disconnected."""

_MAX_CLIENTS = 16
_MAX_BACKLOG = 64 * 1024
_MAX_INPUT = 64 * 1024


def socket_path(directory: int) -> str:
    """Return a path, short enough for a socket, of the socket in the directory open as a number."""
    return f"/proc/self/fd/{directory}/{SOCKET}"


class _Client:
    """One attached client."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.backlog: deque[bytes] = deque()
        self.progress = now
        """When it last received something, or had received all."""
        self.has_claimed = False
        """Whether the input ends with this client, if that of the container is for one only."""

    def flush(self, now: float) -> bool:
        """Send what can be sent; return ``False`` if the client has disconnected."""
        while self.backlog:
            try:
                self.connection.send(self.backlog[0])
            except BlockingIOError:
                return True
            except OSError:
                return False
            self.backlog.popleft()
            self.progress = now
        self.progress = now
        return True

    @property
    def backlog_size(self) -> int:
        return sum(map(len, self.backlog))


class AttachServer:
    """The clients of one run."""

    def __init__(
        self,
        run_path: str,
        *,
        stdin: int,
        terminal: bool,
        once: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen in the directory of the run.

        *stdin* is the end of the container's input that is written, or -1; with *once* the input
        ends when a client that uses it disconnects.
        """
        self._stdin = stdin
        self._terminal = terminal
        self._once = once
        self._now = now
        self._input = bytearray()
        self._input_ended = False
        self._clients: dict[int, _Client] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        directory = os.open(run_path, os.O_PATH | os.O_DIRECTORY)
        mask = os.umask(0o077)
        try:
            self._listener.bind(socket_path(directory))
        finally:
            os.umask(mask)
            os.close(directory)
        self._listener.listen(_MAX_CLIENTS)
        self._listener.setblocking(False)
        if stdin >= 0:
            os.set_blocking(stdin, False)

    @property
    def descriptors(self) -> list[int]:
        """Return what the container's processes must not have."""
        return [self._listener.fileno(), *([self._stdin] if self._stdin >= 0 else [])]

    @property
    def is_behind(self) -> bool:
        """Whether a client does not receive the output as fast as the container writes it."""
        return any(each.backlog_size > _MAX_BACKLOG for each in self._clients.values())

    def readable(self) -> list[int]:
        """Return what to wait for input from."""
        clients = self._clients if len(self._input) < _MAX_INPUT else ()
        return [self._listener.fileno(), *clients]

    def writable(self) -> list[int]:
        """Return what to wait for until it can be written."""
        waiting = [number for number, each in self._clients.items() if each.backlog]
        return waiting + ([self._stdin] if self._input and self._stdin >= 0 else [])

    def timeout(self) -> float | None:
        """Return after how many seconds to call `handle` at the latest."""
        due = [each.progress + STALL_TIMEOUT for each in self._clients.values() if each.backlog]
        return max(0.0, min(due) - self._now()) if due else None

    def handle(self, ready: list[int]) -> None:
        """Handle the descriptors that can be read or written."""
        now = self._now()
        for number in ready:
            if number == self._listener.fileno():
                self._accept(now)
            elif number in self._clients:
                self._receive(number)
        self._flush()
        self._write_input()

    def _flush(self) -> None:
        now = self._now()
        for number, client in list(self._clients.items()):
            if not client.flush(now) or now - client.progress >= STALL_TIMEOUT:
                self._disconnect(number)

    def send(self, kind: bytes, data: bytes) -> None:
        """Send output to all clients."""
        if not data:
            return
        now = self._now()
        packets = [kind + data[at : at + MAX_PACKET] for at in range(0, len(data), MAX_PACKET)]
        for number, client in list(self._clients.items()):
            client.backlog.extend(packets)
            if not client.flush(now):
                self._disconnect(number)

    def close(self) -> None:
        """Send the rest to the clients that receive it, and disconnect all."""
        self._listener.close()
        while waiting := [number for number, each in self._clients.items() if each.backlog]:
            select.select([], waiting, [], self.timeout())
            self._flush()
        for number in list(self._clients):
            self._disconnect(number)

    def _accept(self, now: float) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has disconnected
        if len(self._clients) >= _MAX_CLIENTS:
            connection.close()
            return
        self._clients[connection.fileno()] = _Client(connection, now)

    def _disconnect(self, number: int) -> None:
        client = self._clients.pop(number)
        client.connection.close()
        if client.has_claimed:
            self._end_input()

    def _end_input(self) -> None:
        """End the input, if it is for one client only."""
        self._input_ended = self._input_ended or self._once
        self._write_input()

    def _receive(self, number: int) -> None:
        client = self._clients[number]
        try:
            packet = client.connection.recv(1 + MAX_PACKET)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        kind, data = packet[:1], packet[1:]
        if not packet:
            self._disconnect(number)
        elif kind == CLAIM_STDIN:
            client.has_claimed = True
        elif kind == RESIZE and len(data) == 4 and self._terminal and self._stdin >= 0:
            width, height = struct.unpack("HH", data)
            fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        elif kind == STDIN and data:
            if self._stdin >= 0 and not self._input_ended:
                self._input += data
        elif kind == STDIN and self._once and not self._terminal:
            self._end_input()
        elif kind == STDIN:
            # Nothing else would end the connection, and kubectl would wait for ever; the input
            # itself stays open, as with containerd.
            client.flush(self._now())
            self._disconnect(number)

    def _write_input(self) -> None:
        try:
            while self._input and self._stdin >= 0:
                del self._input[: os.write(self._stdin, self._input)]
        except BlockingIOError:
            return
        except OSError:  # no process reads any more
            self._input.clear()
            self._input_ended = True
        if self._input_ended and not self._terminal and self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
