"""Every number of the lists of what Volcano gets wrong has a test that is named after it.

``test_quirk_7_…`` and ``test_quirks_1_and_2_…``: the job controller's, or in ``test_plugins.py``
those of the job plugins. With a letter before the number: ``a`` of the Job API and its admission,
``g`` of the job plugins, ``q`` of queues, ``p`` of PodGroups.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LAST = {"api": 19, "controller": 45, "plugins": 20, "queues": 19, "podgroups": 18}
"""The last number of each list; they begin with 1."""
LETTERS = {"a": "api", "g": "plugins", "q": "queues", "p": "podgroups"}
ELSEWHERE: dict[tuple[str, int], str] = {}
"""Numbers without a test, and why."""


def numbers(path: Path, name: str) -> Iterator[tuple[str, int]]:
    """The lists and numbers in the name of one test."""
    words = re.match(r"test_quirks?_((?:(?:and|[a-z]?\d+)_)+)", name)
    for letter, number in re.findall(r"([a-z]?)(\d+)_", words[1] if words else ""):
        plain = "plugins" if path.name == "test_plugins.py" else "controller"
        yield LETTERS.get(letter, letter or plain), int(number)


@cache
def named() -> set[tuple[str, int]]:
    """The lists and numbers that tests are named after."""
    return {
        found
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for found in numbers(path, node.name)
    }


@pytest.mark.parametrize("page", LAST)
def test_each_number_has_a_test_or_a_reason_for_none(page: str) -> None:
    wanted = {(page, number) for number in range(1, LAST[page] + 1)}
    there = {found for found in named() if found[0] == page}
    assert sorted(wanted - there - ELSEWHERE.keys()) == [], "no test"
    assert sorted(there - wanted) == [], "no such number"
    assert sorted(there & ELSEWHERE.keys()) == [], "has a test after all"
