"""The frameworks of training jobs, one module each.

A module defines a subclass of :class:`~.base.Framework` and its instance ``FRAMEWORK``. Adding a
module is all that a new framework takes: admission, the controller and ``make crds`` read
:data:`FRAMEWORKS`.
"""

import importlib
import pkgutil
from typing import Any

from .base import Framework

_NOT_FRAMEWORKS = frozenset(("base",))


def discover() -> tuple[Framework[Any], ...]:
    """Import all modules of the package; return their frameworks by kind."""
    names = sorted(
        module.name
        for module in pkgutil.iter_modules(__path__)
        if module.name not in _NOT_FRAMEWORKS and not module.name.startswith("_")
    )
    modules = [importlib.import_module(f".{name}", __name__) for name in names]
    found: list[Framework[Any]] = [module.FRAMEWORK for module in modules]
    return tuple(sorted(found, key=lambda each: each.kind.name))


FRAMEWORKS = discover()
"""All frameworks, by kind."""
