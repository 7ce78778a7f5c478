"""Webhooks that a test serves."""

from typing import Any

import pytest

from batholith.kube.errors import ApiError
from batholith.testing import ApiServer

Json = dict[str, Any]
MAP: Json = {"metadata": {"name": "a"}, "data": {"size": "9"}}


def limit(request: Json) -> str | None:
    return "too large" if int(request["object"]["data"]["size"]) > 5 else None


async def test_a_function_denies_requests_until_the_end_of_its_block() -> None:
    async with ApiServer() as server, server.new_namespace("webhooks") as namespace:
        async with namespace.webhook(limit, "ConfigMap") as webhook:
            with pytest.raises(ApiError, match="denied the request: too large"):
                await namespace.create("ConfigMap", MAP)
            await namespace.create("ConfigMap", {**MAP, "data": {"size": "1"}})
            sizes = [review["object"]["data"]["size"] for review in webhook.requests]
            assert sizes == ["9", "1"]
            # Only in its namespace.
            await namespace.create("ConfigMap", MAP, namespace="default")
            assert len(webhook.requests) == 2
        await namespace.patch("ConfigMap", "a", {"data": {"size": "9"}})
        assert server.objects("ValidatingWebhookConfiguration") == {}


async def test_a_function_changes_objects() -> None:
    async def add(request: Json) -> Json:
        obj: Json = request["object"]
        obj["metadata"]["labels"] = {"reviewed": "yes"}
        del obj["data"]
        return obj

    async with (
        ApiServer() as server,
        server.new_namespace() as namespace,
        namespace.webhook(add, "configmaps", mutating=True, operations=["CREATE"]),
    ):
        created = await namespace.create("ConfigMap", MAP)
        assert created["metadata"]["labels"] == {"reviewed": "yes"}
        assert "data" not in created


async def test_an_error_of_the_function_fails_the_test() -> None:
    def fail(request: Json) -> None:
        assert request["operation"] == "DELETE"

    async with ApiServer() as server, server.new_namespace() as namespace:
        with pytest.raises(AssertionError):
            async with namespace.webhook(fail, "ConfigMap"):
                with pytest.raises(ApiError, match="the reviewer raised AssertionError"):
                    await namespace.create("ConfigMap", MAP)
        assert server.objects("ValidatingWebhookConfiguration") == {}
        with pytest.raises(TypeError, match="no option failurepolicy"):
            async with namespace.webhook(fail, "ConfigMap", failurepolicy="Ignore"):
                pass
