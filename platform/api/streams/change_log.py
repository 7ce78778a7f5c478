"""A bounded log of the changes of one kind, and the streams that are sent from it. Pure.

Changes are collected by object and appended as one batch (:meth:`ChangeLog.flush`), so that an
object appears in a batch once. All streams read the same log: one that is slow has a position in
it and no queue, and later gets the latest state of each object that changed since. A
stream whose position has left the log cannot continue: its client has to list again.

A position consists of a number of this log and of resourceVersions. The number means nothing to
another process, which continues from the latest point at which its log had every change up to some
version not above that of the position, and no later one. Changes after this point may be sent a
second time. None is missing: a process that has listed again since, and so may not know of an
object that was created and deleted, does not continue.
"""

import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

MAX_CHANGES = 10_000
"""Changes that are kept."""

PIECE_SIZE = 64 * 1024
"""Size in bytes of the pieces in which a list or a long series of changes is sent."""

SYNCED, END = b"synced", b"end"
"""Events other than those of objects."""

_POSITION = re.compile(
    r"([0-9a-z-]{1,64})\.([0-9]{1,20})\.([0-9]{1,20})\.([0-9a-f]{1,32})\.([0-9]{1,20})", re.ASCII
)


class Row(Protocol):
    """What a stream shows of an object."""

    @property
    def uid(self) -> str:
        """The object's uid."""
        ...


T = TypeVar("T", bound=Row)
S = TypeVar("S", bound=Row, contravariant=True)


class Selection(Protocol[S]):
    """The objects of a stream; hashable, so that equal streams share their events."""

    @property
    def digest(self) -> str:
        """A digest that is the same for equal selections in any process, of letters a-z, digits and
        hyphens."""
        ...

    def matches(self, row: S) -> bool:
        """Return whether the stream contains *row*."""
        ...


class PositionLostError(Exception):
    """The log has no more changes after the position."""


class Position(NamedTuple):
    """A position in a stream, as clients know it."""

    digest: str
    """Digest of the selection. With another selection, the client would keep objects that this one
    does not contain."""

    version: int
    """The client knows every change up to this resourceVersion."""

    seen: int
    """The client may know changes up to this resourceVersion: it has received a part of a batch."""

    epoch: str
    number: int

    @classmethod
    def parse(cls, text: str) -> "Position | None":
        """Parse the text of a position."""
        found = _POSITION.fullmatch(text)
        if found is None:
            return None
        return cls(found[1], int(found[2]), int(found[3]), found[4], int(found[5]))

    def __str__(self) -> str:
        """Return the position as clients send it back."""
        return f"{self.digest}.{self.version}.{self.seen}.{self.epoch}.{self.number}"


class Item(Generic[T]):
    """One state of an object, encoded once at most."""

    __slots__ = ("_data", "_encode", "row")

    def __init__(self, row: T, encode: Callable[[T], bytes]) -> None:
        self.row = row
        self._encode = encode
        self._data: bytes | None = None

    @property
    def data(self) -> bytes:
        """The state as JSON, in one line."""
        if self._data is None:
            self._data = self._encode(self.row)
        return self._data


class Change(NamedTuple, Generic[T]):
    """The change of an object from one batch to the next."""

    key: str
    old: Item[T] | None
    new: Item[T] | None

    between: tuple[Item[T], ...]
    """Earlier states, which streams of another replica may have sent."""


@dataclass(slots=True)
class _Batch(Generic[T]):
    changes: tuple[Change[T], ...]
    version: int
    """The log has every change up to this version after the batch."""

    is_exact: bool
    """Whether it has no change of a later version, and all later ones are known with each of their
    states: a relist skips some."""


class _Group(NamedTuple):
    """Events for all streams of one selection at one position."""

    frames: tuple[bytes, ...]
    chunk: bytes | None
    """The whole, if it is not longer than one piece."""


