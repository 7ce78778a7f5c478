"""The known name that is nearest to a misspelt one."""

import difflib
from collections.abc import Iterable


def hint(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for the nearest of the *known* names, or all of them."""
    names = {each.casefold(): each for each in sorted(known)}
    nearest = difflib.get_close_matches(name.casefold(), names, n=1)
    if nearest:
        return f"did you mean {names[nearest[0]]!r}?"
    return f"known: {', '.join(names.values()) or 'none'}"
