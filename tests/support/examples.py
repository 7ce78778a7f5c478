"""How many examples property tests that name a number generate."""

import hypothesis


def examples(count: int) -> int:
    """Return *count*, in proportion to the profile: the number at 100 examples.

    The profiles are in `tests/conftest.py`; this one is known when test modules are imported.
    """
    return max(2, count * hypothesis.settings().max_examples // 100)
