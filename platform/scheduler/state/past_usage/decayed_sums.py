"""Sums of what was used over time, in which older use counts less.

What was used *t* seconds ago counts with the factor ``2 ** (-t / half_life)``. A constant rate
*r* for *t* seconds therefore adds ``r * half_life / ln 2 * (1 - 2 ** (-t / half_life))``. That is
exact for any *t*, so that sums do not depend on how often they are brought up to date.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..resources import Amounts, FloatMatrix, FloatVector, Matrix

Key = tuple[str, str]
"""Queue and user; an empty user means the whole queue, with the queues below it."""

MAX_IDLE_KEYS = 10_000
"""Keys that use nothing now and are remembered; those with the smallest sums are forgotten."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The sums at one time, which may be read in any thread."""

    keys: tuple[Key, ...]
    resources: tuple[str, ...]
    used: FloatMatrix
    """By key and resource: amounts as in ``state.resources``, times seconds."""

    rates: Matrix
    """By key and resource: what is used now, in amounts as in ``state.resources``."""

    at: float
    """Reading of the monotonic clock."""

    half_life: float
    """Seconds."""

    version: int = 0
    """Grows with each change of rates."""

    changed_at: float = 0.0
    """Monotonic time of the last one."""

    @property
    def is_growing(self) -> bool:
        """Whether anything is used now."""
        return bool(self.rates.any())

    def used_at(self, now: float) -> FloatMatrix:
        """Return the sums at monotonic time *now*, if the same is used until then."""
        return _advanced(self.used, self.rates, now - self.at, self.half_life)


class DecayedSums:
    """The sums by key and resource, and the rates at which they grow."""

    def __init__(self) -> None:
        """Start without keys."""
        self._rows: dict[Key, int] = {}
        self._columns: dict[str, int] = {}
        self._used: FloatMatrix = np.zeros((0, 0))
        self._rates: Matrix = np.zeros((0, 0), np.int64)
        self._keys: tuple[Key, ...] | None = ()
        self._is_shared = False
        """Whether a snapshot has the arrays, so that they are not to be changed in place."""

        self._version = self._seen_version = 0
        self._changed_at = 0.0

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._rows)

    def advance(self, seconds: float, half_life: float) -> None:
        """Let *seconds* pass, in which the rates have not changed."""
        if seconds > 0:
            self._used = _advanced(self._used, self._rates, seconds, half_life)

    def add_rate(self, keys: Iterable[Key], amounts: Amounts, sign: int = 1) -> None:
        """Let each of *keys* use *amounts* more from now on, or less with *sign* -1."""
        self._ensure_writable()
        columns = self._columns_of(amounts)
        for key in keys:
            row = self._row(key)
            for column, units in zip(columns, amounts.values(), strict=True):
                self._rates[row, column] += sign * units

    def add_used(self, key: Key, amounts: Mapping[str, float]) -> None:
        """Add *amounts* (times seconds) to the sums of *key*."""
        self._ensure_writable()
        columns = self._columns_of(amounts)
        row = self._row(key)
        for column, units in zip(columns, amounts.values(), strict=True):
            self._used[row, column] += units

    def rates_of(self, key: Key) -> Amounts:
        """Return what *key* uses now."""
        row = self._rows.get(key)
        if row is None:
            return {}
        rates = zip(self._columns, self._rates[row].tolist(), strict=False)
        return {name: units for name, units in rates if units}

    def stop(self) -> None:
        """Let nothing be used from now on."""
        self._ensure_writable()
        self._rates[:] = 0

    def snapshot(self, now: float, half_life: float) -> Snapshot:
        """Return the sums at monotonic time *now*, up to which they have been advanced."""
        if self._keys is None:
            self._keys = tuple(self._rows)
        if self._version != self._seen_version:
            self._seen_version, self._changed_at = self._version, now
        self._is_shared = True
        count = len(self._keys)
        return Snapshot(
            self._keys,
            tuple(self._columns),
            self._used[:count, : len(self._columns)],
            self._rates[:count, : len(self._columns)],
            now,
            half_life,
            self._version,
            self._changed_at,
        )

    def forget_idle(self) -> None:
        """Forget keys that use nothing, those with the smallest sums first, until
        :data:`MAX_IDLE_KEYS` of them are left."""
        count = len(self._rows)
        if count <= MAX_IDLE_KEYS:
            return
        idle = np.flatnonzero(~self._rates[:count].any(axis=1))
        excess = len(idle) - MAX_IDLE_KEYS
        if excess <= 0:
            return
        smallest = np.argsort(largest_fractions(self._used[:count])[idle], kind="stable")
        kept = np.ones(count, np.bool_)
        kept[idle[smallest[: excess + MAX_IDLE_KEYS // 10]]] = False
        self._used, self._rates = self._used[:count][kept], self._rates[:count][kept]
        names = [key for key, is_kept in zip(self._rows, kept.tolist(), strict=True) if is_kept]
        self._rows = {key: row for row, key in enumerate(names)}
        self._keys, self._is_shared = None, False

    # -- private -------------------------------------------------------------------------------

    def _ensure_writable(self) -> None:
        self._version += 1
        if self._is_shared:
            self._used, self._rates = self._used.copy(), self._rates.copy()
            self._is_shared = False

    def _columns_of(self, amounts: Mapping[str, object]) -> list[int]:
        columns = [self._columns.setdefault(name, len(self._columns)) for name in amounts]
        missing = len(self._columns) - self._used.shape[1]
        if missing > 0:
            self._pad((0, 0), (0, missing))
        return columns

    def _row(self, key: Key) -> int:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._rows)
            self._keys = None
            if row >= self._used.shape[0]:
                self._pad((0, max(self._used.shape[0], 16)), (0, 0))
        return row

    def _pad(self, rows: tuple[int, int], columns: tuple[int, int]) -> None:
        self._used = np.pad(self._used, (rows, columns))
        self._rates = np.pad(self._rates, (rows, columns))


def largest_fractions(used: FloatMatrix) -> FloatVector:
    """Return for each row of *used* the largest of its fractions of the sums of all rows."""
    if not used.size:
        return np.zeros(used.shape[0])
    totals = used.sum(axis=0)
    fractions: FloatVector = (used / np.where(totals > 0, totals, 1.0)).max(axis=1)
    return fractions


def integral(seconds: float, half_life: float) -> float:
    """Return what a rate of 1 during the last *seconds* amounts to."""
    return -math.expm1(-math.log(2) * seconds / half_life) * half_life / math.log(2)


def decay(seconds: float, half_life: float) -> float:
    """Return the factor for what was used *seconds* ago."""
    return math.exp(-math.log(2) * seconds / half_life)


def _advanced(used: FloatMatrix, rates: Matrix, seconds: float, half_life: float) -> FloatMatrix:
    if seconds <= 0:
        return used
    return used * decay(seconds, half_life) + rates * integral(seconds, half_life)
