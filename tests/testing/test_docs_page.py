"""The page for authors of tests, followed to the letter."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:informerprovider", str(tmp_path)),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    assert "7 passed" in out.decode()
