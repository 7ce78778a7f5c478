"""Sessions: what is remembered of a browser, and for how long."""

from datetime import timedelta
from pathlib import Path

import pytest
from support.jumping_clock import HOUR, JumpingClock

from batholith.api.pages.sessions import MAX_SESSIONS, Sessions, prepare_sign_in
from batholith.kube.errors import UnsafePathError


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


def test_a_session_ends_with_its_lifetime(clock: JumpingClock) -> None:
    sessions = Sessions(clock, lifetime=timedelta(hours=1))
    id_ = sessions.create("secret", "anna")
    clock.wrong_by = 0.9 * HOUR
    assert sessions.find(id_) is not None
    clock.wrong_by = 1.1 * HOUR
    assert sessions.find(id_) is None


def test_a_session_ends_with_its_token(clock: JumpingClock) -> None:
    sessions = Sessions(clock)
    id_ = sessions.create("secret", "anna", expires_at=clock.now() + timedelta(minutes=5))
    clock.wrong_by = 0.2 * HOUR
    assert sessions.find(id_) is None


def test_a_session_that_was_ended_is_not_found(clock: JumpingClock) -> None:
    sessions = Sessions(clock)
    ended, other = sessions.create("secret", "anna"), sessions.create("secret", "anna")
    sessions.end(ended)
    assert sessions.find(ended) is None
    assert sessions.find(other) is not None


def test_the_oldest_session_ends_where_there_would_be_too_many(clock: JumpingClock) -> None:
    sessions = Sessions(clock)
    ids = [sessions.create("secret", "anna") for _ in range(MAX_SESSIONS + 1)]
    assert sessions.find(ids[0]) is None
    assert all(sessions.find(id_) for id_ in ids[1:])


def test_a_code_is_redeemed_once_also_after_a_restart(tmp_path: Path, clock: JumpingClock) -> None:
    path = tmp_path / "sign-in.json"
    code = prepare_sign_in(path, "secret")
    sessions = Sessions(clock, sign_in_file=path)
    assert sessions.redeem("wrong", "admin") is None
    assert sessions.redeem("", "admin") is None
    assert sessions.redeem(code, "admin") is not None
    assert sessions.redeem(code, "admin") is None
    restarted = Sessions(clock, sign_in_file=path)
    assert restarted.token_of_code(code) is None
    assert restarted.token_of_code("") is None
    assert restarted.redeem(code, "admin") is None


def test_sessions_by_link_survive_a_restart_and_sessions_by_token_do_not(
    tmp_path: Path, clock: JumpingClock
) -> None:
    path = tmp_path / "sign-in.json"
    code = prepare_sign_in(path, "secret")
    sessions = Sessions(clock, sign_in_file=path)
    by_link, by_token = sessions.redeem(code, "admin"), sessions.create("another", "anna")
    assert by_link is not None
    restarted = Sessions(clock, sign_in_file=path)
    found = restarted.find(by_link)
    assert found is not None
    assert (found.token, found.user) == ("secret", "admin")
    assert restarted.find(by_token) is None
    assert b"another" not in path.read_bytes()
    assert by_link.encode() not in path.read_bytes()


def test_a_session_by_link_that_was_ended_stays_ended_after_a_restart(
    tmp_path: Path, clock: JumpingClock
) -> None:
    path = tmp_path / "sign-in.json"
    code = prepare_sign_in(path, "secret")
    sessions = Sessions(clock, sign_in_file=path)
    id_ = sessions.redeem(code, "admin")
    assert id_ is not None
    sessions.end(id_)
    assert Sessions(clock, sign_in_file=path).find(id_) is None


def test_a_new_code_keeps_sessions_unless_the_token_is_another_one(
    tmp_path: Path, clock: JumpingClock
) -> None:
    path = tmp_path / "sign-in.json"
    code = prepare_sign_in(path, "secret")
    id_ = Sessions(clock, sign_in_file=path).redeem(code, "admin")
    assert id_ is not None
    prepare_sign_in(path, "secret")
    assert Sessions(clock, sign_in_file=path).find(id_) is not None
    prepare_sign_in(path, "changed")
    assert Sessions(clock, sign_in_file=path).find(id_) is None


def test_a_file_that_others_may_read_is_not_used(tmp_path: Path, clock: JumpingClock) -> None:
    path = tmp_path / "sign-in.json"
    prepare_sign_in(path, "secret")
    path.chmod(0o644)
    with pytest.raises(UnsafePathError):
        Sessions(clock, sign_in_file=path)
