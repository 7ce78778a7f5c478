"""Objects of other API servers that are deleted with their namespace."""

from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from ..admission.webhook_client import CallError
from .client import NAMESPACE_CONTROLLER, AggregatorClient
from .remote_apis import RemoteApi, RemoteApis


class RemainingContent(NamedTuple):
    """What is left in a namespace on other servers."""

    objects: int = 0
    problem: str = ""
    """Why this is not known of all servers."""


class _List(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw]


class RemoteContent:
    """Deletes the objects of a namespace on other API servers."""

    def __init__(self, apis: RemoteApis, client: AggregatorClient) -> None:
        self._apis, self._client = apis, client

    async def delete_in(self, namespace: str) -> RemainingContent:
        """Delete all objects of *namespace*; return what remains."""
        remaining, problems = 0, list[str]()
        for api, resources in self._apis.served():
            if not api.available:
                problems.append(f"{api.group}/{api.version}: stale GroupVersion discovery")
                continue
            for each in resources:
                verbs = each["verbs"]
                if each["scope"] != "Namespaced" or not {"list", "deletecollection"} <= {*verbs}:
                    continue
                path = f"{api.path}/namespaces/{quote(namespace)}/{quote(each['resource'])}"
                try:
                    remaining += await self._delete(api, path)
                except CallError as error:
                    problems.append(str(error))
        return RemainingContent(remaining, "; ".join(problems))

    async def _delete(self, api: RemoteApi, path: str) -> int:
        """Delete a collection; return how many of its objects remain.

        Raises:
            CallError: the server cannot be reached, or refuses.
        """
        if not await self._count(api, path):
            return 0
        status, _ = await self._client.call(api, "DELETE", path, user=NAMESPACE_CONTROLLER)
        if status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            raise CallError(f"cannot delete {path}: status {status}")
        return await self._count(api, path)

    async def _count(self, api: RemoteApi, path: str) -> int:
        status, body = await self._client.call(api, "GET", path, user=NAMESPACE_CONTROLLER)
        if status == HTTPStatus.NOT_FOUND:
            return 0
        if status != HTTPStatus.OK:
            raise CallError(f"cannot list {path}: status {status}")
        try:
            return len(msgspec.json.decode(body, type=_List).items)
        except msgspec.DecodeError as error:
            raise CallError(f"cannot list {path}: {error}") from error
