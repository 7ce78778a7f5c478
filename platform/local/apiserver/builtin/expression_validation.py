"""Validation of expressions in CEL, and of match conditions."""

from collections.abc import Sequence
from typing import Any

from ....machinery.cel.environment import CompileError
from ....model import validation
from ..cel.policy_expressions import Expressions, check_result
from ..errors.fields import FieldError, duplicate, invalid, required, too_many

Json = dict[str, Any]

_MAX_CONDITIONS = 64


def check_expression(
    obj: Json,
    key: str,
    path: str,
    expressions: Expressions,
    errors: list[FieldError],
    allowed: Sequence[str],
    *,
    authorizer: bool = True,
) -> None:
    """Check that the expression in a field compiles to a value of one of the *allowed* types."""
    text = obj.get(key) or ""
    if not text.strip():
        errors.append(required(f"{path}.{key}", f"{key} is not specified"))
        return
    try:
        compiled = expressions.compile(text, authorizer=authorizer)
    except CompileError as error:
        errors.append(invalid(f"{path}.{key}", text, f"compilation failed: {error}"))
        return
    try:
        check_result(compiled, allowed)
    except CompileError as error:
        errors.append(invalid(f"{path}.{key}", text, str(error)))


def validate_conditions(
    conditions: Sequence[Json], path: str, expressions: Expressions, errors: list[FieldError]
) -> None:
    """Validate match conditions; they must compile."""
    if len(conditions) > _MAX_CONDITIONS:
        errors.append(too_many(path, len(conditions), _MAX_CONDITIONS))
    names: set[str] = set()
    for index, each in enumerate(conditions):
        where, name = f"{path}[{index}]", each.get("name") or ""
        if not (each.get("expression") or "").strip():
            errors.append(required(f"{where}.expression"))
        else:
            check_expression(each, "expression", where, expressions, errors, ("bool",))
        if not name:
            errors.append(required(f"{where}.name"))
        elif problem := validation.qualified_name_error(name):
            errors.append(invalid(f"{where}.name", name, problem))
        if name in names:
            errors.append(duplicate(f"{where}.name", name))
        elif name:
            names.add(name)