class ChangeLog(Generic[T]):
    """Changes of the objects of one kind, and their state after the last batch."""

    def __init__(self, encode: Callable[[T], bytes], *, max_changes: int = MAX_CHANGES) -> None:
        self.number = 0
        """Number of the last batch."""
        self.version = 0
        """The log has every change up to this resourceVersion."""
        self.epoch = secrets.token_hex(6)
        self.is_exact = False
        """Whether it has every state up to its version, and no later one."""
        self.changes = 0
        """Number of changes that are kept."""
        self._encode = encode
        self._max_changes = max_changes
        self._items: dict[str, Item[T]] = {}
        self._pending: dict[str, list[T | None]] = {}
        self._batches: deque[_Batch[T]] = deque()
        self._base_version, self._is_base_exact = 0, False
        """Version before the oldest batch."""
        self._snapshot: tuple[Item[T], ...] | None = None
        self._groups: dict[tuple[Selection[T], int], _Group] = {}

    def __len__(self) -> int:
        """Number of objects."""
        return len(self._items)

    @property
    def oldest(self) -> int:
        """The oldest position that a stream can continue from."""
        return self.number - len(self._batches)

    @property
    def has_pending(self) -> bool:
        """Whether changes wait for the next flush."""
        return bool(self._pending)

    def record(self, key: str, row: T | None) -> None:
        """Record the new state of an object, or its deletion."""
        self._pending.setdefault(key, []).append(row)

    def load(self, version: int) -> None:
        """Take what was recorded as the initial list of *version*; there are no streams yet."""
        self._apply()
        self._base_version = self.version = version
        self.is_exact = self._is_base_exact = version > 0

    def note_gap(self) -> None:
        """Note that states may be missing that another replica may have sent."""
        self.is_exact = self._is_base_exact = False
        for batch in self._batches:
            batch.is_exact = False

    def flush(self, version: int | None, *, has_gap: bool = False) -> None:
        """Append what was recorded as one batch.

        Args:
            version: all changes up to it are recorded; None while changes may be missing.
            has_gap: whether the objects were listed again since the last flush.
        """
        if version is None or has_gap:
            self.note_gap()
        self.is_exact = is_exact = version is not None
        if version is None:
            version = self.version
        if version < self.version:
            # The server has another history: positions by version are meaningless from here on.
            self.epoch = secrets.token_hex(6)
            self._batches.clear()
            self._groups.clear()
            self.changes = 0
            self._base_version, self._is_base_exact = version, False
        self.version = version
        changes = self._apply()
        if changes:
            self._snapshot = None
            self._groups.clear()
            self.number += 1
            self.changes += _count(changes)
            self._batches.append(_Batch(changes, version, is_exact))
            while self.changes > self._max_changes and len(self._batches) > 1:
                dropped = self._batches.popleft()
                self.changes -= _count(dropped.changes)
                self._base_version, self._is_base_exact = dropped.version, dropped.is_exact
        elif is_exact and self._batches:
            self._batches[-1].version, self._batches[-1].is_exact = version, True
        elif is_exact:
            self._base_version, self._is_base_exact = version, True

    def _apply(self) -> tuple[Change[T], ...]:
        """Update the items to what was recorded; return the changes."""
        changes = []
        for key, rows in self._pending.items():
            old = self._items.get(key)
            *between, new = (None if row is None else Item(row, self._encode) for row in rows)
            if new is not None:
                self._items[key] = new
            elif old is not None:
                del self._items[key]
            states = tuple(item for item in between if item is not None)
            if old is not None or new is not None or states:
                changes.append(Change(key, old, new, states))
        self._pending = {}
        return tuple(changes)

    def snapshot(self) -> tuple[Item[T], ...]:
        """Return all objects after the last batch; shared until the next one."""
        if self._snapshot is None:
            self._snapshot = tuple(self._items.values())
        return self._snapshot

    def position(self, digest: str, number: int) -> Position:
        """Return the position after the batch *number*, for a client that may have received changes
        of later batches."""
        version = seen = 0  # means nothing to another replica
        if self.is_exact:
            at = number - self.oldest
            version = self._batches[at - 1].version if at > 0 else self._base_version
            seen = self.version
        return Position(digest, version, seen, self.epoch, number)

    def find(self, position: Position) -> int | None:
        """Return the batch after which a stream continues; None if it has to list again."""
        if position.epoch == self.epoch:
            return position.number if self.oldest <= position.number <= self.number else None
        if not (self.is_exact and 0 < position.version <= position.seen <= self.version):
            return None  # this process is behind, has missed states, or has another history
        number = self.number
        for batch in reversed(self._batches):
            if batch.is_exact and batch.version <= position.version:
                return number
            number -= 1
        is_covered = self._is_base_exact and self._base_version <= position.version
        return number if is_covered else None

    def since(self, number: int, selection: Selection[T]) -> Iterator[tuple[bytes, Item[T]]]:
        """Yield the events of *selection* after the batch *number*, one for most objects.

        What was created and deleted since is reported as deleted: a client that lost its connection
        amid the events of a batch resumes before it, and may have seen the object.

        Raises:
            PositionLostError: the batch has left the log.
        """
        if not self.oldest <= number:
            raise PositionLostError
        merged: dict[str, list[Change[T]]] = {}
        for at in range(number - self.oldest, len(self._batches)):
            for change in self._batches[at].changes:
                merged.setdefault(change.key, []).append(change)
        for changes in merged.values():
            yield from _events(changes, selection)

    def frames(self, number: int, selection: Selection[T]) -> list[bytes]:
        """Return the events of *selection* after the batch *number*, encoded.

        All have the position before them, which a client resumes from if it gets only some.

        Raises:
            PositionLostError: the batch has left the log.
        """
        before = self.position(selection.digest, number)
        return [frame(name, item.data, before) for name, item in self.since(number, selection)]

    def group(self, number: int, selection: Selection[T]) -> _Group:
        """Return the events of *selection* after the batch *number*, encoded once for all streams.

        Raises:
            PositionLostError: the batch has left the log.
        """
        found = self._groups.get((selection, number))
        if found is None:
            frames = self.frames(number, selection)
            if frames:
                last, _ = frames[-1].rsplit(b"id: ", 1)
                end = self.position(selection.digest, self.number)
                frames[-1] = b"%bid: %b\n\n" % (last, str(end).encode())
            chunk = b"".join(frames) if sum(map(len, frames)) <= PIECE_SIZE else None
            found = self._groups[selection, number] = _Group(tuple(frames), chunk)
        return found

    def validate(self) -> None:
        """Check the counts; for tests.

        Raises:
            AssertionError: they are wrong.
        """
        kept = sum(_count(batch.changes) for batch in self._batches)
        is_too_long = kept > self._max_changes and len(self._batches) > 1
        if kept != self.changes or is_too_long or self.oldest < 0:
            raise AssertionError("the counts do not match the batches")
        versions = [self._base_version, *(batch.version for batch in self._batches)]
        if versions != sorted(versions) or versions[-1] != self.version:
            raise AssertionError("the versions of the batches decrease")


