"""The log of changes that streams read: positions, coalescing, filters, relists."""

import json
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import ALL, RUNNING, ByPhase, Obj, events, obj

from batholith.api.streams.change_log import (
    PIECE_SIZE,
    ChangeLog,
    Position,
    PositionLostError,
    Subscription,
)

KEYS = ("a", "b", "c")
PHASES = ("Pending", "Running")


def new_log(max_changes: int = 100) -> ChangeLog[Obj]:
    return ChangeLog(msgspec.json.encode, max_changes=max_changes)


def drained(subscription: Subscription[Obj]) -> list[dict[str, str]]:
    found = []
    while (chunk := subscription.next_chunk()) is not None:
        found += events(chunk)
    return found


def names(found: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(each["event"], json.loads(each["data"]).get("key", "")) for each in found]


@pytest.fixture
def log() -> ChangeLog[Obj]:
    found = new_log()
    found.record("a", obj("a"))
    found.record("b", obj("b", "Pending"))
    found.load(10)
    return found


def test_a_stream_begins_with_a_list(log: ChangeLog[Obj]) -> None:
    found = drained(Subscription(log, ALL, after=None))
    assert names(found) == [("list", "a"), ("list", "b"), ("synced", "")]
    assert ["id" in each for each in found] == [False, False, True]
    assert names(drained(Subscription(log, RUNNING, after=None))) == [("list", "a"), ("synced", "")]


def test_changes_of_an_object_are_sent_once_per_batch(log: ChangeLog[Obj]) -> None:
    stream = Subscription(log, ALL, after=None)
    drained(stream)
    for version in range(11, 20):
        log.record("a", obj("a", version=version))
    log.record("b", None)
    log.record("c", obj("c"))
    assert drained(stream) == []
    log.flush(20)
    found = drained(stream)
    assert names(found) == [("modified", "a"), ("deleted", "b"), ("added", "c")]
    assert json.loads(found[0]["data"])["version"] == 19
    assert ["id" in each for each in found] == [True, True, True]


def test_an_object_that_leaves_the_filter_is_deleted_for_the_stream(log: ChangeLog[Obj]) -> None:
    stream = Subscription(log, RUNNING, after=None)
    drained(stream)
    log.record("a", obj("a", "Pending"))
    log.record("b", obj("b"))
    log.flush(11)
    found = drained(stream)
    assert names(found) == [("deleted", "a"), ("added", "b")]
    assert json.loads(found[0]["data"])["phase"] == "Pending", "what it has become"
    log.record("a", None)
    log.flush(12)
    assert drained(stream) == []


def test_a_recreated_object_is_deleted_and_added(log: ChangeLog[Obj]) -> None:
    stream = Subscription(log, ALL, after=None)
    drained(stream)
    log.record("a", None)
    log.record("a", obj("a", uid="other"))
    log.flush(12)
    found = drained(stream)
    assert names(found) == [("deleted", "a"), ("added", "a")]
    assert [json.loads(each["data"])["uid"] for each in found] == ["u", "other"]


def test_an_object_created_and_deleted_within_a_batch_is_deleted(log: ChangeLog[Obj]) -> None:
    stream = Subscription(log, ALL, after=None)
    drained(stream)
    log.record("c", obj("c"))
    log.record("c", None)
    log.flush(12)
    assert names(drained(stream)) == [("deleted", "c")], "another replica may have sent it"


def test_a_slow_stream_gets_the_latest_state_of_each_object(log: ChangeLog[Obj]) -> None:
    slow = Subscription(log, ALL, after=None)
    drained(slow)
    for version in range(11, 61):
        log.record("a", obj("a", version=version))
        log.flush(version)
    log.record("b", None)
    log.flush(61)
    found = drained(slow)
    assert names(found) == [("modified", "a"), ("deleted", "b")]
    assert json.loads(found[0]["data"])["version"] == 60


def test_streams_of_one_selection_share_their_bytes(log: ChangeLog[Obj]) -> None:
    streams = [Subscription(log, ByPhase("Running"), after=None) for _ in range(3)]
    for stream in streams:
        drained(stream)
    log.record("a", obj("a", version=11))
    log.flush(11)
    assert len({id(stream.next_chunk()) for stream in streams}) == 1


