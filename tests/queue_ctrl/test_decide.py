"""Decisions about a queue: state table, hierarchy, fixed point."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_

from batholith.machinery.reconcile.events import Event
from batholith.model.command import Command
from batholith.model.job import Action
from batholith.model.meta import ObjectMeta
from batholith.model.queue import Queue, QueueSpec, QueueState, QueueStatus
from batholith.queue_ctrl.counts import PodGroupCounts
from batholith.queue_ctrl.decide import (
    CLOSED_BY_PARENT,
    ConfirmVersion,
    DeleteCommand,
    Effect,
    InvalidStateError,
    QueueView,
    Requeue,
    SetClosedByParent,
    SetParent,
    SetStatus,
    decide,
)

NONE = PodGroupCounts()
SOME = PodGroupCounts(running=1, total=1)
DONE = PodGroupCounts(completed=2, total=2)
CLOSED = Event("CloseQueue", "Close queue succeed")

STATES = st.sampled_from(["", "Open", "Closed", "Closing", "Unknown"])
ACTIONS = st.sampled_from([None, "OpenQueue", "CloseQueue", "SyncQueue", "Dance"])


def queue(
    name: str, state: str = "Open", *, parent: str = "root", closed_by_parent: str = ""
) -> Queue:
    return Queue(
        metadata=ObjectMeta(
            name=name, annotations={CLOSED_BY_PARENT: closed_by_parent} if closed_by_parent else {}
        ),
        spec=QueueSpec(parent="" if name == "root" else parent),
        status=QueueStatus(state=state),
    )


def view(
    state: str,
    counts: PodGroupCounts = NONE,
    *,
    name: str = "q",
    closed_by_parent: str = "",
    parent: str | None = "Open",
) -> QueueView:
    above = None if parent is None else queue("p", parent)
    return QueueView(
        queue=queue(name, state, parent="p", closed_by_parent=closed_by_parent),
        parent=above,
        counts=counts,
    )


def effects(seen: QueueView, action: str | None = None) -> list[Effect]:
    """What a Command with *action* needs, but for its deletion, which is last."""
    if action is None:
        return decide(seen)
    command = Command(action=action)
    decided = decide(replace(seen, command=command))
    assert decided.pop() == DeleteCommand(command)
    return decided


def written_state(decided: list[Effect]) -> str | None:
    """The state written, if any."""
    return next((one.state for one in decided if isinstance(one, SetStatus)), None)


@pytest.mark.parametrize(
    ("state", "action", "empty", "holding"),
    [
        ("", "OpenQueue", "Open", "Open"),
        ("", "CloseQueue", "Closed", "Closing"),
        ("", "SyncQueue", "Open", "Open"),
        ("Open", "OpenQueue", "Open", "Open"),
        ("Open", "CloseQueue", "Closed", "Closing"),
        ("Open", "Dance", "Open", "Open"),
        ("Closed", "OpenQueue", "Open", "Open"),
        ("Closed", "CloseQueue", "Closed", "Closed"),
        ("Closed", None, "Closed", "Closed"),
        ("Closing", "OpenQueue", "Open", "Open"),
        ("Closing", "CloseQueue", "Closed", "Closing"),
        ("Closing", None, "Closed", "Closing"),
        ("Unknown", "OpenQueue", "Open", "Open"),
        ("Unknown", "CloseQueue", "Closed", "Closing"),
        ("Unknown", None, "Unknown", "Unknown"),
    ],
)
def test_state_transition_table(state: str, action: str | None, empty: str, holding: str) -> None:
    """INV-VC-5 in its rows for Closing."""
    assert (written_state(effects(view(state), action)) or state) == empty
    for counts in (SOME, DONE):
        assert (written_state(effects(view(state, counts), action)) or state) == holding


def test_quirk_q8_unknown_action_warns_and_changes_nothing() -> None:
    (event,) = effects(view("Closed"), "Dance")
    assert isinstance(event, Event)
    assert event.warning
    assert "'Dance'" in event.message
    assert effects(view("Closed"), "SyncQueue") == []


def test_quirk_q15_closed_queue_stays_closed_when_podgroups_are_added() -> None:
    for action in (None, "CloseQueue"):
        assert (written_state(effects(view("Closed", SOME), action)) or "Closed") == "Closed"


def test_unknown_state_raises() -> None:
    with pytest.raises(InvalidStateError, match="'Ajar'"):
        effects(view("Ajar"))


def test_new_queue_is_opened_below_the_root() -> None:
    new = QueueView(queue=queue("q", "", parent=""), parent=queue("root", ""), counts=NONE)
    assert effects(new) == [SetParent("root"), SetStatus(QueueState.OPEN, NONE)]


def test_root_gets_no_parent_and_cannot_be_closed() -> None:
    root = QueueView(queue=queue("root", "Open"), parent=None, counts=NONE)
    (event,) = effects(root, Action.CLOSE_QUEUE)
    assert event == Event("CloseQueue", "the root queue cannot be closed", warning=True)
    assert effects(root) == []
    shut = replace(root, queue=queue("root", "Closed"))
    assert written_state(effects(shut, Action.OPEN_QUEUE)) == "Open"


def test_closing_by_command_records_an_event_and_sets_no_annotation() -> None:
    assert effects(view("Open"), "CloseQueue") == [SetStatus(QueueState.CLOSED, NONE), CLOSED]


def test_quirk_q16_closing_by_command_what_the_parent_closed_keeps_it_closed() -> None:
    shut = view("Closed", closed_by_parent="true", parent="Closed")
    assert effects(shut, "CloseQueue") == [SetClosedByParent(False)]
    after = apply(shut, [SetClosedByParent(False)])
    assert effects(replace(after, parent=queue("p", "Open"))) == []


def test_opening_by_command_annotates_the_queue_as_not_closed_by_its_parent() -> None:
    opened = [SetStatus(QueueState.OPEN, NONE), SetClosedByParent(False)]
    assert effects(view("Closed"), "OpenQueue") == opened
    assert effects(view("Closed", closed_by_parent="true"), "OpenQueue") == opened
    assert effects(view("Closed", closed_by_parent="false"), "OpenQueue") == opened[:1]


@pytest.mark.parametrize("parent", ["Closed", "Closing"])
def test_closed_parent_closes_the_queue_and_annotates_it_first(parent: str) -> None:
    closed = [SetClosedByParent(True), SetStatus(QueueState.CLOSED, NONE), CLOSED]
    assert effects(view("Open", parent=parent)) == closed
    assert effects(view("Closed", parent=parent)) == []


def test_opened_parent_opens_the_children_that_it_closed() -> None:
    assert written_state(effects(view("Closed", closed_by_parent="true"))) == "Open"
    assert written_state(effects(view("Closing", SOME, closed_by_parent="true"))) == "Open"
    assert effects(view("Closed", closed_by_parent="false")) == []
    assert effects(view("Closed")) == []


def test_queue_below_a_closed_parent_is_not_opened() -> None:
    decided = effects(view("Closed", parent="Closed"), "OpenQueue")
    assert decided == [Requeue("the parent queue 'p' is Closed and must be opened first")]


def test_queue_with_missing_parent_is_requeued_with_its_status_written() -> None:
    for action in (None, "OpenQueue"):
        decided = effects(view("", parent=None), action)
        assert decided[0] == SetStatus(QueueState.OPEN, NONE)
        assert decided[1:] == [Requeue("the parent queue 'p' does not exist")]


def test_a_command_without_effect_needs_the_version_that_was_observed() -> None:
    """Another client may have changed the state, and the informer be late."""
    assert effects(view("Open"), "OpenQueue") == [ConfirmVersion()]
    assert effects(view("Closed"), "CloseQueue") == [ConfirmVersion()]
    assert effects(view("Open"), "SyncQueue") == []


def test_close_by_command_lasts_after_an_interrupted_opening() -> None:
    """The state was written and the process died before it removed the annotation."""
    half = view("Open", closed_by_parent="true")
    assert effects(half) == [SetClosedByParent(False)]
    closed = apply(half, effects(half, "CloseQueue"))
    assert closed.queue.status.state == "Closed"
    assert effects(closed) == []


def test_counts_are_written_only_when_they_differ() -> None:
    assert effects(view("Open", SOME)) == [SetStatus(QueueState.OPEN, SOME)]
    stored = with_(queue("q"), status=QueueStatus(state="Open", running=1))
    same = QueueView(queue=stored, parent=queue("root"), counts=SOME)
    assert effects(same) == []


def apply(seen: QueueView, decided: list[Effect]) -> QueueView:
    """The view after *decided* are executed."""
    now = seen.queue
    for change in decided:
        match change:
            case SetParent(parent):
                now = with_(now, spec=with_(now.spec, parent=parent))
            case SetClosedByParent(closed_by_parent):
                mark = {CLOSED_BY_PARENT: str(closed_by_parent).lower()}
                now = with_(now, metadata=with_(now.metadata, annotations=mark))
            case SetStatus(state, counts):
                fields = ("pending", "inqueue", "running", "unknown", "completed")
                numbers = dict(zip(fields, counts.status_counts, strict=True))
                now = with_(now, status=QueueStatus(state=state, **numbers))  # type: ignore[arg-type]
    return replace(seen, queue=now)


VIEWS = st.builds(
    view,
    STATES,
    st.sampled_from([NONE, SOME, DONE]),
    closed_by_parent=st.sampled_from(["", "true", "false"]),
    parent=st.one_of(st.none(), STATES),
)


@given(seen=VIEWS, action=ACTIONS)
def test_inv_pipe_1_second_sync_changes_nothing(seen: QueueView, action: str | None) -> None:
    """INV-PIPE-1: after any action, one more sync reaches the fixed point."""
    after = apply(seen, effects(seen, action))
    settled = apply(after, effects(after))
    assert [one for one in effects(settled) if not isinstance(one, Requeue)] == []


@given(seen=VIEWS, action=ACTIONS)
def test_inv_vc_1_executing_a_command_again_has_no_effect(
    seen: QueueView, action: str | None
) -> None:
    """INV-VC-1: the process may die between the writes and the Command's deletion."""
    once = apply(seen, effects(seen, action))
    repeated = apply(once, effects(once, action))
    assert repeated.queue.status.state == once.queue.status.state


