"""The layout that makes platform/ importable as batholith, and the budgets of size."""

import ast
import platform
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_code_folder_is_not_a_package_of_its_own() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_every_folder_below_it_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "platform").glob("*/**/*.py")}
    assert [f for f in sorted(folders) if not (f / "__init__.py").exists()] == []


def test_the_standard_library_wins() -> None:
    assert Path(platform.__file__).parent == Path(sysconfig.get_path("stdlib"))


def test_no_function_is_longer_than_sixty_lines_and_no_module_than_six_hundred() -> None:
    too_long = []
    for path in sorted((ROOT / "platform").rglob("*.py")):
        text = path.read_text()
        if text.count("\n") > 600:
            too_long.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60:
                    too_long.append(f"{path.name}:{node.lineno} {node.name}: {length} lines")
    assert too_long == []
