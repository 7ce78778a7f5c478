"""The page for authors of controllers: its example passes its tests, and its table is complete."""

import re
from pathlib import Path

import pytest
from support.pytest_runs import passes

ROOT = Path(__file__).parents[2]
PLATFORM = ROOT / "platform"
PAGE = (ROOT / "docs" / "writing-a-controller.md").read_text()


@pytest.mark.process
async def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    controller, tests = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "template_controller.py").write_text(controller)
    (tmp_path / "test_template_controller.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert "2 passed" in await passes(tmp_path, "-p", "no:informerprovider")


def test_the_example_is_the_smallest_real_controller() -> None:
    controller = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]
    module = (PLATFORM / "flow_ctrl" / "template_controller.py").read_text()
    assert module.partition("\n\n")[2].replace("from ..", "from batholith.") == controller
    assert sum(1 for line in controller.splitlines() if line) <= 80


def test_the_tables_name_existing_modules() -> None:
    modules = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    directories = (PLATFORM / "machinery", PLATFORM / "machinery" / "reconcile")
    assert len(modules) > 10
    existing = {path.stem for directory in directories for path in directory.glob("*.py")}
    assert set(modules) - existing == set()
