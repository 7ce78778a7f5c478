"""Writes of children as the API servers carry them out: preconditions, lost responses, events."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, add_namespace
from support.children import LABELS, POD_SPEC, Anything, Json, Pod
from support.embedded_apiserver import Server
from support.running_controller import FakeRecorder

from batholith.kube.client.client import Client
from batholith.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from batholith.machinery.claim import Claim, Claimer
from batholith.machinery.pod_control import (
    ApiObjectControl,
    Owner,
    finalizer_removal,
    from_template,
    is_namespace_terminating,
    pod_control,
)
from batholith.model.meta import HasMeta
from batholith.model.names import CONFIGMAPS, NAMESPACES, PODS, SERVICES
from batholith.model.selectors import parse_label_selector
from batholith.testing import ApiServer, RequestMatcher

FINALIZER = "example.com/tracking"
OTHERS = {"finalizers": ["example.com/other", FINALIZER]}


class Controller:
    """The controls of one owner."""

    def __init__(self, client: Client, owner: Anything) -> None:
        self.client = client
        self.events = FakeRecorder()
        self.owner = Owner(resource=CONFIGMAPS, metadata=owner.metadata)
        self.pods = pod_control(client, Pod, recorder=self.events)

    @property
    def recorded(self) -> list[tuple[str, str, str]]:
        """Type, reason and message of each event; all are on the owner."""
        assert {kind for kind, *_ in self.events.events} <= {"ConfigMap"}
        return [event[2:] for event in self.events.events]

    def body(self, name: str, *, generate_name: str = "", **metadata: Any) -> Json:
        template = {"metadata": {"labels": LABELS, **metadata}, "spec": POD_SPEC}
        return from_template(template, self.owner, name=name, generate_name=generate_name)

    async def create(self, name: str, **metadata: Any) -> Pod:
        return (await self.pods.create(self.owner, self.body(name, **metadata))).child

    async def orphan(self, name: str, **metadata: Any) -> Pod:
        body = self.body(name, **metadata)
        del body["metadata"]["ownerReferences"]
        return await self.client.create(
            PODS, body, namespace=self.owner.metadata.namespace, view=Pod
        )

    async def read(self, name: str) -> Pod:
        return await self.client.get(PODS, name, namespace=self.owner.metadata.namespace, view=Pod)

    async def claim(self, *candidates: Pod) -> Claim[Pod]:
        async def read_owner() -> HasMeta:
            meta = self.owner.metadata
            return await self.client.get(
                CONFIGMAPS, meta.name, namespace=meta.namespace, view=Anything
            )

        claimer = Claimer(
            control=self.pods,
            owner=self.owner,
            selector=parse_label_selector("app=web"),
            read_owner=read_owner,
            finalizer=FINALIZER,
        )
        return await claimer.claim(candidates)


@pytest.fixture
async def controller(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Controller]:
    async with servers.start(tmp_path) as server, server.client() as client:
        yield await start(server, client)


async def start(server: Server, client: Client) -> Controller:
    await add_namespace(server, "web")
    owner = {"metadata": {"name": "web"}}
    return Controller(
        client, await client.create(CONFIGMAPS, owner, namespace="web", view=Anything)
    )


async def test_children_are_created_patched_and_deleted(controller: Controller) -> None:
    child = await controller.create("web-0", **OTHERS)
    assert controller.owner.controls(child)
    await controller.pods.patch(child.metadata, finalizer_removal(FINALIZER))
    assert (await controller.read("web-0")).metadata.finalizers == ("example.com/other",)
    await controller.pods.patch(child.metadata, finalizer_removal("example.com/other"))
    await controller.pods.delete(controller.owner, child.metadata)
    with pytest.raises(NotFoundError):
        await controller.pods.delete(controller.owner, child.metadata)
    assert controller.recorded == [
        ("Normal", "SuccessfulCreate", "Created pod: web-0"),
        ("Normal", "SuccessfulDelete", "Deleted pod: web-0"),
    ]


async def test_creation_that_is_rejected_is_an_event(controller: Controller) -> None:
    with pytest.raises(InvalidError):
        await controller.create("Not_A_Name")
    ((event_type, reason, message),) = controller.recorded
    assert (event_type, reason) == ("Warning", "FailedCreate")
    assert message.startswith('Error creating: Pod "Not_A_Name" is invalid')


async def test_object_of_the_same_name_is_not_changed(controller: Controller) -> None:
    """INV-OW-2."""
    first = await controller.orphan("web-0")
    await controller.client.delete(PODS, "web-0", namespace="web", grace_period=0)
    second = await controller.orphan("web-0")
    claim = await controller.claim(first)
    assert claim.children == ()
    assert [isinstance(error, ApiError) for error in claim.errors] == [True]
    with pytest.raises((InvalidError, ConflictError)):
        await controller.pods.patch(first.metadata, {"metadata": {"labels": {"app": "db"}}})
    with pytest.raises(NotFoundError):
        await controller.pods.delete(controller.owner, first.metadata)
    assert await controller.read("web-0") == second
    assert controller.recorded == []


async def test_orphan_is_adopted_and_released_again(controller: Controller) -> None:
    """INV-OW-1, INV-OW-3."""
    orphan = await controller.orphan("web-0", finalizers=["example.com/other"])
    claim = await controller.claim(orphan)
    assert claim.adopted == {orphan.metadata.uid}
    assert not claim.errors
    adopted = await controller.read("web-0")
    assert adopted.metadata.owner_references == (controller.owner.controller_reference(),)
    assert set(adopted.metadata.finalizers) == {"example.com/other", FINALIZER}
    assert (await controller.claim(adopted)).children == (adopted,)
    assert await controller.read("web-0") == adopted

    await controller.pods.patch(adopted.metadata, {"metadata": {"labels": {"app": "db"}}})
    relabelled = await controller.read("web-0")
    claim = await controller.claim(relabelled)
    assert (claim.children, claim.errors) == ((), ())
    released = await controller.read("web-0")
    assert released.metadata.owner_references == ()
    assert released.metadata.finalizers == ("example.com/other",)
    assert (await controller.claim(relabelled)).errors == ()  # the informer may lag
    assert await controller.read("web-0") == released


async def test_first_of_two_owners_adopts(controller: Controller) -> None:
    """INV-OW-1."""
    orphan = await controller.orphan("web-0")
    other = await controller.client.create(
        CONFIGMAPS, {"metadata": {"name": "other"}}, namespace="web", view=Anything
    )
    assert (await controller.claim(orphan)).adopted
    claim = await Controller(controller.client, other).claim(orphan)
    assert claim.children == ()
    assert [type(error) for error in claim.errors] == [InvalidError]
    (reference,) = (await controller.read("web-0")).metadata.owner_references
    assert reference.uid == controller.owner.metadata.uid


async def test_deleted_owner_adopts_nothing(controller: Controller) -> None:
    """INV-OW-4."""
    orphan = await controller.orphan("web-0")
    await controller.client.delete(CONFIGMAPS, "web", namespace="web")
    claim = await controller.claim(orphan)
    assert [str(error) for error in claim.errors] == [
        "cannot adopt: ConfigMap web/web does not exist"
    ]
    assert await controller.read("web-0") == orphan


async def test_namespace_that_is_being_deleted_is_no_event(controller: Controller) -> None:
    await controller.create("web-0", finalizers=[FINALIZER])  # delays the end of the namespace
    await controller.client.delete(NAMESPACES, "web")
    with pytest.raises(ForbiddenError) as raised:
        await controller.create("web-1")
    assert is_namespace_terminating(raised.value)
    assert len(controller.recorded) == 1
    await controller.client.patch(
        PODS, "web-0", {"metadata": {"finalizers": None}}, namespace="web"
    )


async def test_service_is_a_child_like_a_pod(controller: Controller) -> None:
    services = ApiObjectControl(controller.client, SERVICES, Anything, recorder=controller.events)
    spec = {"clusterIP": "None", "selector": LABELS, "ports": [{"port": 80}]}
    template = {"metadata": {"labels": LABELS}, "spec": spec}
    body = from_template(template, controller.owner, name="web-0")
    created = await services.create(controller.owner, body)
    again = await services.create(controller.owner, body)
    assert again.existed and again.child.metadata.uid == created.child.metadata.uid
    await services.delete(controller.owner, created.child.metadata)
    assert not (await controller.client.list(SERVICES, namespace="web", view=Anything)).items
    assert [message for _, _, message in controller.recorded] == [
        "Created service: web-0",
        "Deleted service: web-0",
    ]


# Lost responses: the embedded server injects them.


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as api:
        yield api


@pytest.fixture
async def local(api: ApiServer) -> AsyncIterator[Controller]:
    async with api.client() as client:
        owner = {"metadata": {"name": "web"}}
        created = await client.create(CONFIGMAPS, owner, namespace="default", view=Anything)
        yield Controller(client, created)


async def test_fixed_name_whose_response_was_lost_is_recognized(
    api: ApiServer, local: Controller
) -> None:
    api.faults.lose_response(RequestMatcher("create", PODS))
    with pytest.raises(ConnectionLostError):
        await local.create("web-0")
    again = await local.pods.create(local.owner, local.body("web-0"))
    assert again.existed
    assert len(api.objects(PODS)) == 1
    assert local.recorded == []


async def test_fixed_name_of_another_object_is_an_error(api: ApiServer, local: Controller) -> None:
    await local.orphan("web-0")
    with pytest.raises(AlreadyExistsError):
        await local.create("web-0")
    ((_, reason, _),) = local.recorded
    assert reason == "FailedCreate"


async def test_fixed_name_of_a_terminating_child_is_an_error(
    api: ApiServer, local: Controller
) -> None:
    child = await local.create("web-0", finalizers=[FINALIZER])
    await local.pods.delete(local.owner, child.metadata)
    with pytest.raises(AlreadyExistsError):
        await local.create("web-0")


async def test_generated_name_of_another_child_is_an_error(
    api: ApiServer, local: Controller
) -> None:
    """Two children must not be one: the caller chooses another name."""
    await local.create("web-bcdfg", generate_name="web-")
    with pytest.raises(AlreadyExistsError):
        await local.create("web-bcdfg", generate_name="web-")


async def test_child_that_is_deleted_after_a_name_conflict_is_an_error(
    api: ApiServer, local: Controller
) -> None:
    await local.create("web-0")
    api.faults.error(RequestMatcher("get", PODS), 404)
    with pytest.raises(AlreadyExistsError):
        await local.create("web-0")


@pytest.mark.parametrize("found", [True, False])
async def test_conflict_of_a_deletion_is_verified(
    api: ApiServer, local: Controller, found: bool
) -> None:
    child = await local.create("web-0")
    api.faults.error(RequestMatcher("delete", PODS), 409)
    if not found:
        api.faults.error(RequestMatcher("get", PODS), 404)
    with pytest.raises(ConflictError if found else NotFoundError):
        await local.pods.delete(local.owner, child.metadata)
    assert [reason for _, reason, _ in local.recorded] == [
        "SuccessfulCreate",
        *(["FailedDelete"] if found else []),
    ]


async def test_reasons_of_events_may_have_a_suffix(local: Controller) -> None:
    control = pod_control(local.client, Pod, recorder=local.events, reason_suffix="Pod")
    created = await control.create(local.owner, local.body("web-0"))
    await control.delete(local.owner, created.child.metadata)
    assert [reason for _, reason, _ in local.recorded] == [
        "SuccessfulCreatePod",
        "SuccessfulDeletePod",
    ]


async def test_control_without_recorder_records_nothing(api: ApiServer, local: Controller) -> None:
    control: ApiObjectControl[Pod] = pod_control(local.client, Pod)
    child = await control.create(local.owner, local.body("web-0"))
    await control.delete(local.owner, child.child.metadata)
    assert local.recorded == []
