"""The page for authors of controllers: its example passes its tests, and its table is complete."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "writing-a-controller.md").read_text()


@pytest.mark.process
async def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    controller, tests = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "worker_pools.py").write_text(controller)
    (tmp_path / "test_worker_pools.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:informerprovider", str(tmp_path)),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    assert "3 passed" in out.decode()


def test_the_table_names_existing_modules() -> None:
    modules = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    directory = ROOT / "platform" / "machinery"
    assert len(modules) > 10
    assert [name for name in modules if not (directory / f"{name}.py").exists()] == []
