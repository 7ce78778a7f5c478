"""The layout of platform/, which is imported as batholith; size limits; import contracts."""

import ast
import platform
import re
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLATFORM = ROOT / "platform"

LONG_MODULES = {
    "local/agent/runtime/runs.py": "a run from its directory to the end of its processes",
    "local/agent/runtime/shim.py": "a program that starts fast, and so imports few modules",
    "local/agent/state/core_types.py": "a pod, of which the agent reads most fields",
    "local/apiserver/verbs/writes.py": "all writes are planned from one state, in one way",
    "scheduler/scheduler.py": "all that a cycle needs is connected in one module",
    "scheduler/framework/start_planning.py": "plan, nodes and queues decide on a start together",
    "scheduler/framework/session.py": "all that actions may do in a cycle, and what it keeps of it",
    "scheduler/state/gangs/gang.py": "a change of a task changes sums of its gang and its queue",
    "scheduler/state/cache/cache.py": "each event changes tasks, nodes, gangs and queues together",
}
"""Modules of more than 600 lines, and why they are not divided."""


def test_platform_directory_is_not_a_package() -> None:
    assert not (PLATFORM / "__init__.py").exists()


def test_directories_below_it_are_packages() -> None:
    directories = {path.parent for path in PLATFORM.glob("*/**/*.py")}
    assert [each for each in sorted(directories) if not (each / "__init__.py").exists()] == []


def test_standard_library_takes_precedence() -> None:
    assert Path(platform.__file__).parent == Path(sysconfig.get_path("stdlib"))


def test_functions_have_at_most_sixty_lines_and_modules_six_hundred() -> None:
    too_long = []
    for path in sorted(PLATFORM.rglob("*.py")):
        text = path.read_text()
        if text.count("\n") > 600 and path.relative_to(PLATFORM).as_posix() not in LONG_MODULES:
            too_long.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60:
                    too_long.append(f"{path.name}:{node.lineno} {node.name}: {length} lines")
    assert too_long == []


def _contracted_packages(contract: dict[str, Any]) -> Iterator[str]:
    """Yield the packages that one contract of import-linter names."""
    for option in ("containers", "modules", "source_modules", "forbidden_modules"):
        yield from contract.get(option, [])
    prefixes = [f"{container}." for container in contract.get("containers", [])] or [""]
    for layer in contract.get("layers", []):
        for name in re.split(r"[|:]", layer):
            yield from (f"{prefix}{name.strip(' ()')}" for prefix in prefixes)


def test_every_package_is_in_an_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracted = {
        package for contract in settings["contracts"] for package in _contracted_packages(contract)
    }
    packages = {
        ".".join(("batholith", *path.parent.relative_to(PLATFORM).parts))
        for path in PLATFORM.glob("*/**/*.py")
        if path.name != "__init__.py"
    }
    assert sorted(packages - contracted) == []


def test_the_type_checker_proves_that_every_effect_is_executed() -> None:
    last_cases = {
        f"{path.relative_to(PLATFORM)}:{node.lineno}": ast.unparse(node.cases[-1])
        for path in PLATFORM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Match) and ast.unparse(node.subject) == "effect"
    }
    assert last_cases
    assert [where for where, last in last_cases.items() if "assert_never(effect)" not in last] == []
