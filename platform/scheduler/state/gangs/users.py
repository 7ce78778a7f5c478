"""Who has submitted a gang."""

from ....model import names
from .gang import Gang


def user_of(gang: Gang) -> str:
    """Return who submitted *gang*, as far as that is known, or else its namespace."""
    annotations = gang.podgroup.metadata.annotations if gang.podgroup else {}
    return annotations.get(names.SUBMITTED_BY) or gang.namespace
