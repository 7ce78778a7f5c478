"""Refusals contain the phrases that clients match on: the rules, and servers that ask them."""

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
def test_the_rules_say_it(phrase: str) -> None:
    case: DenialCase = CASES[phrase]
    said = denial(
        case.new, ObjectReaderStub(*case.existing_queues), old=case.old, settings=SETTINGS
    )
    assert filled(phrase, case.values) in said


async def test_servers_that_ask_the_rules_say_it(servers: ServerFactory, tmp_path: Path) -> None:
    """The embedded server, which has them built in, and a real one, which calls webhooks."""
    cases = {phrase: case for phrase, case in CASES.items() if not case.not_by_servers}
    asked = webhooks(SETTINGS)
    async with servers.start(tmp_path, crds=crds.load(), webhooks=asked) as server:
        await create_queues(server, cases.values())
        said = await denials(server, cases)
    wrong = {
        phrase: text
        for phrase, text in said.items()
        if filled(phrase, cases[phrase].values) not in text or "denied the request" not in text
    }
    assert wrong == {}
