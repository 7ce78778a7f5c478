"""What a list and the changes beside it come to, for any order in which they are told."""

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from batholith.kube.informer import relist
from batholith.kube.informer.relist import Relist
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta


class Thing(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


def thing(key: str, uid: str, version: int, *, made: str = "") -> Thing:
    namespace, _, name = key.rpartition("/")
    meta = ObjectMeta(
        name=name,
        namespace=namespace,
        uid=uid,
        resource_version=str(version),
        creation_timestamp=made or None,
    )
    return Thing(metadata=meta)


@dataclass
class FakeRelistTarget:
    """Holds things as a cache does, and remembers what it told."""

    objects: dict[str, Thing] = field(default_factory=dict)
    is_synced: bool = True
    events: list[tuple[str, str, int]] = field(default_factory=list)
    """(came, changed or went; uid; version)."""

    def put(self, obj: Thing) -> None:
        key = obj.metadata.key
        old = self.objects.get(key)
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self.delete(key)
            old = None
        if old is None or old.metadata.resource_version != obj.metadata.resource_version:
            self.objects[key] = obj
            self._emit("came" if old is None else "changed", obj)

    def delete(self, key: str) -> None:
        old = self.objects.pop(key, None)
        if old is not None:
            self._emit("went", old)

    def start_relist(self, *things: Thing) -> None:
        """Hold what was told before."""
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
    """Tell of a change as a reflector does."""
    if relist.should_apply(obj.metadata):
        if what == "DELETED":
            target.delete(obj.metadata.key)
        else:
            target.put(obj)


def run_to_completion(steps: Coroutine[Any, Any, None]) -> None:
    """Finish without letting anybody else in between."""
    try:
        while True:
            steps.send(None)
    except StopIteration:
        return


def test_relist_applies_only_differences() -> None:
    """Unknown: came; another version: changed; the same: nothing; another uid: went and came."""
    books = FakeRelistTarget()
    held = (("same", "u1", 1), ("new", "u2", 2), ("other", "u3", 3), ("gone", "u4", 4))
    books.start_relist(*(thing(*each) for each in held))
    filled = Relist(books)
    for listed in (("same", "u1", 1), ("new", "u2", 9), ("other", "u7", 7), ("fresh", "u8", 8)):
        filled.add_listed(thing(*listed))
    assert books.events == []
    run_to_completion(filled.apply_list("10"))
    assert books.events == [
        ("went", "u4", 4),
        ("changed", "u2", 9),
        ("went", "u3", 3),
        ("came", "u7", 7),
        ("came", "u8", 8),
    ]
    assert filled.is_complete


def test_new_objects_are_added_in_creation_order() -> None:
    books = FakeRelistTarget()
    filled = Relist(books)
    made = (("a", 5, "2026-01-03"), ("b", 9, "2026-01-01"), ("c", 7, "2026-01-01"))
    for key, version, when in made:
        filled.add_listed(thing(key, key, version, made=when))
    run_to_completion(filled.apply_list("10"))
    assert [uid for _, uid, _ in books.events] == ["c", "b", "a"]


def test_initial_list_keeps_its_order() -> None:
    books = FakeRelistTarget(is_synced=False)
    filled = Relist(books)
    for key, version in (("b", 5), ("a", 3), ("c", 4)):
        filled.add_listed(thing(key, key, version))
    run_to_completion(filled.apply_list("10"))
    assert [uid for _, uid, _ in books.events] == ["b", "a", "c"]


def test_partial_list_is_discarded() -> None:
    books = FakeRelistTarget()
    books.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    filled = Relist(books)
    filled.add_listed(thing("a", "u1", 1))
    filled.add_listed(thing("c", "u3", 3))
    filled.restart()
    filled.add_listed(thing("b", "u2", 2))
    run_to_completion(filled.apply_list("10"))
    assert books.state == {"b": ("u2", 2)}


def test_changes_newer_than_the_list_are_kept() -> None:
    books = FakeRelistTarget()
    books.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    filled = Relist(books)
    apply_change(filled, books, "ADDED", thing("later", "u3", 11))
    apply_change(filled, books, "MODIFIED", thing("a", "u1", 12))
    apply_change(filled, books, "DELETED", thing("b", "u2", 13))
    filled.add_listed(thing("a", "u1", 1))
    filled.add_listed(thing("b", "u2", 9))
    run_to_completion(filled.apply_list("10"))
    assert books.state == {"a": ("u1", 12), "later": ("u3", 11)}


def test_list_may_be_newer_than_the_applied_changes() -> None:
    """No object goes back to a former state, and none comes again that went."""
    books = FakeRelistTarget()
    books.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    filled = Relist(books)
    filled.add_listed(thing("a", "u1", 9))
    run_to_completion(filled.apply_list("10"))
    assert books.state == {"a": ("u1", 9)}
    books.events.clear()
    apply_change(filled, books, "MODIFIED", thing("a", "u1", 8))
    apply_change(filled, books, "MODIFIED", thing("b", "u2", 7))
    assert not filled.is_newer_than_list("10")
    assert books.events == []
    apply_change(filled, books, "MODIFIED", thing("a", "u1", 11))
    assert books.events == [("changed", "u1", 11)]


def test_versions_of_another_history_are_not_compared() -> None:
    """A server put back from a backup has older versions, and they are what there is."""
    books = FakeRelistTarget()
    books.start_relist(thing("a", "u1", 900), thing("b", "u2", 901), thing("c", "u3", 902))
    filled = Relist(books)
    filled.add_listed(thing("a", "u1", 400))
    filled.add_listed(thing("b", "u2", 901))
    apply_change(filled, books, "MODIFIED", thing("a", "u1", 501))
    run_to_completion(filled.apply_list("500"))
    assert books.state == {"a": ("u1", 501), "b": ("u2", 901)}


def test_undecodable_object_keeps_its_previous_state() -> None:
    books = FakeRelistTarget()
    books.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    filled = Relist(books)
    filled.add_undecodable(thing("a", "u1", 9).metadata)
    filled.add_undecodable(thing("b", "another", 9).metadata)
    run_to_completion(filled.apply_list("10"))
    assert books.state == {"a": ("u1", 1)}


def test_last_state_of_an_object_in_a_list_applies() -> None:
    """A list may come with changes in it, until it is complete."""
    books = FakeRelistTarget()
    books.start_relist(thing("a", "u1", 1), thing("b", "u2", 2))
    filled = Relist(books)
    for listed in (thing("a", "u1", 5), thing("a", "u1", 1), thing("b", "u2", 2)):
        filled.add_listed(listed)
    filled.add_listed(thing("c", "u3", 3))
    filled.drop_listed("b")
    filled.drop_listed("c")
    run_to_completion(filled.apply_list("10"))
    assert books.events == [("went", "u2", 2)]


# Random histories.

KEYS = "abcd"
State = dict[str, tuple[str, int]]
Change = tuple[str, str, str, int]
"""ADDED, MODIFIED or DELETED; key; uid; version."""


class History:
    """What a server stored, version by version."""

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

    def state_at(self, place: int) -> State:
        """The objects after so many changes."""
        return self.states[place]

    def version(self, place: int) -> int:
        return self.first + place


WRITES = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove"]), st.sampled_from(KEYS)), max_size=25
)


