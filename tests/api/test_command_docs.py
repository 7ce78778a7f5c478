"""The documentation of commands agrees with the code."""

import json
import re
from pathlib import Path

import pytest

from batholith.api.commands.orders import (
    GOALS,
    PATCHED,
    TABLE,
    CommandAction,
    CommandTarget,
    QueueAction,
    Scope,
    check_action,
)
from batholith.api.jobs.kinds import BATCH, KINDS, VOLCANO
from batholith.api.problems import ProblemError

PAGE = Path(__file__).parents[2] / "docs" / "rest-api-commands.md"
SCOPES = {
    CommandTarget.JOB: Scope(),
    CommandTarget.TASK: Scope(task="T"),
    CommandTarget.POD: Scope(pod="P"),
    CommandTarget.PARTITION: Scope(task="T", partition="I"),
}


def documented() -> dict[tuple[str, str], str]:
    """Recorded actions of the table, by path and body."""
    found, path = {}, ""
    for row in re.finditer(
        r"^\|(?P<path>[^|]*)\| `(?P<body>\{[^|]*\})` \|[^|]*\| `(?P<action>\w+)` \|$",
        PAGE.read_text(),
        re.MULTILINE,
    ):
        path = row["path"].strip() or path
        found[path, json.dumps(json.loads(row["body"]), sort_keys=True)] = row["action"]
    return found


def body(action: str, scope: Scope) -> str:
    given = {"task": scope.task, "pod": scope.pod, "partition": scope.partition}
    fields = {"action": action} | {name: value for name, value in given.items() if value}
    return json.dumps(fields, sort_keys=True)


def test_table_of_actions_and_targets_is_that_of_the_code() -> None:
    table = documented()
    jobs, others, queues = list(dict.fromkeys(path for path, _ in table))
    assert "/jobs/" in jobs and "/queues/" in queues
    assert {*re.findall(r"`(\w+jobs)`", others)} == {*KINDS} - {"jobs"}
    expected = {}
    for action, targets in TABLE.items():
        for target, recorded in targets.items():
            if isinstance(action, QueueAction):
                expected[queues, body(action, Scope())] = str(recorded)
            else:
                expected[jobs, body(action, SCOPES[target])] = str(recorded)
    for action, patched in PATCHED.items():
        expected[others, body(action, Scope())] = str(patched)
    assert table == expected
    assert {*table.values()} == {*GOALS}


@pytest.mark.parametrize("action", CommandAction)
@pytest.mark.parametrize("kind", [VOLCANO, BATCH], ids=lambda kind: kind.name)
def test_what_is_not_in_the_table_is_rejected(action: CommandAction, kind: object) -> None:
    assert kind in (VOLCANO, BATCH)
    for target, scope in SCOPES.items():
        if kind is VOLCANO:
            allowed = target in TABLE[action]
        else:
            allowed = action in PATCHED and target is CommandTarget.JOB
        try:
            check_action(VOLCANO if kind is VOLCANO else BATCH, action, scope)
        except ProblemError as problem:
            assert (problem.status, allowed) == (422, False)
            assert problem.errors
        else:
            assert allowed
