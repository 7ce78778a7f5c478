"""Merging a list with concurrent changes, in any order of arrival."""

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.kube.informer import relist
from batholith.kube.informer.relist import Relist
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta


class Thing(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


def thing(key: str, uid: str, version: int, *, created: str = "") -> Thing:
    namespace, _, name = key.rpartition("/")
    meta = ObjectMeta(
        name=name,
        namespace=namespace,
        uid=uid,
        resource_version=str(version),
        creation_timestamp=created or None,
    )
    return Thing(metadata=meta)


@dataclass
class FakeRelistTarget:
    """A store like the informer's that records events."""

    objects: dict[str, Thing] = field(default_factory=dict)
    is_synced: bool = True
    events: list[tuple[str, str, int]] = field(default_factory=list)
    """(add, update or delete; uid; version)."""

    def wants(self, obj: Thing) -> bool:
        return True

    def put(self, obj: Thing) -> None:
        key = obj.metadata.key
        old = self.objects.get(key)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self.delete(key)
            old = None
        if old is None or old.metadata.resource_version != obj.metadata.resource_version:
            self.objects[key] = obj
            self._emit("add" if old is None else "update", obj)

    def delete(self, key: str) -> None:
        old = self.objects.pop(key, None)
        if old is not None:
            self._emit("delete", old)

    def start_relist(self, *things: Thing) -> None:
        """Set the previous content of the store."""
        self.objects = {each.metadata.key: each for each in things}

    @property
    def state(self) -> dict[str, tuple[str, int]]:
        return {
            key: (obj.metadata.uid, int(obj.metadata.resource_version))
            for key, obj in self.objects.items()
        }

    def _emit(self, what: str, obj: Thing) -> None:
        self.events.append((what, obj.metadata.uid, int(obj.metadata.resource_version)))


def apply_change(relist: Relist[Thing], target: FakeRelistTarget, what: str, obj: Thing) -> None:
    """Apply a change as a reflector does."""
    if relist.should_apply(obj.metadata):
        if what == "DELETED":
            target.delete(obj.metadata.key)
        else:
            target.put(obj)


def run_to_completion(steps: Coroutine[Any, Any, None]) -> None:
    """Run without any other task in between."""
    try:
        while True:
            steps.send(None)
    except StopIteration:
        return


def test_relist_applies_only_differences() -> None:
    """Unknown: add; another version: update; the same: nothing; another uid: delete and add."""
    store = FakeRelistTarget()
    held = (("same", "u1", 1), ("new", "u2", 2), ("other", "u3", 3), ("deleted", "u4", 4))
    store.start_relist(*(thing(*each) for each in held))
    relist = Relist(store)
    for listed in (("same", "u1", 1), ("new", "u2", 9), ("other", "u7", 7), ("fresh", "u8", 8)):
        relist.add_listed(thing(*listed))
    assert store.events == []
    run_to_completion(relist.apply_list("10"))
    assert store.events == [
        ("delete", "u4", 4),
        ("update", "u2", 9),
        ("delete", "u3", 3),
        ("add", "u7", 7),
        ("add", "u8", 8),
    ]
    assert relist.is_complete


def test_new_objects_are_added_in_creation_order() -> None:
    store = FakeRelistTarget()
    relist = Relist(store)
    created = (("a", 5, "2026-01-03"), ("b", 9, "2026-01-01"), ("c", 7, "2026-01-01"))
    for key, version, when in created:
        relist.add_listed(thing(key, key, version, created=when))
    run_to_completion(relist.apply_list("10"))
    assert [uid for _, uid, _ in store.events] == ["c", "b", "a"]


def test_initial_list_keeps_its_order() -> None:
    store = FakeRelistTarget(is_synced=False)
    relist = Relist(store)
    for key, version in (("b", 5), ("a", 3), ("c", 4)):
        relist.add_listed(thing(key, key, version))
    run_to_completion(relist.apply_list("10"))
    assert [uid for _, uid, _ in store.events] == ["b", "a", "c"]


def test_partial_list_is_discarded() -> None:
    store = FakeRelistTarget()
    store.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    relist = Relist(store)
    relist.add_listed(thing("a", "u1", 1))
    relist.add_listed(thing("c", "u3", 3))
    relist.restart()
    relist.add_listed(thing("b", "u2", 2))
    run_to_completion(relist.apply_list("10"))
    assert store.state == {"b": ("u2", 2)}


def test_changes_newer_than_the_list_are_kept() -> None:
    store = FakeRelistTarget()
    store.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    relist = Relist(store)
    apply_change(relist, store, "ADDED", thing("later", "u3", 11))
    apply_change(relist, store, "MODIFIED", thing("a", "u1", 12))
    apply_change(relist, store, "DELETED", thing("b", "u2", 13))
    relist.add_listed(thing("a", "u1", 1))
    relist.add_listed(thing("b", "u2", 9))
    run_to_completion(relist.apply_list("10"))
    assert store.state == {"a": ("u1", 12), "later": ("u3", 11)}


def test_list_may_be_newer_than_the_applied_changes() -> None:
    """No object reverts to an older state, and no deleted one reappears."""
    store = FakeRelistTarget()
    store.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    relist = Relist(store)
    relist.add_listed(thing("a", "u1", 9))
    run_to_completion(relist.apply_list("10"))
    assert store.state == {"a": ("u1", 9)}
    store.events.clear()
    apply_change(relist, store, "MODIFIED", thing("a", "u1", 8))
    apply_change(relist, store, "MODIFIED", thing("b", "u2", 7))
    assert not relist.is_newer_than_list("10")
    assert store.events == []
    apply_change(relist, store, "MODIFIED", thing("a", "u1", 11))
    assert store.events == [("update", "u1", 11)]


def test_versions_of_another_history_are_not_compared() -> None:
    """A server restored from a backup has older versions, which are current."""
    store = FakeRelistTarget()
    store.start_relist(thing("a", "u1", 900), thing("b", "u2", 901), thing("c", "u3", 902))
    relist = Relist(store)
    relist.add_listed(thing("a", "u1", 400))
    relist.add_listed(thing("b", "u2", 901))
    apply_change(relist, store, "MODIFIED", thing("a", "u1", 501))
    run_to_completion(relist.apply_list("500"))
    assert store.state == {"a": ("u1", 501), "b": ("u2", 901)}


def test_undecodable_object_keeps_its_previous_state() -> None:
    store = FakeRelistTarget()
    store.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    relist = Relist(store)
    relist.add_undecodable(thing("a", "u1", 9).metadata)
    relist.add_undecodable(thing("b", "another", 9).metadata)
    run_to_completion(relist.apply_list("10"))
    assert store.state == {"a": ("u1", 1)}


def test_last_state_of_an_object_in_a_list_applies() -> None:
    """A watch list may include changes until it is complete."""
    store = FakeRelistTarget()
    store.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    relist = Relist(store)
    for listed in (thing("a", "u1", 5), thing("a", "u1", 1), thing("b", "u2", 2)):
        relist.add_listed(listed)
    relist.add_listed(thing("c", "u3", 3))
    relist.drop_listed("b")
    relist.drop_listed("c")
    run_to_completion(relist.apply_list("10"))
    assert store.events == [("delete", "u2", 2)]


# Random histories.

KEYS = "abcd"
State = dict[str, tuple[str, int]]
Change = tuple[str, str, str, int]
"""ADDED, MODIFIED or DELETED; key; uid; version."""


class History:
    """The history of a server, version by version."""

    def __init__(self, first: int, writes: list[tuple[str, str]]) -> None:
        self.first = first
        self.states: list[State] = [{}]
        self.changes: list[Change] = []
        for what, key in writes:
            self._write(what, key)

    def _write(self, what: str, key: str) -> None:
        state, version = dict(self.states[-1]), self.first + len(self.changes) + 1
        held = state.get(key)
        if what == "remove":
            if held is None:
                return
            del state[key]
            self.changes.append(("DELETED", key, held[0], version))
        else:
            uid = held[0] if held else f"{key}-{version}"
            state[key] = (uid, version)
            self.changes.append(("MODIFIED" if held else "ADDED", key, uid, version))
        self.states.append(state)

    @property
    def length(self) -> int:
        return len(self.changes)

    def state_at(self, index: int) -> State:
        """Return the objects after *index* changes."""
        return self.states[index]

    def version(self, index: int) -> int:
        return self.first + index


WRITES = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove"]), st.sampled_from(KEYS)), max_size=25
)