class RelistModel:
    """A cache that held something goes on from the present, with a list beside."""

    def __init__(self, history: History, held: State, data: st.DataObject) -> None:
        self.history, self.data = history, data
        self.target = FakeRelistTarget()
        self.target.start_relist(*(thing(key, *what) for key, what in held.items()))
        self.relist = Relist(self.target)
        self.delivered_count = self.began = data.draw(
            st.integers(0, history.length), "followed from"
        )
        self.restart()

    def restart(self) -> None:
        """A list as of now, or a little earlier: not before what is followed."""
        self.relist.restart()
        self.listed_at = self.data.draw(
            st.integers(self.began, self.history.length), "version of the list"
        )
        self.to_list = sorted(self.history.state_at(self.listed_at).items())

    def deliver_next(self) -> None:
        """The next change arrives, if there is one."""
        if self.delivered_count < self.history.length:
            what, key, uid, version = self.history.changes[self.delivered_count]
            self.delivered_count += 1
            apply_change(self.relist, self.target, what, thing(key, uid, version))

    def play(self) -> None:
        choices = st.sampled_from(["follow", "list", "list", "restart"])
        while self.to_list:
            choice = self.data.draw(choices, "step")
            if choice == "follow":
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
        """Nothing that was missed is missing still, however far the changes have come."""
        place = max(self.listed_at, self.delivered_count)
        assert self.target.state == self.history.state_at(place)

    def check_event_history(self) -> None:
        """Each uid comes, changes and goes at most once, and never goes back."""
        last: dict[str, int] = {}
        gone: set[str] = set()
        order = {change[2:]: number for number, change in enumerate(self.history.changes)}
        for what, uid, version in self.target.events:
            assert uid not in gone, "it went before"
            if what == "went":
                gone.add(uid)
                continue
            here = order[uid, version]
            assert here > last.get(uid, -1), "an older state after a newer one"
            last[uid] = here


@settings(max_examples=150, deadline=None)
@given(data=st.data(), writes=WRITES, first=st.sampled_from([0, 100]))
def test_list_and_changes_converge_to_the_server_state(
    data: st.DataObject, writes: list[tuple[str, str]], first: int
) -> None:
    """INV-INF-1, INV-INF-2, INV-INF-4: wherever list, breaks and changes fall."""
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


@settings(max_examples=75, deadline=None)
@given(data=st.data(), writes=WRITES, held=FOREIGN)
def test_any_previous_store_converges_to_the_server_state(
    data: st.DataObject, writes: list[tuple[str, str]], held: State
) -> None:
    """INV-INF-1 for a server whose history is not the one that was followed before."""
    history = History(100, writes)
    same = {what for state in history.states for what in state.values()}
    run = RelistModel(history, {k: what for k, what in held.items() if what not in same}, data)
    with patch.object(relist, "YIELD_EVERY", 1):
        run.play()
    run.check_complete()
    while run.delivered_count < history.length:
        run.deliver_next()
    assert run.target.state == history.state_at(history.length)
