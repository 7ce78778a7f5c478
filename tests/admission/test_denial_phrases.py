"""Denials contain the phrases that clients match, from the rules and from API servers."""

from pathlib import Path

import pytest
from support.admission import ObjectReaderStub, denial
from support.api_servers import ServerFactory
from support.denial_phrases import CASES, SETTINGS, DenialCase, filled, phrases
from support.denials_on_servers import create_queues, denials

from batholith.admission import webhooks
from batholith.model import crds


def test_each_phrase_of_the_table_has_a_case() -> None:
    assert sorted(CASES) == sorted(phrases())


@pytest.mark.parametrize("phrase", CASES)
def test_denials_of_the_rules_contain_the_phrase(phrase: str) -> None:
    denial_case: DenialCase = CASES[phrase]
    message = denial(
        denial_case.new,
        ObjectReaderStub(*denial_case.existing_queues),
        old=denial_case.old,
        settings=SETTINGS,
    )
    assert filled(phrase, denial_case.values) in message


async def test_denials_of_servers_contain_the_phrases(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """On the embedded server, which calls the rules in process, and a real one with webhooks."""
    cases = {phrase: each for phrase, each in CASES.items() if not each.not_by_servers}
    rules = webhooks(SETTINGS)
    async with servers.start(tmp_path, crds=crds.load(), webhooks=rules) as server:
        await create_queues(server, cases.values())
        messages = await denials(server, cases)
    wrong = {
        phrase: text
        for phrase, text in messages.items()
        if filled(phrase, cases[phrase].values) not in text or "denied the request" not in text
    }
    assert wrong == {}
