"""Uids of objects that were deleted recently."""

_MAX_UIDS = 10_000


class RecentUids:
    """The uids that were added last, up to a limit."""

    def __init__(self, limit: int = _MAX_UIDS) -> None:
        self._limit = limit
        self._uids: dict[str, None] = {}

    def add(self, uid: str) -> None:
        """Add *uid*; forget the oldest beyond the limit."""
        self._uids.pop(uid, None)
        self._uids[uid] = None
        if len(self._uids) > self._limit:
            del self._uids[next(iter(self._uids))]

    def __contains__(self, uid: str) -> bool:
        """Whether *uid* was added recently."""
        return uid in self._uids
