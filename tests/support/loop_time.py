"""Timeouts of the running loop, expired by advancing its time instead of by waiting.

A limit that is short enough to wait for is also short enough to be missed on a busy machine.
"""

import asyncio

import pytest


class LoopTime:
    """The time of the running loop, ahead of the true one by as much as a test likes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        true, self._offset = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: true() + self._offset)

    def advance(self, seconds: float) -> None:
        """Go ahead: what has waited for less than *seconds* has waited for long enough."""
        self._offset += seconds
