"""docs/invariants.md lists every invariant and quirk that tests name, and no other."""

import re
from collections import Counter

import pytest
from tools.invariants import PAGE, invariants_in, named, quirks_in, rows, updated


def test_page_names_the_tests_of_each_id() -> None:
    page = PAGE.read_text()
    assert page == updated(page, named()), "run `make invariants`"


def test_each_id_has_one_row_with_a_statement_and_a_test() -> None:
    found = rows(PAGE.read_text())
    assert [each for each, statement, _ in found if not statement] == []
    assert [each for each, _, tests in found if not tests] == []
    assert [
        each for each, count in Counter(each for each, _, _ in found).items() if count > 1
    ] == []


@pytest.mark.parametrize("letter", ["", "a", "g", "q", "p"])
def test_numbers_of_quirks_have_no_gaps(letter: str) -> None:
    ids = [each for each, _, _ in rows(PAGE.read_text())]
    numbers = [int(each[len(letter) :]) for each in ids if re.fullmatch(rf"{letter}\d+", each)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_ranges_of_invariants_are_expanded() -> None:
    text = "INV-DQ-1 to INV-DQ-3; INV-WQ-7, INV-MX-1"
    assert [*invariants_in(text)] == ["INV-DQ-1", "INV-DQ-2", "INV-DQ-3", "INV-WQ-7", "INV-MX-1"]


def test_quirks_are_read_from_names_of_tests() -> None:
    text = "def test_quirks_1_and_a2_agree(): pass\nasync def test_quirk_3_waits(): pass"
    assert sorted(quirks_in("test_decide.py", text)) == ["1", "3", "a2"]
    assert sorted(quirks_in("test_plugins.py", text)) == ["a2", "g1", "g3"]


def test_plain_numbers_of_the_scheduler_are_on_another_page() -> None:
    text = "def test_quirk_3_waits(): pass\ndef test_quirk_p18_is_in_conditions(): pass"
    assert list(quirks_in("scheduler/test_quirks.py", text)) == ["p18"]


def test_new_id_gets_a_row_without_statement() -> None:
    page = "| INV-WQ-1 | One. | |\n"
    found = {"INV-WQ-1": ["a.py"], "q2": ["b.py", "c.py"]}
    assert updated(page, found) == "| INV-WQ-1 | One. | a.py |\n| q2 |  | b.py, c.py |\n"
