"""Command-line flags in Go's syntax, declared in groups.

A group is a frozen dataclass whose fields are typer options. A command takes a few groups instead
of dozens of parameters; :func:`command_from_groups` converts it to a function for typer.

The arguments of a Deployment written for Volcano are accepted unchanged: ``--flag=true``, ``-v=4``,
``--some_flag`` for ``--some-flag``, and a literal ``2>&1``. Flags without a meaning here are
declared as :class:`IgnoredFlag` and documented as such in the help.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

TRUE_VALUES = frozenset(("1", "t", "T", "true", "TRUE", "True"))
FALSE_VALUES = frozenset(("0", "f", "F", "false", "FALSE", "False"))
"""Boolean values as parsed by Go's ``strconv.ParseBool``."""

_SHELL_REDIRECT = "2>&1"
"""Volcano's chart passes it as an argument, without a shell."""


@dataclass(frozen=True, slots=True)
class IgnoredFlag:
    """A flag of Volcano that is accepted and has no effect."""

    name: str
    """Name without dashes."""

    reason: str
    """Why it has no effect, or what to use instead."""

    switch: bool = False
    """Whether it takes no value."""


def command_from_groups(command: Callable[..., None], *ignored: IgnoredFlag) -> Callable[..., None]:
    """Convert *command*, whose parameters are flag groups, for typer; add *ignored* flags."""
    groups: dict[str, Any] = get_type_hints(command)
    groups.pop("return", None)
    parameters = [each for group in groups.values() for each in _parameters(group)]
    parameters += [_ignored_parameter(flag) for flag in ignored]

    def call(**values: Any) -> None:
        arguments = {
            name: group(**{each.name: values[each.name] for each in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**arguments)

    call.__name__ = command.__name__
    call.__doc__ = command.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=hints[field.name],
        )


def _ignored_parameter(flag: IgnoredFlag) -> inspect.Parameter:
    option = typer.Option(
        f"--{flag.name}",
        help=f"No effect: {flag.reason}",
        show_default=False,
        rich_help_panel="Accepted for compatibility with Volcano, without effect",
    )
    kind: Any = bool | None if flag.switch else str | None
    return inspect.Parameter(
        flag.name.replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )


class GoFlagCommand(TyperCommand):
    """A command that accepts flags in Go's syntax."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the arguments, rewritten to typer's syntax."""
        return super().parse_args(ctx, list(self._normalized(ctx, args)))

    def _normalized(self, ctx: typer.Context, args: Sequence[str]) -> Iterator[str]:
        for arg in args:
            if arg == _SHELL_REDIRECT:
                continue
            dashes = "--" if arg.startswith("--") else "-" if arg.startswith("-") else ""
            name, equals, value = arg[len(dashes) :].partition("=")
            if not dashes or not name:
                yield arg
                continue
            flag = dashes + name.replace("_", "-")
            switch = self._find_switch(flag)
            if switch is not None and equals:
                yield from switch.to_arguments(ctx, flag, value)
            elif equals and dashes == "-":
                yield from (flag, value)
            else:
                yield flag + equals + value

    def _find_switch(self, flag: str) -> "_Switch | None":
        for each in self.params:
            if flag in each.opts and getattr(each, "is_flag", False):
                return _Switch(negated=each.secondary_opts[0] if each.secondary_opts else "")
        return None


@dataclass(frozen=True, slots=True)
class _Switch:
    """A boolean flag; *negated* is the flag that disables it, if any."""

    negated: str

    def to_arguments(self, ctx: typer.Context, flag: str, value: str) -> Iterator[str]:
        if value in TRUE_VALUES:
            yield flag
        elif value not in FALSE_VALUES:
            raise typer.BadParameter(f"{flag}={value}: neither true nor false", ctx=ctx)
        elif self.negated:
            yield self.negated
