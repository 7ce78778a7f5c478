"""Whether two API servers say the same, save times, versions, uids and the wording."""

import re
from typing import Any

Json = dict[str, Any]


class Comparison:
    """Compares answers of two servers, in the order in which they were given."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        """Our resource version for each of theirs."""

        self.uids: dict[str, str] = {}
        """Our uid for each of theirs."""

    def differences(self, theirs: Any, ours: Any) -> list[str]:
        """Where *ours* is not what *theirs* is."""
        found: list[str] = []
        self._compare(theirs, ours, "", found)
        return found

    def _compare(self, theirs: Any, ours: Any, path: str, found: list[str]) -> None:
        if isinstance(theirs, dict) and isinstance(ours, dict):
            if theirs.get("kind") == "Status" and theirs.get("status") == "Failure":
                self._compare_refusal(theirs, ours, path, found)
            else:
                self._compare_objects(theirs, ours, path, found)
        elif isinstance(theirs, list) and isinstance(ours, list):
            if len(theirs) != len(ours):
                found.append(f"{path} has {len(ours)} entries instead of {len(theirs)}: {ours}")
                return
            for index, (left, right) in enumerate(zip(theirs, ours, strict=True)):
                self._compare(left, right, f"{path}[{index}]", found)
        else:
            self._compare_leaf(theirs, ours, path, found)

    def _compare_objects(self, theirs: Json, ours: Json, path: str, found: list[str]) -> None:
        for key in sorted(theirs.keys() | ours.keys()):
            inner = f"{path}.{key}"
            if key in theirs and key in ours:
                self._compare(theirs[key], ours[key], inner, found)
            elif key in theirs:
                found.append(f"{inner} is missing: {theirs[key]}")
            else:
                found.append(f"{inner} is too much: {ours[key]}")

    def _compare_refusal(self, theirs: Json, ours: Json, path: str, found: list[str]) -> None:
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

    def _compare_leaf(self, theirs: Any, ours: Any, path: str, found: list[str]) -> None:
        key = path.rsplit(".", 1)[-1]
        if key == "resourceVersion":
            self.versions[theirs] = ours
        elif key == "uid":
            if self.uids.setdefault(theirs, ours) != ours:
                found.append(f"{path} is another object")
        elif key == "storageVersionHash":
            assert ours
        elif key in ("continue", "message") or key.endswith(("Timestamp", "Time")):
            assert type(theirs) is type(ours)
        elif isinstance(theirs, str) and (theirs.startswith("gen-") or _is_age(theirs)):
            assert isinstance(ours, str)
        elif theirs != ours and (theirs or ours):
            found.append(f"{path} is {ours!r} instead of {theirs!r}")


def _causes(status: Json) -> list[Json]:
    causes: list[Json] = (status.get("details") or {}).get("causes") or []
    return causes


def _is_age(text: str) -> bool:
    """An age or a time in a table's cell."""
    return re.fullmatch(r"(\d+[smhdy])+|\d{4}-\d\d-\d\dT[0-9:]+Z", text) is not None
