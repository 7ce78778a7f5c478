"""``make invariants``: update the column of tests in docs/invariants.md.

A test names an invariant by ``INV-…`` in its text; ``INV-DQ-1 to INV-DQ-4`` names a range. It is
named after a quirk of Volcano: ``test_quirk_7_…``, ``test_quirks_1_and_2_…``, ``test_quirk_a7_…``.
A plain number is one of the job controller, in ``test_plugins.py`` one of the job plugins (``g``);
those of the scheduler are in docs/scheduler-quirks.md.
Statements are written manually: an id without a row is appended with an empty one.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "invariants.md"

_RANGE = re.compile(r"INV-([A-Z]+)-(\d+)(?: to INV-\1-(\d+))?")
_QUIRKS = re.compile(r"\bdef test_quirks?_((?:(?:and|[a-z]?\d+)_)+)")
_ROW = re.compile(r"^\| (INV-[A-Z]+-\d+|[a-z]?\d+) \| *(.*?) *\| *([^|]*?) *\|$")


def invariants_in(text: str) -> Iterator[str]:
    """Yield the invariants that *text* names."""
    for group, first, last in _RANGE.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"INV-{group}-{number}"


def quirks_in(file: str, text: str) -> Iterator[str]:
    """Yield the quirks that tests in *text* are named after."""
    plain = "g" if file.endswith("test_plugins.py") else ""
    of_scheduler = file.startswith("scheduler/")
    for numbers in _QUIRKS.findall(text):
        for letter, number in re.findall(r"([a-z]?)(\d+)_", numbers):
            if letter or not of_scheduler:
                yield f"{letter or plain}{number}"


def named() -> dict[str, list[str]]:
    """Return the test files that name each invariant and quirk."""
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("*.py")):
        if path in (Path(__file__), TESTS / "test_invariants.py"):
            continue
        text = path.read_text()
        for each in sorted(
            {*invariants_in(text), *quirks_in(path.relative_to(TESTS).as_posix(), text)}
        ):
            found[each].append(path.relative_to(TESTS).as_posix())
    return found


def rows(page: str) -> list[tuple[str, str, str]]:
    """Return id, statement and tests of each row of *page*."""
    return [(row[1], row[2], row[3]) for row in map(_ROW.match, page.splitlines()) if row]


def updated(page: str, found: dict[str, list[str]]) -> str:
    """Return *page* with the tests that name each id, and a row for each new id."""
    lines = []
    for line in page.splitlines():
        if row := _ROW.match(line):
            line = f"| {row[1]} | {row[2]} | {', '.join(found.get(row[1], []))} |"
        lines.append(line)
    new = sorted(found.keys() - {each for each, _, _ in rows(page)})
    lines += [f"| {each} |  | {', '.join(found[each])} |" for each in new]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(), named()))