class Subscription(Generic[T]):
    """The state of one stream: its position, and what is left of a list."""

    def __init__(
        self, log: ChangeLog[T], selection: Selection[T], *, after: Position | None
    ) -> None:
        """Continue after a position, or begin with a list.

        Raises:
            PositionLostError: the stream cannot continue there.
        """
        self._log = log
        self._selection = selection
        self._rest: Iterator[bytes] | None
        self.number = log.number
        """Number of the last batch whose events were sent, or are in the rest."""
        self._sent_id = ""
        if after is None:
            listed = (
                frame(b"list", item.data) for item in log.snapshot() if selection.matches(item.row)
            )
            self._rest = _pieces(_chain(listed, self._synced()))
            return
        number = log.find(after) if after.digest == selection.digest else None
        if number is None:
            raise PositionLostError
        changes = log.frames(number, selection)
        self._rest = _pieces(_chain(changes, self._synced()))

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to send."""
        return self._rest is None and self.number == self._log.number

    def next_chunk(self) -> bytes | None:
        """Return what to send next; None if there is nothing.

        Raises:
            PositionLostError: the client reads so slowly that its position has left the log.
        """
        if self._rest is not None:
            piece = next(self._rest, None)
            if piece is not None:
                return piece
            self._rest = None
        if self.number == self._log.number:
            return None
        group = self._log.group(self.number, self._selection)
        self.number = self._log.number
        if not group.frames:
            return None
        self._sent_id = str(self._position())
        if group.chunk is not None:
            return group.chunk
        self._rest = _pieces(group.frames)
        return next(self._rest)

    def heartbeat(self) -> bytes:
        """Return a comment, with the position if that has changed since it was sent."""
        current = str(self._position())
        if not self.is_current or current == self._sent_id:
            return b": heartbeat\n\n"
        self._sent_id = current
        return b": heartbeat\nid: %b\n\n" % current.encode()

    def _position(self) -> Position:
        return self._log.position(self._selection.digest, self.number)

    def _synced(self) -> bytes:
        position = self._position()
        self._sent_id = str(position)
        return frame(SYNCED, b"{}", position)


def frame(name: bytes, data: bytes, position: Position | None = None) -> bytes:
    """Encode one event; *data* has no line breaks."""
    if position is None:
        return b"event: %b\ndata: %b\n\n" % (name, data)
    return b"event: %b\ndata: %b\nid: %b\n\n" % (name, data, str(position).encode())


def _count(changes: Iterable[Change[T]]) -> int:
    """Return the number of states in *changes*."""
    return sum(1 + len(change.between) for change in changes)


def _events(changes: list[Change[T]], selection: Selection[T]) -> Iterator[tuple[bytes, Item[T]]]:
    """Yield the events of the successive changes of one object for the streams of *selection*."""
    old, new = changes[0].old, changes[-1].new
    seen = {
        item.row.uid: item
        for item in (old, *(each for change in changes for each in (*change.between, change.new)))
        if item is not None and selection.matches(item.row)
    }
    """Objects that the client may have, by uid, since a later object may have the same name."""
    is_selected = new is not None and selection.matches(new.row)
    for uid, item in seen.items():
        if new is None or uid != new.row.uid:
            yield b"deleted", item
        elif not is_selected:
            yield b"deleted", new  # what it has become
    if new is not None and is_selected:
        was_selected = old is not None and old.row.uid == new.row.uid and selection.matches(old.row)
        yield b"modified" if was_selected else b"added", new


def _chain(frames: Iterable[bytes], last: bytes) -> Iterator[bytes]:
    yield from frames
    yield last


def _pieces(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Join *frames* to pieces of a limited size, one at a time."""
    piece: list[bytes] = []
    size = 0
    for each in frames:
        piece.append(each)
        size += len(each)
        if size >= PIECE_SIZE:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)
