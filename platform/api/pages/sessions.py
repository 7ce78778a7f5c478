"""Sessions of browsers: a random id in a cookie refers to the bearer token of a caller.

Tokens are held in memory, so that a restart ends all sessions. In the embedded cluster, whose user
signs in by a link, the sessions of this user are written to a private file as digests and continue
after a restart.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from ...kube.private_files import read_private, write_private
from ...machinery.clock import Clock

LIFETIME = timedelta(hours=12)
"""How long a session lasts, unless the token expires before."""

MAX_SESSIONS = 1000
"""Sessions at a time; a further one ends the oldest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A browser that is signed in."""

    token: str
    user: str
    """Name of the user whose token it is."""
    expires_at: datetime
    is_local: bool = False
    """Whether it was created by the link of the embedded cluster."""


class SavedSession(msgspec.Struct, frozen=True):
    """A session by link, as it is stored."""

    digest: str
    user: str
    expires_at: datetime


class SignInFile(msgspec.Struct, frozen=True):
    """Content of the private file by which the user of an embedded cluster signs in."""

    token: str = ""
    """Bearer token of the user."""
    code: str = ""
    """The one-time code; empty once it was used."""
    sessions: tuple[SavedSession, ...] = ()


def read_sign_in_file(path: Path) -> SignInFile:
    """Return the content of *path*; an empty one if there is none, or it is damaged.

    Raises:
        UnsafePathError: other users may have read or written the file.
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(read_private(path), type=SignInFile)
    except (FileNotFoundError, msgspec.DecodeError):
        return SignInFile()


def prepare_sign_in(path: Path, token: str) -> str:
    """Write a new one-time code for the user with *token* to *path*, and return it.

    Sessions that are in the file already continue. To be called before the REST API starts.

    Raises:
        UnsafePathError: other users may have read or written the file.
        OSError: it cannot be read or written.
    """
    code = secrets.token_urlsafe(32)
    stored = read_sign_in_file(path)
    sessions = stored.sessions if stored.token == token else ()
    write_private(path, msgspec.json.encode(SignInFile(token, code, sessions)))
    return code


class Sessions:
    """The sessions of one process."""

    def __init__(
        self, clock: Clock, *, sign_in_file: Path | None = None, lifetime: timedelta = LIFETIME
    ) -> None:
        """Continue the sessions in *sign_in_file*, if there is one.

        Raises:
            UnsafePathError: other users may have read or written the file.
            OSError: it cannot be read.
        """
        self._clock = clock
        self._lifetime = lifetime
        self._path = sign_in_file
        self._local = SignInFile() if sign_in_file is None else read_sign_in_file(sign_in_file)
        self._sessions = {
            saved.digest: Session(
                token=self._local.token,
                user=saved.user,
                expires_at=saved.expires_at,
                is_local=True,
            )
            for saved in self._local.sessions
        }

    def create(self, token: str, user: str, *, expires_at: datetime | None = None) -> str:
        """Create a session of *user* with *token*; return its id.

        *expires_at*: when the token expires, if that is known.
        """
        return self._add(Session(token=token, user=user, expires_at=self._end(expires_at)))

    def token_of_code(self, code: str) -> str | None:
        """Return the token of the one-time code's user; ``None`` if it is wrong or used."""
        known = self._local.code
        is_right = known and hmac.compare_digest(known.encode(), code.encode())
        return self._local.token if is_right else None

    def redeem(self, code: str, user: str, *, expires_at: datetime | None = None) -> str | None:
        """Create a session for the one-time code; ``None`` if it is wrong or was used.

        Raises:
            OSError: the file cannot be written; the code was not used.
        """
        token = self.token_of_code(code)
        if token is None:
            return None
        # In the file the code is void before the session exists: it cannot be used twice.
        self._save(msgspec.structs.replace(self._local, code=""))
        end = self._end(expires_at)
        return self._add(Session(token=token, user=user, expires_at=end, is_local=True))

    def find(self, id_: str) -> Session | None:
        """Return the session with this id, unless it has expired."""
        session = self._sessions.get(_digest(id_))
        if session is None or session.expires_at <= self._clock.now():
            return None
        return session

    def end(self, id_: str) -> None:
        """End a session, if it exists.

        Raises:
            OSError: the file cannot be written; the session would continue after a restart.
        """
        session = self._sessions.pop(_digest(id_), None)
        if session is not None and session.is_local:
            self._save_sessions()

    def _end(self, limit: datetime | None) -> datetime:
        end = self._clock.now() + self._lifetime
        return end if limit is None else min(end, limit)

    def _add(self, session: Session) -> str:
        now = self._clock.now()
        current = {key: each for key, each in self._sessions.items() if each.expires_at > now}
        while len(current) >= MAX_SESSIONS:
            del current[next(iter(current))]
        id_ = secrets.token_urlsafe(32)
        current[_digest(id_)] = session
        self._sessions = current
        if session.is_local:
            self._save_sessions()
        return id_

    def _save_sessions(self) -> None:
        saved = tuple(
            SavedSession(digest=digest, user=session.user, expires_at=session.expires_at)
            for digest, session in self._sessions.items()
            if session.is_local
        )
        self._save(msgspec.structs.replace(self._local, sessions=saved))

    def _save(self, local: SignInFile) -> None:
        if self._path is not None:
            write_private(self._path, msgspec.json.encode(local))
        self._local = local


def _digest(id_: str) -> str:
    """Return the key of a session: neither memory nor the file has what a cookie contains."""
    return hashlib.sha256(id_.encode()).hexdigest()