def test_the_log_is_bounded(log: ChangeLog[Obj]) -> None:
    small = new_log(max_changes=5)
    small.load(1)
    stream = Subscription(small, ALL, after=None)
    drained(stream)
    for version in range(2, 40):
        small.record("a", obj("a", version=version))
        small.flush(version)
        small.validate()
    assert small.changes == 5
    with pytest.raises(PositionLostError):
        stream.next_chunk()


def test_long_lists_are_sent_in_pieces() -> None:
    log = new_log(10_000)
    for number in range(3000):
        log.record(f"{number}", obj(f"{number}"))
    log.load(1)
    stream = Subscription(log, ALL, after=None)
    pieces = []
    while (piece := stream.next_chunk()) is not None:
        pieces.append(piece)
        for number in range(3000):  # the list stays that of its beginning
            log.record(f"{number}", None)
        log.flush(2)
    assert max(map(len, pieces)) < PIECE_SIZE + 200
    found = names([each for piece in pieces for each in events(piece)])
    assert [name for name, _ in found] == ["list"] * 3000 + ["synced"] + ["deleted"] * 3000


def test_a_heartbeat_has_the_position_of_a_quiet_stream(log: ChangeLog[Obj]) -> None:
    stream = Subscription(log, RUNNING, after=None)
    first = drained(stream)[-1]["id"]
    assert stream.heartbeat() == b": heartbeat\n\n"
    log.record("b", obj("b", "Pending", version=11))
    log.flush(11)
    assert drained(stream) == []
    position = events(stream.heartbeat())[0]["id"]
    assert position != first
    assert Position.parse(position) == (RUNNING.digest, 11, 11, log.epoch, 1)
    assert stream.heartbeat() == b": heartbeat\n\n"


def resume(log: ChangeLog[Obj], text: str, selection: ByPhase = ALL) -> list[tuple[str, str]]:
    position = Position.parse(text)
    assert position is not None
    return names(drained(Subscription(log, selection, after=position)))


def test_a_stream_is_resumed_at_the_same_replica(log: ChangeLog[Obj]) -> None:
    position = drained(Subscription(log, ALL, after=None))[-1]["id"]
    assert resume(log, position) == [("synced", "")]
    log.record("a", None)
    log.flush(None)  # the version is unknown during a relist
    assert resume(log, position) == [("deleted", "a"), ("synced", "")]
    with pytest.raises(PositionLostError):
        resume(log, position, RUNNING)


def test_a_stream_is_resumed_at_another_replica_by_version(log: ChangeLog[Obj]) -> None:
    position = drained(Subscription(log, ALL, after=None))[-1]["id"]
    other = new_log()
    other.record("a", obj("a"))
    other.record("b", obj("b", "Pending"))
    other.record("c", obj("c"))
    other.load(9)
    other.record("c", None)
    other.flush(11)
    # Its list lacks nothing up to 9, so that all later changes are sent.
    assert resume(other, position) == [("deleted", "c"), ("synced", "")]
    behind = new_log()
    behind.load(9)
    started_later = new_log()
    started_later.load(11)
    for unknown in (behind, started_later):
        with pytest.raises(PositionLostError):
            resume(unknown, position)


def test_versions_that_start_again_are_not_mistaken_for_known_ones(log: ChangeLog[Obj]) -> None:
    """The server was restored from a backup."""
    position = drained(Subscription(log, ALL, after=None))[-1]["id"]
    log.record("a", None)
    log.flush(5)
    log.validate()
    with pytest.raises(PositionLostError):
        resume(log, position)


@pytest.mark.parametrize(
    "text", ["", "x", "a.1.b", "a.1.1.zz.3", "A.1.1.aa.1", "a.1.1.aa.1\n", "a.٣.1.aa.1"]
)
def test_malformed_positions_are_not_understood(text: str) -> None:
    assert Position.parse(text) is None


# Any history


