"""Compares responses of two API servers, except times, versions, uids, wording and owners.

The recordings have no ``managedFields``; tests/realkube/test_field_ownership.py compares those.
"""

import re
from typing import Any

Json = dict[str, Any]


class ResponseComparison:
    """Compares responses of two servers, in order."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        """Our resource version for each of theirs."""

        self.uids: dict[str, str] = {}
        """Our uid for each of theirs."""

    def differences(self, expected: Any, actual: Any) -> list[str]:
        """Where *ours* is not what *theirs* is."""
        found: list[str] = []
        self._compare(expected, actual, "", found)
        return found

    def _compare(self, expected: Any, actual: Any, path: str, found: list[str]) -> None:
        if isinstance(expected, dict) and isinstance(actual, dict):
            if expected.get("kind") == "Status" and expected.get("status") == "Failure":
                self._compare_error(expected, actual, path, found)
            else:
                self._compare_objects(expected, actual, path, found)
        elif isinstance(expected, list) and isinstance(actual, list):
            if len(expected) != len(actual):
                found.append(
                    f"{path} has {len(actual)} entries instead of {len(expected)}: {actual}"
                )
                return
            for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
                self._compare(left, right, f"{path}[{index}]", found)
        else:
            self._compare_leaf(expected, actual, path, found)

    def _compare_objects(self, expected: Json, actual: Json, path: str, found: list[str]) -> None:
        for key in sorted((expected.keys() | actual.keys()) - {"managedFields"}):
            inner = f"{path}.{key}"
            if key in expected and key in actual:
                self._compare(expected[key], actual[key], inner, found)
            elif key in expected:
                found.append(f"{inner} is missing: {expected[key]}")
            else:
                found.append(f"{inner} is too much: {actual[key]}")

    def _compare_error(self, theirs: Json, ours: Json, path: str, found: list[str]) -> None:
        found += [
            f"{path}.{key} is {ours.get(key)} instead of {theirs.get(key)}"
            for key in ("status", "reason", "code")
            if theirs.get(key) != ours.get(key)
        ]
        left, right = (
            sorted({(c.get("reason", ""), c.get("field", "")) for c in _causes(status)})
            for status in (theirs, ours)
        )
        if left != right:
            found.append(f"{path} causes are {right} instead of {left}")
        names = [
            {k: v for k, v in (s.get("details") or {}).items() if k in ("name", "group", "kind")}
            for s in (theirs, ours)
        ]
        if names[0] != names[1] and not names[0].get("name", "").startswith("gen-"):
            found.append(f"{path} is about {names[1]} instead of {names[0]}")

    def _compare_leaf(self, expected: Any, actual: Any, path: str, found: list[str]) -> None:
        key = path.rsplit(".", 1)[-1]
        if key == "resourceVersion":
            self.versions[expected] = actual
        elif key == "uid":
            if self.uids.setdefault(expected, actual) != actual:
                found.append(f"{path} is another object")
        elif key in ("continue", "message") or key.endswith(("Timestamp", "Time")):
            assert type(expected) is type(actual)
        elif isinstance(expected, str) and (expected.startswith("gen-") or _is_age(expected)):
            assert isinstance(actual, str)
        elif expected != actual and (expected or actual):
            found.append(f"{path} is {actual!r} instead of {expected!r}")


def _causes(status: Json) -> list[Json]:
    causes: list[Json] = (status.get("details") or {}).get("causes") or []
    return causes


def _is_age(text: str) -> bool:
    """An age or a time in a table's cell."""
    return re.fullmatch(r"(\d+[smhdy])+|\d{4}-\d\d-\d\dT[0-9:]+Z", text) is not None