class RelistModel:
    """A synced store with a watch from the latest version and a concurrent relist."""

    def __init__(self, history: History, held: State, data: st.DataObject) -> None:
        self.history, self.data = history, data
        self.target = FakeRelistTarget()
        self.target.start_relist(*(thing(key, *what) for key, what in held.items()))
        self.relist = Relist(self.target)
        self.delivered_count = self.began = data.draw(
            st.integers(0, history.length), "watched from"
        )
        self.restart()

    def restart(self) -> None:
        """List the latest version or an older one, but not older than the start of the watch."""
        self.relist.restart()
        self.listed_at = self.data.draw(
            st.integers(self.began, self.history.length), "version of the list"
        )
        self.to_list = sorted(self.history.state_at(self.listed_at).items())

    def deliver_next(self) -> None:
        """Apply the next change, if there is one."""
        if self.delivered_count < self.history.length:
            what, key, uid, version = self.history.changes[self.delivered_count]
            self.delivered_count += 1
            apply_change(self.relist, self.target, what, thing(key, uid, version))

    def play(self) -> None:
        choices = st.sampled_from(["watch", "list", "list", "restart"])
        while self.to_list:
            choice = self.data.draw(choices, "step")
            if choice == "watch":
                self.deliver_next()
            elif choice == "restart":
                self.restart()
            else:
                key, what = self.to_list.pop(0)
                self.relist.add_listed(thing(key, *what))
        steps = self.relist.apply_list(str(self.history.version(self.listed_at)))
        try:
            while True:
                steps.send(None)
                for _ in range(self.data.draw(st.integers(0, 2), "changes in between")):
                    self.deliver_next()
        except StopIteration:
            pass

    def check_complete(self) -> None:
        """The store equals the newer of list and changes."""
        index = max(self.listed_at, self.delivered_count)
        assert self.target.state == self.history.state_at(index)

    def check_event_history(self) -> None:
        """Each uid is added and deleted at most once, and never reverts."""
        last: dict[str, int] = {}
        deleted: set[str] = set()
        order = {change[2:]: number for number, change in enumerate(self.history.changes)}
        for what, uid, version in self.target.events:
            assert uid not in deleted, "event after its delete"
            if what == "delete":
                deleted.add(uid)
                continue
            position = order[uid, version]
            assert position > last.get(uid, -1), "an older state after a newer one"
            last[uid] = position


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), writes=WRITES, first=st.sampled_from([0, 100]))
def test_list_and_changes_converge_to_the_server_state(
    data: st.DataObject, writes: list[tuple[str, str]], first: int
) -> None:
    """INV-INF-1, INV-INF-2, INV-INF-4: for any interleaving of list, restarts and changes."""
    history = History(first, writes)
    known = data.draw(st.integers(0, history.length), "known before")
    run = RelistModel(history, history.state_at(known), data)
    run.began = run.delivered_count = max(run.delivered_count, known)
    run.restart()
    with patch.object(relist, "YIELD_EVERY", 1):
        run.play()
    run.check_complete()
    while run.delivered_count < history.length:
        run.deliver_next()
    assert run.target.state == history.state_at(history.length)
    run.check_event_history()


FOREIGN = st.dictionaries(
    st.sampled_from(KEYS), st.tuples(st.sampled_from(["x", "a-101", "b-102"]), st.integers(1, 900))
)


@settings(max_examples=examples(75), deadline=None)
@given(data=st.data(), writes=WRITES, held=FOREIGN)
def test_any_previous_store_converges_to_the_server_state(
    data: st.DataObject, writes: list[tuple[str, str]], held: State
) -> None:
    """INV-INF-1 for a server with another history than the previous store."""
    history = History(100, writes)
    same = {what for state in history.states for what in state.values()}
    run = RelistModel(history, {k: what for k, what in held.items() if what not in same}, data)
    with patch.object(relist, "YIELD_EVERY", 1):
        run.play()
    run.check_complete()
    while run.delivered_count < history.length:
        run.deliver_next()
    assert run.target.state == history.state_at(history.length)
