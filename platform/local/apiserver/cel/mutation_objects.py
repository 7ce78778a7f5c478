"""Objects and JSON patches that the expressions of mutations construct.

The library has no values of message types whose fields are not declared. So before an expression
is compiled, ``Object.spec{replicas: 1}`` becomes the call of a function with a map. The checker
knows the result as an abstract type, whose fields it cannot read.
"""

import re
from typing import Any

from ....machinery.cel.environment import CompileError
from ....machinery.cel.literals import LITERAL
from ....machinery.cel.signatures import NESTED_OBJECT, OBJECT, PATCH, Signature, value_of

_MAX_DEPTH = 64
_TYPE = re.compile(r"(?<![\w.])(Object(?:\s*\.\s*\w+)*|JSONPatch)\s*\{")
_FIELD = re.compile(r"(?:\s|//[^\n]*\n?)*(\??)\s*(?:(\w+)|`([^`]+)`)\s*:")
_END = re.compile(r"(?:\s|//[^\n]*\n?)*\}")
_ROOT, _NESTED, _PATCH, _TEXT = "__object__", "__nested__", "__jsonpatch__", "__text__"
_PATCH_FIELDS = ("op", "path", "from", "value")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CONSTRUCTED = frozenset((OBJECT, NESTED_OBJECT, PATCH))

RESULTS = {"applyConfiguration": OBJECT, "jsonPatch": f"list({PATCH})"}
"""Types of the expressions by the field of a mutation."""


class TypeNameError(ValueError):
    """An object is where its type does not belong; the text is the reason."""


def rewrite(expression: str) -> str:
    """Return *expression* with calls where it constructs objects.

    Raises:
        CompileError: such an object is malformed.
    """
    return _Rewriter(expression).rewrite("", 0)


class _Rewriter:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def rewrite(self, ends: str, depth: int) -> str:
        """Return the text up to one of the characters *ends* outside of brackets, rewritten."""
        if depth > _MAX_DEPTH:
            raise CompileError(f"objects are nested more than {_MAX_DEPTH} levels deep")
        text, pieces, open_brackets = self._text, list[str](), list[str]()
        while self._position < len(text):
            if match := LITERAL.match(text, self._position):
                pieces.append(match.group())
                self._position = match.end()
                continue
            if match := _TYPE.match(text, self._position):
                self._position = match.end()
                pieces.append(self._construction("".join(match[1].split()), depth))
                continue
            sign = text[self._position]
            if not open_brackets and sign in ends:
                break
            if sign in _CLOSING:
                open_brackets.append(_CLOSING[sign])
            elif open_brackets and sign == open_brackets[-1]:
                open_brackets.pop()
            pieces.append(sign)
            self._position += 1
        return "".join(pieces)

    def _construction(self, name: str, depth: int) -> str:
        fields = self._fields(name, depth)
        if name == PATCH:
            return f"{_PATCH}({{{fields}}})"
        if name == OBJECT:
            return f"{_ROOT}({{{fields}}})"
        return f'{_NESTED}("{name}", {{{fields}}})'

    def _fields(self, name: str, depth: int) -> str:
        """Return the entries of a map for the fields up to the closing brace."""
        entries = []
        while not (end := _END.match(self._text, self._position)):
            field = _FIELD.match(self._text, self._position)
            if field is None:
                raise CompileError(f"Syntax error: a field of {name} is malformed")
            self._position = field.end()
            key = field[2] or field[3]
            if name == PATCH and key not in _PATCH_FIELDS:
                raise CompileError(f"undefined field '{key}' of {name}")
            value = self.rewrite(",}", depth + 1)
            if not value.strip():
                raise CompileError(f"Syntax error: the field '{key}' of {name} has no value")
            if name == PATCH and key != "value" and not field[1]:
                value = f"{_TEXT}({value}\n)"
            entries.append(f'{field[1]}"{key}": {value}\n')
            if self._text[self._position : self._position + 1] == ",":
                self._position += 1
        self._position = end.end()
        return ", ".join(entries)


def to_json(value: Any) -> Any:
    """Return the value of an expression as JSON.

    Raises:
        TypeNameError: an object in it is not where its type belongs.
    """
    return _to_json(value, None)


def _to_json(value: Any, path: str | None) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and (found := _CONSTRUCTED.intersection(value)):
            (kind,) = found
            return _object(kind, value[kind], path)
        return {key: _to_json(item, path) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item, path) for item in value]
    return value


def _object(kind: str, value: Any, path: str | None) -> Any:
    name, fields = (value["type"], value["fields"]) if kind == NESTED_OBJECT else (kind, value)
    if kind == PATCH:
        return {key: _to_json(item, None) for key, item in fields.items()}
    if path is not None and name != path:
        raise TypeNameError(
            f'unexpected type name "{name}", expected "{path}", which matches field name path '
            "from root Object type"
        )
    return {key: _to_json(item, f"{name}.{key}") for key, item in fields.items()}


def _new_patch(fields: dict[str, Any]) -> dict[str, Any]:
    for name in ("op", "path", "from"):
        if not isinstance(fields.get(name, ""), str):
            raise ValueError(f"unexpected type for JSONPatchType '{name}' field")
    return value_of(PATCH, fields)


def _escape_key(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


_MAP = "map(dyn, dyn)"
SIGNATURES: tuple[Signature, ...] = (
    Signature(_ROOT, (_MAP,), OBJECT, lambda fields: value_of(OBJECT, fields), member=False),
    Signature(
        _NESTED,
        ("string", _MAP),
        NESTED_OBJECT,
        lambda name, fields: value_of(NESTED_OBJECT, {"type": name, "fields": fields}),
        member=False,
    ),
    Signature(_PATCH, (_MAP,), PATCH, _new_patch, member=False),
    Signature(_TEXT, ("string",), "string", lambda text: text, member=False),
    Signature("jsonpatch.escapeKey", ("string",), "string", _escape_key, member=False),
)
"""What only the expressions of mutating policies have."""
