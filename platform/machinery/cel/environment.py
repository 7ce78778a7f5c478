"""Compile and evaluate expressions.

An expression is compiled twice: checked with the types of its variables, then for evaluation,
where every variable is a plain JSON value. Evaluation is bounded: comprehensions of one expression
may iterate 10,000 times in all, which is a constant of the library.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

from . import formats, kubernetes_functions, list_functions, string_functions
from .checked import Checked, decode
from .cost import SizeOf, estimate
from .signatures import ABSTRACT_TYPES, ANY, Signature

if TYPE_CHECKING:
    from cel_expr_python import cel

log = logging.getLogger(__name__)

_MAX_MESSAGE = 5 * 1024
"""Maximum bytes of a message that an expression returns."""

MAX_ITERATIONS = 10_000
"""Iterations of the comprehensions in one expression."""

TOO_MANY_ITERATIONS = f"the expression iterates more than {MAX_ITERATIONS} times"
"""The text of the error."""

MAX_LENGTH = 100_000
"""Maximum characters of an expression."""

_KINDS = (
    "bool", "int", "uint", "double", "string", "bytes", "list(dyn)", "map(dyn, dyn)", "null",
    "timestamp", "duration",
)  # fmt: skip
_TYPE_NAMES = re.compile(r"\b[A-Z_]+\b(?=[<>,]|$)")
_PARAMETERS = re.compile(r"(list|map|optional_type)\((.*)\)")
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")
_ERRORS = (
    (re.compile(r'Key not found in map : "?(.*?)"?'), r"no such key: \1"),
    (re.compile(r"Index error: index=(-?\d+).*"), r"index out of bounds: \1"),
    (re.compile(r"No matching overloads found.*"), "no such overload"),
    (re.compile(r"Applying SELECT to non-message type"), "no such key"),
    (re.compile(r"divide by zero"), "division by zero"),
    (re.compile(r"Iteration budget exceeded.*"), TOO_MANY_ITERATIONS),
)
"""Texts of the library, and those of kube-apiserver."""


class CompileError(ValueError):
    """An expression does not compile; the text is the reason."""


class EvaluationError(Exception):
    """An expression has no value; the text is the reason."""


class Evaluable(Protocol):
    """A compiled expression, or one that is checked before its evaluation."""

    def evaluate(self, activation: Any) -> Any:
        """Return its value; raise EvaluationError if there is none."""
        ...


class Program:
    """A compiled expression."""

    def __init__(self, expression: "cel.Expression", result: str, full_result: str = "") -> None:
        self._expression = expression
        self.full_result = full_result
        """The same with the types of items and entries, e.g. ``list(string)``."""

        self.result = result
        """Type of its value, e.g. ``bool``; ``dyn`` if it is not known before."""

    def evaluate(self, activation: "cel.Activation") -> Any:
        """Return the value as plain JSON, times and durations as Python's.

        Raises:
            EvaluationError: it has none.
        """
        try:
            found = self._expression.eval(activation)
            if found.type() == _library().Type.ERROR:
                raise EvaluationError(_error_text(str(found.plain_value())))
            return found.plain_value()
        except (RuntimeError, TypeError) as error:
            raise EvaluationError(_error_text(str(error))) from error


def evaluate_message(program: Evaluable | None, activation: Any) -> str:
    """Return the value of a ``messageExpression``; empty if there is none that fits a message."""
    if program is None:
        return ""
    try:
        found = program.evaluate(activation)
    except EvaluationError as error:
        log.debug("messageExpression: %s", error)
        return ""
    text = found.strip() if isinstance(found, str) else ""
    return "" if "\n" in text or len(text.encode()) > _MAX_MESSAGE else text


class Environment:
    """Variables that expressions may use."""

    def __init__(
        self,
        variables: Mapping[str, str],
        *,
        types: "cel.Env | None" = None,
        signatures: Iterable[Signature] = (),
        descriptors: Any = None,
    ) -> None:
        """Declare *variables*, by name their types; message types are in the pool *descriptors*.

        *signatures* are functions in addition to those of every expression.
        """
        extra = tuple(signatures)
        self._checker = _environment(variables, _checked(extra), descriptors)
        self._evaluator = _evaluator(tuple(sorted(variables)), extra)

    def compile(self, expression: str) -> Program:
        """Compile an expression.

        Raises:
            CompileError: it has an error.
        """
        if len(expression) > MAX_LENGTH:
            raise CompileError(f"expression is longer than {MAX_LENGTH} characters")
        expression = formats.with_optionals(expression)
        try:
            checked = self._checker.compile(expression)
            result = str(checked.return_type().name()).lower()
            full_result = _type_text(str(checked.return_type()))
            program = self._evaluator.compile(expression, disable_check=True)
            return Program(program, result, full_result)
        except RuntimeError as error:
            raise CompileError(_STATUS.sub("", str(error)).strip()) from error

    def estimate(self, expression: str, size_of: SizeOf) -> int:
        """Return the most that an evaluation costs; *size_of* are the sizes of the variables.

        Raises:
            CompileError: it has an error.
        """
        return estimate(self.checked(expression), size_of)

    def checked(self, expression: str) -> Checked:
        """Return the syntax tree of an expression with its types.

        Raises:
            CompileError: it has an error.
        """
        try:
            text = formats.with_optionals(expression)
            return decode(self._checker.compile(text).serialize())
        except RuntimeError as error:
            raise CompileError(_STATUS.sub("", str(error)).strip()) from error

    def activation(self, values: Mapping[str, Any]) -> "cel.Activation":
        """Return values of all variables, for the programs of this environment."""
        return self._evaluator.Activation(values)


def _library() -> Any:
    from cel_expr_python import cel  # 50 MB, and most clusters have no expression

    return cel


@cache
def _evaluator(variables: tuple[str, ...], extra: tuple[Signature, ...]) -> "cel.Env":
    return _environment(dict.fromkeys(variables, "dyn"), _evaluated(extra), None)


def _environment(variables: Mapping[str, str], functions: Any, descriptors: Any) -> "cel.Env":
    from cel_expr_python.ext import ext_bindings, ext_optional

    extensions = [ext_optional.ExtOptional(), ext_bindings.ExtBindings()]
    declared = {name: type_named(text) for name, text in variables.items()}
    options = {"variables": declared, "functions": functions, "extensions": extensions}
    if descriptors is None:
        return _library().NewEnv(**options)
    return _library().NewEnv(descriptors, **options)


@cache
def type_named(text: str) -> Any:
    """Return the library's type with a name as in CEL; others are messages."""
    types = _library().Type
    if text in ABSTRACT_TYPES:
        return types.AbstractType(text, [])
    if match := _PARAMETERS.fullmatch(text):
        inner = [type_named(each) for each in _split(match[2])]
        if match[1] == "optional_type":
            return types.AbstractType(match[1], inner)
        return (types.List if match[1] == "list" else types.Map)(*inner)
    plain = {
        "bool": types.BOOL, "int": types.INT, "uint": types.UINT, "double": types.DOUBLE,
        "string": types.STRING, "bytes": types.BYTES, "dyn": types.DYN, "null": types.NULL,
        "timestamp": types.TIMESTAMP, "duration": types.DURATION,
    }  # fmt: skip
    return plain.get(text) or types(text)


