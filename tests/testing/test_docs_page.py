"""The page for authors of tests, followed to the letter."""

import re
from pathlib import Path

import pytest
from support.pytest_runs import passes

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


async def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    operator, tests, blocking, fixtures = re.findall(
        r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
    )
    (tmp_path / "trainer.py").write_text(operator)
    (tmp_path / "test_trainer.py").write_text(tests)
    (tmp_path / "test_blocking.py").write_text(blocking)
    (tmp_path / "test_fixtures.py").write_text(fixtures)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert "7 passed" in await passes(tmp_path, "-p", "no:informerprovider")
