"""Which taints a toleration tolerates, as kube-apiserver 1.36 and its controllers have it with the
feature gate ``TaintTolerationComparisonOperators``."""

import re
from collections.abc import Mapping
from typing import Any

OPERATORS = ("Equal", "Exists")
NUMBER_OPERATORS = ("Lt", "Gt")
"""They compare the values of taint and toleration as integers."""

_DECIMAL = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_GO_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MIN, _MAX, _DIGITS = -(2**63), 2**63 - 1, 19


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Return whether *toleration* tolerates *taint*."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or ""
    if key and key != taint.get("key"):
        return False
    if operator == "Exists":
        return True
    own, value = toleration.get("value") or "", taint.get("value") or ""
    if operator in NUMBER_OPERATORS:
        return compares(operator, value, own)
    return bool(key) and bool(own == value)


def compares(operator: str, value: str, bound: str) -> bool:
    """Return whether *value*, of a taint, is above (``Gt``) or below (``Lt``) *bound*; values that
    are no integers of 64 bits never are."""
    if number_problems(value) or number_problems(bound):
        return False
    return int(value) > int(bound) if operator == "Gt" else int(value) < int(bound)


def number_problems(value: str) -> list[str]:
    """Return why *value* cannot be compared as a number, with the texts of kube-apiserver."""
    problems = []
    if not value:
        problems.append("must be non-empty")
    elif not _DECIMAL.fullmatch(value):
        problems.append("must be a valid decimal integer in canonical form")
    if not _GO_INTEGER.fullmatch(value):
        problems.append(f'strconv.ParseInt: parsing "{value}": invalid syntax')
    elif len(value.lstrip("+-0")) > _DIGITS or not _MIN <= int(value) <= _MAX:
        problems.append(f'strconv.ParseInt: parsing "{value}": value out of range')
    return problems
