"""The arguments ``podtopologyspread.defaultConstraints`` and ``.defaultingType``."""

from collections.abc import Mapping

from ...model.validation import qualified_name_error
from ..state.core_types import TopologySpreadConstraint
from ..state.podinfo.default_spread import SYSTEM_DEFAULTS, DefaultSpread
from .arguments import ArgumentError, Arguments, integer, require_read, text

CONSTRAINTS = "podtopologyspread.defaultConstraints"
KIND = "podtopologyspread.defaultingType"
_ACTIONS = ("DoNotSchedule", "ScheduleAnyway")


def parse(arguments: Mapping[str, object]) -> DefaultSpread | None:
    """Return the default constraints, ``None`` if there are none.

    Raises:
        ArgumentError: one is malformed.
    """
    kind = text(arguments, KIND, default="List")
    given = arguments.get(CONSTRAINTS, [])
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ArgumentError(CONSTRAINTS, f"must be a list of constraints, not {given!r}")
    if kind not in ("List", "System"):
        raise ArgumentError(KIND, f"must be List or System, not {kind!r}")
    if kind == "System":
        if given:
            raise ArgumentError(CONSTRAINTS, f"must be empty if {KIND} is System")
        return DefaultSpread(SYSTEM_DEFAULTS, is_system=True)
    constraints = tuple(_constraint(Arguments(each)) for each in given)
    pairs = [(each.topology_key, each.when_unsatisfiable) for each in constraints]
    for pair in pairs:
        if pairs.count(pair) > 1:
            raise ArgumentError(CONSTRAINTS, f"{pair[0]} with {pair[1]} is there twice")
    return DefaultSpread(constraints) if constraints else None


def _constraint(given: Arguments) -> TopologySpreadConstraint:
    try:
        key = text(given, "topologyKey")
        skew = integer(given, "maxSkew", default=0, minimum=1)
        action = text(given, "whenUnsatisfiable")
        require_read(given, "constraint")
    except ArgumentError as error:
        raise ArgumentError(CONSTRAINTS, str(error)) from error
    if problem := qualified_name_error(key):
        raise ArgumentError(CONSTRAINTS, f"topologyKey: {key!r}: {problem}")
    if action not in _ACTIONS:
        choices = " or ".join(_ACTIONS)
        raise ArgumentError(CONSTRAINTS, f"whenUnsatisfiable: must be {choices}, not {action!r}")
    return TopologySpreadConstraint(topology_key=key, max_skew=skew, when_unsatisfiable=action)