@dataclass
class Replica:
    """An informer's view of the server, and its log."""

    log: ChangeLog[Obj]
    seen: dict[str, Obj] = field(default_factory=dict)
    at: int = 0
    """Number of events of the server that it has received."""
    differences: dict[str, Obj | None] = field(default_factory=dict)
    """What a relist has still to deliver."""
    has_gap: bool = False

    def apply(self, key: str, new: Obj | None) -> None:
        old = self.seen.get(key)
        if new is None:
            if old is None:
                return
            del self.seen[key]
        else:
            if old is not None and old.uid != new.uid:
                self.log.record(key, None)
            self.seen[key] = new
        self.log.record(key, new)

    @property
    def version(self) -> int | None:
        return None if self.differences else self.at


@dataclass
class Server:
    history: list[tuple[str, Obj | None]] = field(default_factory=list)
    objects: dict[str, Obj] = field(default_factory=dict)

    def write(self, key: str, phase: str | None, *, recreate: bool) -> None:
        old = self.objects.pop(key, None)
        if phase is None and old is None:
            return
        version = len(self.history) + 1
        if phase is None:
            self.history.append((key, None))
            return
        uid = old.uid if old is not None and not recreate else f"u{version}"
        if old is not None and uid != old.uid:
            self.history.append((key, None))
            version += 1
        self.objects[key] = Obj(key=key, uid=uid, phase=phase, version=version)
        self.history.append((key, self.objects[key]))


@dataclass
class Client:
    selection: ByPhase
    state: dict[str, Obj] = field(default_factory=dict)
    listed: dict[str, Obj] | None = None
    last_id: str = ""
    stream: Subscription[Obj] | None = None
    newest: dict[str, int] = field(default_factory=dict)
    lists: int = 0

    def connect(self, replica: Replica) -> None:
        position = Position.parse(self.last_id) if self.last_id else None
        if replica.has_gap or replica.version is None:
            replica.log.note_gap()
        try:
            self.stream = Subscription(replica.log, self.selection, after=position)
        except PositionLostError:
            self.last_id = ""
            self.stream = Subscription(replica.log, self.selection, after=None)
        self.listed = {} if not self.last_id else None
        self.lists += not self.last_id
        self.newest = {}

    def read(self, replica: Replica, *, cut: int | None = None) -> bool:
        """Read one chunk, or with *cut* some of its events before the connection is lost."""
        if self.stream is None:
            self.connect(replica)
        assert self.stream is not None
        try:
            chunk = self.stream.next_chunk()
        except PositionLostError:
            self.stream = None
            return True
        if chunk is None:
            return False
        for event in events(chunk)[:cut]:
            self.on_event(event)
        if cut is not None:
            self.stream = None
        return True

    def on_event(self, event: dict[str, str]) -> None:
        name = event["event"]
        if name == "synced":
            if self.listed is not None:
                self.state, self.listed = self.listed, None
        else:
            row = msgspec.json.decode(event["data"], type=Obj)
            assert row.version >= self.newest.get(row.key, 0), "states are in order"
            self.newest[row.key] = row.version
            if name == "list":
                assert self.listed is not None
                self.listed[row.key] = row
            elif name == "deleted":
                if row.key in self.state and self.state[row.key].uid == row.uid:
                    del self.state[row.key]
            else:
                self.state[row.key] = row
        self.last_id = event.get("id", self.last_id)


assert settings.default is not None
EXAMPLES = 10 * settings.default.max_examples
"""More than of others, since one takes some milliseconds."""

REPLICAS = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(
        st.just("write"), st.sampled_from(KEYS), st.sampled_from((*PHASES, None)), st.booleans()
    ),
    st.tuples(
        st.just("publish"), st.sampled_from(KEYS), st.sampled_from((*PHASES, None)), REPLICAS
    ),
    st.tuples(st.just("deliver"), REPLICAS, st.integers(1, 4)),
    st.tuples(st.just("gap"), REPLICAS),
    st.tuples(st.just("differences"), REPLICAS, st.integers(1, 2)),
    st.tuples(st.just("flush"), REPLICAS),
    st.tuples(st.just("restart"), REPLICAS),
    st.tuples(st.just("read"), st.none() | st.integers(0, 3)),
    st.tuples(st.just("move"), REPLICAS),
)


