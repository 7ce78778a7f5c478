"""Label selectors and field selectors.

A label selector is text (``tier in (a,b),!canary``) or the ``matchLabels`` and
``matchExpressions`` of an object; both become a :class:`Selector`, and ``str(selector)`` is the
query text. Field selectors are only parsed here; each kind defines its selectable fields.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from .meta import LabelRequirement, LabelSelector
from .validation import label_value_error, qualified_name_error

_TOKEN = re.compile(r"\s*(==|!=|[=!(),<>]|[^\s=!(),<>]+|\Z)")
_SYMBOLS = frozenset(("=", "==", "!=", "!", "(", ")", ",", "<", ">"))
_UNESCAPED_TERM = re.compile(r"(?:[^,\\]|\\.?)+", re.DOTALL)
_FIELD_TERM = re.compile(r"([^=!]*)(!=|==|=)((?:[^=,\\]|\\[,=\\])*)")
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class SelectorError(ValueError):
    """The selector is invalid; the message goes to the API client."""


class Operator(StrEnum):
    """Operator of a label requirement."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"
    GREATER = ">"
    LESS = "<"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on one label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether *labels* meet the condition; NOT_IN also matches a missing label."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
        if value is None or not _INTEGER.fullmatch(value):
            return False
        (limit,) = self.values
        difference = int(value) - int(limit)
        return difference > 0 if self.operator is Operator.GREATER else difference < 0

    def __str__(self) -> str:
        """Return the condition in selector syntax."""
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
        values = ",".join(sorted(self.values))
        if self.operator in (Operator.GREATER, Operator.LESS):
            return f"{self.key}{self.operator}{values}"
        if len(self.values) == 1:
            return f"{self.key}{'=' if self.operator is Operator.IN else '!='}{values}"
        return f"{self.key} {self.operator} ({values})"


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions that must all hold; without conditions it selects everything."""

    requirements: tuple[Requirement, ...] = ()

    nothing: bool = False
    """Select nothing: the meaning of an unset selector."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with *labels* is selected."""
        return not self.nothing and all(each.matches(labels) for each in self.requirements)

    def __str__(self) -> str:
        """Return the selector as query text (NOTHING has none)."""
        return ",".join(str(each) for each in self.requirements)


NOTHING = Selector(nothing=True)


class FieldRequirement(NamedTuple):
    """One condition of a field selector; *operator* is ``=`` or ``!=``."""

    path: str
    operator: str
    value: str

    def matches(self, value: str) -> bool:
        """Return whether *value* (``""`` if the field is missing) meets the condition."""
        return (value == self.value) == (self.operator == "=")


@lru_cache(maxsize=1024)
def parse_label_selector(text: str) -> Selector:
    """Parse a label selector in the syntax of ``kubectl -l``; empty text selects everything.

    Raises:
        SelectorError: the syntax, a key or a value is invalid.
    """
    lexer = _Lexer(text)
    requirements = []
    while lexer.peek():
        if lexer.peek() != "!" and lexer.peek() in _SYMBOLS:
            raise lexer.unexpected("!, identifier, or 'end of string'")
        requirements.append(_parse_requirement(lexer))
        separator = lexer.advance()
        if not separator:
            break
        if separator != ",":
            raise lexer.unexpected("',' or 'end of string'", found=separator)
        if not lexer.peek() or (lexer.peek() in _SYMBOLS and lexer.peek() != "!"):
            raise lexer.unexpected("identifier after ','")
    return Selector(tuple(sorted(requirements, key=lambda each: each.key)))


def from_label_selector(selector: LabelSelector | None) -> Selector:
    """Convert an object's selector; ``None`` selects nothing, an empty one everything.

    Raises:
        SelectorError: an operator, a key, a value or the number of values is invalid.
    """
    if selector is None:
        return NOTHING
    equal = [
        _new_requirement(key, Operator.IN, [value]) for key, value in selector.match_labels.items()
    ]
    return Selector((*equal, *map(_from_expression, selector.match_expressions)))


def parse_field_selector(text: str) -> list[FieldRequirement]:
    """Parse a field selector (``a=b,c!=d``); a backslash escapes ``,``, ``=`` and itself.

    Raises:
        SelectorError: a term has no operator, or its value has an unescaped backslash or ``=``.
    """
    return [_parse_field_requirement(term) for term in _UNESCAPED_TERM.findall(text)]