def _split(text: str) -> list[str]:
    """Split the parameters of a type at the commas outside of parentheses."""
    items, depth = [""], 0
    for sign in text:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "," and not depth:
            items.append("")
        else:
            items[-1] += sign
    return [item.strip() for item in items]


_COMMON = (
    *list_functions.SIGNATURES,
    *string_functions.SIGNATURES,
    *kubernetes_functions.SIGNATURES,
    *formats.SIGNATURES,
)


@cache
def _checked(extra: tuple[Signature, ...]) -> list[Any]:
    """Return the functions with the types that expressions are checked with."""
    types = {ANY: "dyn"}
    return _declare(
        (each, tuple(types.get(name, name) for name in each.parameters), each.result, each.call)
        for each in (*_COMMON, *extra)
    )


@cache
def _evaluated(extra: tuple[Signature, ...]) -> list[Any]:
    """Return the functions with types of plain values, one overload for each combination.

    Overloads of abstract types that become equal are one, which checks the values.
    """
    found: dict[tuple[str, bool, tuple[str, ...]], list[Signature]] = {}
    for each in (*_COMMON, *extra):
        choices = [_KINDS if name == ANY else (_plain(name),) for name in each.parameters]
        for parameters in product(*choices):
            found.setdefault((each.name, each.member, parameters), []).append(each)
    return _declare(
        (overloads[0], key[2], "dyn", _dispatcher(overloads)) for key, overloads in found.items()
    )


def _plain(name: str) -> str:
    """Return the type at run time: the items of a list are not known."""
    if name in ABSTRACT_TYPES or name.startswith("map("):
        return "map(dyn, dyn)"
    return "list(dyn)" if name.startswith("list(") else name


def _dispatcher(overloads: list[Signature]) -> Callable[..., Any]:
    """Return a call of the overload whose abstract types are those of the values."""

    def call(*values: Any) -> Any:
        for each in overloads:
            inner = [_inner(*pair) for pair in zip(each.parameters, values, strict=True)]
            if not any(value is _OTHER for value in inner):
                return each.call(*inner)
        raise ValueError("no such overload")

    return call


_OTHER = object()


def _inner(name: str, value: Any) -> Any:
    """Return the value inside one of the abstract type *name*."""
    if name not in ABSTRACT_TYPES:
        return value
    return value.get(name, _OTHER)


def _declare(overloads: Iterable[tuple[Signature, tuple[str, ...], str, Any]]) -> list[Any]:
    library = _library()
    by_name: dict[str, list[Any]] = {}
    for each, parameters, result, call in overloads:
        declared = by_name.setdefault(each.name, [])
        declared.append(
            library.Overload(
                f"{each.name}_{len(declared)}_{'_'.join(map(_identifier, parameters))}",
                type_named(result),
                [type_named(name) for name in parameters],
                each.member,
                call,
            )
        )
    return [library.FunctionDecl(name, declared) for name, declared in by_name.items()]


def _type_text(text: str) -> str:
    """Return the name of a type as in CEL, which the library writes as ``LIST<STRING>``."""
    text = _TYPE_NAMES.sub(lambda match: match[0].lower(), text)
    return text.replace("<", "(").replace(">", ")")


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def _error_text(text: str) -> str:
    """Return the message of an evaluation, in the form of kube-apiserver for the usual errors."""
    text = _STATUS.sub("", text)
    for pattern, replacement in _ERRORS:
        if match := pattern.fullmatch(text):
            return match.expand(replacement)
    return text