class History:
    """A server, two replicas, and a client that moves between them."""

    def __init__(self, selection: ByPhase, max_changes: int) -> None:
        self.server = Server()
        self.max_changes = max_changes
        self.replicas = [self.started(), self.started()]
        self.client = Client(selection)
        self.where = 0

    def started(self) -> Replica:
        """A replica that has just listed."""
        replica = Replica(new_log(self.max_changes), at=len(self.server.history))
        for key, found in self.server.objects.items():
            replica.apply(key, found)
        replica.log.load(replica.at)
        return replica

    def write(self, key: str, phase: str | None, recreate: bool) -> None:
        self.server.write(key, phase, recreate=recreate)

    def publish(self, key: str, phase: str | None, number: int) -> None:
        """Write, and have a replica append it to its log."""
        self.write(key, phase, False)
        self.deliver(number, len(self.server.history))
        self.flush(number)

    def deliver(self, number: int, count: int) -> None:
        """Deliver events of the watch; a difference of an object that has changed is obsolete."""
        replica = self.replicas[number]
        for key, new in self.server.history[replica.at : replica.at + count]:
            replica.differences.pop(key, None)
            replica.apply(key, new)
            replica.at += 1

    def gap(self, number: int) -> None:
        """The watch misses events; it continues at once, and a relist will deliver differences."""
        replica, objects = self.replicas[number], self.server.objects
        replica.at, replica.has_gap = len(self.server.history), True
        replica.differences = {
            key: objects.get(key) for key in KEYS if replica.seen.get(key) != objects.get(key)
        }

    def differences(self, number: int, count: int) -> None:
        replica = self.replicas[number]
        for key in list(replica.differences)[:count]:
            replica.apply(key, replica.differences.pop(key))

    def flush(self, number: int) -> None:
        replica = self.replicas[number]
        replica.log.flush(replica.version, has_gap=replica.has_gap)
        replica.has_gap = False
        replica.log.validate()

    def restart(self, number: int) -> None:
        self.replicas[number] = self.started()
        if number == self.where:
            self.client.stream = None

    def read(self, cut: int | None) -> None:
        self.client.read(self.replicas[self.where], cut=cut)

    def move(self, number: int) -> None:
        self.where, self.client.stream = number, None

    def settle(self) -> None:
        """Deliver and read everything."""
        for number in range(len(self.replicas)):
            self.differences(number, len(KEYS))
            self.deliver(number, len(self.server.history))
            self.flush(number)
        while self.client.read(self.replicas[self.where]):
            pass


def selected(objects: dict[str, Obj], selection: ByPhase) -> dict[str, Obj]:
    return {key: found for key, found in objects.items() if selection.matches(found)}


@settings(max_examples=EXAMPLES)
@given(
    st.lists(STEPS, min_size=30, max_size=60),
    st.sampled_from((ALL, RUNNING)),
    st.sampled_from((4, 12, 1000)),
)
def test_a_client_ends_with_the_state_of_the_server(
    steps: list[tuple[str, ...]], selection: ByPhase, max_changes: int
) -> None:
    """Changes are coalesced, missed by the watch, cut off, and resumed at any replica."""
    history = History(selection, max_changes)
    for name, *arguments in steps:
        getattr(history, name)(*arguments)
    history.settle()
    assert history.client.state == selected(history.server.objects, selection)


def test_histories_do_resume_at_another_replica() -> None:
    """The property above would also hold if every reconnect began with a list."""
    history = History(ALL, 1000)
    history.write("a", "Running", False)
    history.settle()
    for number in (1, 0, 1):
        history.write("a", "Pending", False)
        history.write("a", None, False)
        history.write("a", "Running", False)
        history.deliver(0, 3)
        history.flush(0)
        history.deliver(1, 3)
        history.flush(1)
        history.move(number)
        history.settle()
    assert history.client.lists == 1
    assert history.client.state == history.server.objects
