"""kubectl apply and diff on the server, on both servers."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.api_servers import ServerFactory
from support.kubectl import Kubectl, needs_kubectl

pytestmark = pytest.mark.process

MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {x: "1", y: "1"}
"""
CHANGED = MAP.replace('x: "1"', 'x: "2"')


@pytest.fixture
async def kubectl(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Kubectl]:
    needs_kubectl()
    home = tmp_path / "home"
    home.mkdir()
    async with servers.start(tmp_path) as server:
        yield Kubectl(server, home)


async def _managers(kubectl: Kubectl, *more: str) -> list[tuple[str, str]]:
    shown = await kubectl("get", "cm", "a", "-o", "json", *more)
    entries = json.loads(shown)["metadata"].get("managedFields", [])
    return sorted((entry["manager"], entry["operation"]) for entry in entries)


async def test_conflicts_are_shown_and_can_be_forced(kubectl: Kubectl) -> None:
    applied = ("apply", "--server-side", "-f", "-")
    assert await kubectl(*applied, stdin=MAP) == "configmap/a serverside-applied\n"
    other = (*applied, "--field-manager", "other")
    refused = await kubectl.run(*other, stdin=CHANGED)
    assert refused.code == 1
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .data.x' in refused.err
    await kubectl(*other, "--force-conflicts", stdin=CHANGED)
    assert await kubectl("get", "cm", "a", "-o", "jsonpath={.data.x}") == "2"
    assert await _managers(kubectl) == []
    assert await _managers(kubectl, "--show-managed-fields") == [
        ("kubectl", "Apply"),
        ("other", "Apply"),
    ]


async def test_a_dry_run_and_a_diff_change_nothing(kubectl: Kubectl) -> None:
    await kubectl("apply", "--server-side", "-f", "-", stdin=MAP)
    dry = ("apply", "--server-side", "--dry-run=server", "-f", "-", "-o", "jsonpath={.data.x}")
    assert await kubectl(*dry, stdin=CHANGED) == "2"
    same = await kubectl.run("diff", "--server-side", "-f", "-", stdin=MAP)
    assert (same.code, same.out) == (0, "")
    differs = await kubectl.run("diff", "--server-side", "-f", "-", stdin=CHANGED)
    assert differs.code == 1
    assert '-  x: "1"\n+  x: "2"' in differs.out
    assert await kubectl("get", "cm", "a", "-o", "jsonpath={.data.x}") == "1"


async def test_fields_of_a_client_side_apply_move_to_the_server(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=MAP)
    assert await _managers(kubectl, "--show-managed-fields") == [
        ("kubectl-client-side-apply", "Update")
    ]
    without = MAP.replace(', y: "1"', "")
    await kubectl("apply", "--server-side", "-f", "-", stdin=without)
    assert await kubectl("get", "cm", "a", "-o", "jsonpath={.data}") == '{"x":"1"}'
    assert ("kubectl", "Apply") in await _managers(kubectl, "--show-managed-fields")


async def test_a_label_of_another_command_survives_an_apply(kubectl: Kubectl) -> None:
    await kubectl("apply", "--server-side", "-f", "-", stdin=MAP)
    await kubectl("label", "cm", "a", "l=1")
    await kubectl("apply", "--server-side", "-f", "-", stdin=CHANGED)
    assert await kubectl("get", "cm", "a", "-o", "jsonpath={.metadata.labels}") == '{"l":"1"}'
    assert ("kubectl-label", "Update") in await _managers(kubectl, "--show-managed-fields")
