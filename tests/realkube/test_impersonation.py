"""Impersonation: the embedded server responds as kube-apiserver does."""

from pathlib import Path

import pytest
from support.embedded_apiserver import embedded_server
from support.impersonation import CASES, self_review
from support.realkube import MASTERS, RealKubeOptions, real_server
from support.response_comparison import ResponseComparison

USERS = {"admin": MASTERS, "scheduler": ("team",)}
"""Who may impersonate, and who may not, by the name of both servers' users."""


@pytest.mark.denied
async def test_impersonated_users_and_errors_are_those_of_kube_apiserver(tmp_path: Path) -> None:
    options = RealKubeOptions(users=USERS)
    async with (
        real_server(tmp_path / "real", options) as theirs,
        embedded_server(tmp_path / "ours") as ours,
    ):
        for headers in CASES:
            for user in USERS:
                if headers == (("Impersonate-User", ""),) and user != "admin":
                    continue  # not impersonation: the groups of the user itself differ
                expected = await self_review(theirs, theirs.tokens[user], headers)
                actual = await self_review(ours, ours.tokens[user], headers)
                assert actual[0] == expected[0], (user, headers, actual, expected)
                shown = [
                    body["status"] if status == 201 else body for status, body in (expected, actual)
                ]
                assert ResponseComparison().differences(*shown) == [], (user, headers)
