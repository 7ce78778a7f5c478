"""Signatures that name every argument, and errors that name the nearest one."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar, get_args, get_type_hints

from ..model.spelling import hint

P = ParamSpec("P")
T = TypeVar("T")


class _Absent:
    """The default of an argument that may be left out, shown as in stubs."""

    def __repr__(self) -> str:
        return "..."


def explicit(function: Callable[P, T]) -> Callable[P, T]:
    """Return a method or operation with a signature that shows the fields of its options.

    Python accepts every name where the options are a ``TypedDict``. An unknown one raises
    TypeError, with the nearest that is known.
    """
    signature = explicit_signature(function)
    # The first one is the object of a method, or the scope of an operation.
    known = list(signature.parameters)[1:]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise TypeError(f"unexpected argument {name!r}; {hint(name, known)}")
        return function(*args, **kwargs)

    call.__dict__["__signature__"] = signature
    return call


def explicit_signature(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of *function*, its options as arguments of their own."""
    signature = inspect.signature(function)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            parameters.append(parameter)
            continue
        [options] = get_args(parameter.annotation)
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=_Absent(), annotation=annotation
            )
            for name, annotation in get_type_hints(options).items()
        ]
    return signature.replace(parameters=parameters)