@given(seen=VIEWS, action=ACTIONS, survived=st.integers(0, 4))
def test_inv_lc_4_interrupted_writes_are_completed(
    seen: QueueView, action: str | None, survived: int
) -> None:
    """INV-LC-4: the first writes took effect, then the Command is executed again."""
    whole = apply(seen, effects(seen, action))
    broken = apply(seen, effects(seen, action)[:survived])
    again = apply(broken, effects(broken, action))
    ends = [apply(one, effects(one)).queue.status.state for one in (whole, again)]
    assert ends[0] == ends[1]


NAMES = ["root", "a", "b", "c"]


@given(data=st.data())
@settings(deadline=None)
def test_children_of_closed_parents_end_up_closed(
    data: st.DataObject,
) -> None:
    """INV-PIPE-1 for a chain of queues, in any order of syncs."""
    tree = {
        name: queue(
            name,
            data.draw(STATES),
            parent=above,
            closed_by_parent=data.draw(st.sampled_from(["", "true"])),
        )
        for above, name in zip(["", *NAMES], NAMES, strict=False)
    }
    for step in range(40):
        name = data.draw(st.sampled_from(NAMES)) if step < 20 else NAMES[step % 4]
        seen = QueueView(queue=tree[name], parent=tree.get(tree[name].spec.parent), counts=NONE)
        tree[name] = apply(seen, effects(seen)).queue
    for name in NAMES[1:]:
        above = tree[tree[name].spec.parent]
        if above.status.state == "Closed":
            assert tree[name].status.state == "Closed"
        seen = QueueView(queue=tree[name], parent=above, counts=NONE)
        assert effects(seen) == []
