"""ETag, If-Match and If-None-Match of single objects: the entity tag is the resourceVersion."""

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header

from ..problems import ProblemError, invalid_fields

ANY = "*"
"""Matches every existing object."""

_TAG = r'(?:W/)?"[\x21\x23-\x7e]*"'
TAGS = rf"^\s*(?:\*|{_TAG}(?:\s*,\s*{_TAG})*)\s*$"
"""Syntax of the values of both headers."""

_TAGS = re.compile(TAGS)
_EACH_TAG = re.compile(_TAG)


def etag(resource_version: str) -> str:
    """Return the entity tag of a version."""
    return f'"{resource_version}"'


@dataclass(frozen=True, slots=True)
class EntityTags:
    """Entity tags in a header; all versions if :attr:`any_version`."""

    tags: tuple[str, ...] = ()
    any_version: bool = False

    @classmethod
    def parse(cls, text: str, *, header: str) -> "EntityTags":
        """Parse the value of *header*.

        Raises:
            ProblemError: 422 if it is not a list of entity tags.
        """
        if len(text) > 4096 or not _TAGS.fullmatch(text):
            raise invalid_fields((header, 'must be "*" or a list of quoted entity tags'))
        if text.strip() == ANY:
            return cls(any_version=True)
        return cls(tuple(_EACH_TAG.findall(text)))


@dataclass(frozen=True, slots=True)
class Preconditions:
    """``If-Match`` of a write."""

    match: EntityTags | None = None

    @property
    def is_versioned(self) -> bool:
        """Whether the write applies to certain versions only."""
        return self.match is not None and not self.match.any_version

    def check(self, resource_version: str) -> None:
        """Check the version that exists; weak tags never match.

        Raises:
            ProblemError: 412 if it is another one.
        """
        match = self.match
        if match is None or match.any_version or etag(resource_version) in match.tags:
            return
        raise self.failed()

    @staticmethod
    def failed() -> ProblemError:
        """Return the error of a write whose object has changed."""
        return ProblemError(412, "the object has another version than If-Match names")


async def _preconditions(
    if_match: Annotated[
        str | None,
        Header(
            description='Entity tags of the versions that may be changed, or `*`: e.g. `"4711"`.',
            json_schema_extra={"pattern": TAGS},
        ),
    ] = None,
) -> Preconditions:
    if if_match is None:
        return Preconditions()
    return Preconditions(EntityTags.parse(if_match, header="If-Match"))


async def _known_versions(
    if_none_match: Annotated[
        str | None,
        Header(
            description="Entity tags of versions that the caller has: then 304 for them.",
            json_schema_extra={"pattern": TAGS},
        ),
    ] = None,
) -> EntityTags:
    if if_none_match is None:
        return EntityTags()
    return EntityTags.parse(if_none_match, header="If-None-Match")


def is_known(known: EntityTags, resource_version: str) -> bool:
    """Return whether the caller has this version; a weak tag equals a strong one here."""
    tags = {tag.removeprefix("W/") for tag in known.tags}
    return known.any_version or etag(resource_version) in tags


IfMatch = Annotated[Preconditions, Depends(_preconditions)]
"""Preconditions of a write on one object."""
KnownVersions = Annotated[EntityTags, Depends(_known_versions)]
"""``If-None-Match`` of a GET."""
