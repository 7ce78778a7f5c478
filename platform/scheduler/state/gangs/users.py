"""Who has submitted a gang."""

from ....model import names
from .gang import Gang

MAX_LENGTH = 256
"""Characters of a user's name: users may write the annotation, and the names are remembered."""


def user_of(gang: Gang) -> str:
    """Return who submitted *gang*, as far as that is known, or else its namespace."""
    annotations = gang.podgroup.metadata.annotations if gang.podgroup else {}
    user = annotations.get(names.SUBMITTED_BY, "")
    return user if 0 < len(user) <= MAX_LENGTH else gang.namespace