class _Lexer:
    """Tokens of a label selector; ``""`` marks the end."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def peek(self) -> str:
        return self._next

    def advance(self) -> str:
        token = self._next
        self._next = next(self._tokens, "")
        return token

    def identifier(self) -> str:
        """Return the next token, which must not be a symbol."""
        if not self._next or self._next in _SYMBOLS:
            raise self.unexpected("identifier")
        return self.advance()

    def unexpected(self, expected: str, *, found: str | None = None) -> SelectorError:
        found = self._next if found is None else found
        return SelectorError(f"unable to parse requirement: found '{found}', expected: {expected}")


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while match := _TOKEN.match(text, position):
        yield match[1]
        if not match[1]:
            return
        position = match.end()


def _parse_requirement(lexer: _Lexer) -> Requirement:
    if lexer.peek() == "!":
        lexer.advance()
        return _new_requirement(lexer.identifier(), Operator.DOES_NOT_EXIST, [])
    key = lexer.identifier()
    operator = lexer.peek()
    if operator in ("", ","):
        return _new_requirement(key, Operator.EXISTS, [])
    if operator not in ("=", "==", "!=", "in", "notin", "<", ">"):
        raise lexer.unexpected("in, notin, =, ==, !=, gt, lt")
    lexer.advance()
    match operator:
        case "=" | "==":
            return _new_requirement(key, Operator.IN, [_parse_exact_value(lexer)])
        case "!=":
            return _new_requirement(key, Operator.NOT_IN, [_parse_exact_value(lexer)])
        case "in" | "notin":
            return _new_requirement(key, Operator(operator), _parse_values(lexer))
    return _new_requirement(key, Operator(operator), [lexer.identifier()])


def _parse_exact_value(lexer: _Lexer) -> str:
    """Parse a value, which may be empty."""
    return "" if lexer.peek() in ("", ",") else lexer.identifier()


def _parse_values(lexer: _Lexer) -> list[str]:
    """Parse values in parentheses; an empty item is the empty value."""
    if lexer.peek() != "(":
        raise lexer.unexpected("'('")
    lexer.advance()
    values = []
    while True:
        values.append("" if lexer.peek() in (",", ")") else lexer.identifier())
        symbol = lexer.advance()
        if symbol == ")":
            return values
        if symbol != ",":
            raise lexer.unexpected("',' or ')'", found=symbol)


def _from_expression(expression: LabelRequirement) -> Requirement:
    operators = {
        "In": Operator.IN,
        "NotIn": Operator.NOT_IN,
        "Exists": Operator.EXISTS,
        "DoesNotExist": Operator.DOES_NOT_EXIST,
    }
    if expression.operator not in operators:
        raise SelectorError(f'"{expression.operator}" is not a valid label selector operator')
    return _new_requirement(expression.key, operators[expression.operator], list(expression.values))


def _new_requirement(key: str, operator: Operator, values: list[str]) -> Requirement:
    """Return a validated requirement."""
    if error := qualified_name_error(key):
        raise _invalid("key", key, error)
    if operator in (Operator.IN, Operator.NOT_IN) and not values:
        raise SelectorError(f"values of '{key}': operators 'in' and 'notin' need at least one")
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST) and values:
        raise SelectorError(f"values of '{key}': must be empty for exists and does not exist")
    for value in values:
        if error := label_value_error(value):
            raise _invalid(f"values of '{key}'", value, error)
        if operator in (Operator.GREATER, Operator.LESS) and not _INTEGER.fullmatch(value):
            raise _invalid(f"values of '{key}'", value, "'>' and '<' compare whole numbers")
    return Requirement(key, operator, frozenset(values))


def _invalid(what: str, value: str, error: str) -> SelectorError:
    return SelectorError(f'unable to parse requirement: {what}: Invalid value: "{value}": {error}')


def _parse_field_requirement(term: str) -> FieldRequirement:
    match = _FIELD_TERM.fullmatch(term)
    if match is None:
        raise SelectorError(
            f"invalid field selector: '{term}' is not of the form field=value or field!=value,"
            " with a backslash before each ',', '=' and '\\' in the value"
        )
    path, operator, value = match.groups()
    literal = re.sub(r"\\(.)", r"\1", value)
    return FieldRequirement(path, "!=" if operator == "!=" else "=", literal)
