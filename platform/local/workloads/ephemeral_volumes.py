"""Controller of ephemeral volumes: creates the claims of pods that name a template for one.

A claim is deleted with its pod, which owns it, by the garbage collector.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder, object_reference
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ...model.names import PERSISTENTVOLUMECLAIMS, PODS
from .stateful_types import Claim
from .types import Pod, Volume

VOLUME_CLAIMS_INDEX = "ephemeral-volume-claims"


def volume_claims_of(pod: Pod) -> Iterator[str]:
    """Yield the keys of the claims of the ephemeral volumes of *pod*."""
    for volume in pod.spec.volumes:
        if volume.ephemeral is not None:
            yield f"{pod.metadata.namespace}/{_claim_name(pod, volume)}"


def _claim_name(pod: Pod, volume: Volume) -> str:
    return f"{pod.metadata.name}-{volume.name}"


@dataclass(frozen=True, slots=True)
class EphemeralVolumesView:
    """A pod, and by name the claims that exist of those that its ephemeral volumes have."""

    pod: Pod
    claims: Mapping[str, Claim]


@dataclass(frozen=True, slots=True)
class CreateVolumeClaim:
    """Create the claim of a volume."""

    volume: Volume


@dataclass(frozen=True, slots=True)
class ReportForeignClaim:
    """Report that a claim of this name exists that is not of the pod."""

    volume: Volume


EphemeralVolumesEffect = CreateVolumeClaim | ReportForeignClaim


class EphemeralVolumeController(Controller[EphemeralVolumesView, EphemeralVolumesEffect]):
    """Creates the claims of ephemeral volumes."""

    def __init__(
        self,
        client: Client,
        *,
        pods: Informer[Pod],
        claims: Informer[Claim],
        recorder: Recorder,
        clock: Clock | None = None,
    ) -> None:
        """*pods* has the index of :func:`volume_claims_of`."""
        super().__init__("ephemeral-volumes", ControllerSettings(), clock=clock)
        self._pods = pods
        self._claims = WriteThroughCache(
            client, PERSISTENTVOLUMECLAIMS, Claim, claims, clock=self.clock
        )
        self._recorder = recorder
        self.sources = [KindSource(claims, self._on_claim), KindSource(pods, self._on_pod)]

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and any(volume_claims_of(new)):
            self.queue.add(new.metadata.key)

    def _on_claim(self, old: Claim | None, new: Claim | None) -> None:
        """A claim was deleted: the pod whose volume has its name gets its own now."""
        if old is not None and new is None:
            for pod in self._pods.by_index(VOLUME_CLAIMS_INDEX, old.metadata.key):
                self.queue.add(pod.metadata.key)

    async def observe(self, sync: Sync) -> EphemeralVolumesView | None:
        """Return the pod with its claims; ``None`` if it needs none any more."""
        pod = self._pods.get(sync.key)
        if pod is None or pod.is_terminating or pod.is_finished:
            return None
        found = (self._claims.get(key) for key in volume_claims_of(pod))
        return EphemeralVolumesView(
            pod, {claim.metadata.name: claim for claim in found if claim is not None}
        )

    def decide(self, view: EphemeralVolumesView) -> Iterator[EphemeralVolumesEffect]:
        """Return which claims are missing, and which are not of the pod."""
        for volume in view.pod.spec.volumes:
            if volume.ephemeral is None:
                continue
            claim = view.claims.get(_claim_name(view.pod, volume))
            if claim is None:
                yield CreateVolumeClaim(volume)
            elif not _is_owned(claim, view.pod):
                yield ReportForeignClaim(volume)

    async def execute(
        self, sync: Sync, view: EphemeralVolumesView, effect: EphemeralVolumesEffect
    ) -> None:
        """Create a claim, or record an event."""
        match effect:
            case CreateVolumeClaim(volume):
                await self._create(sync, view.pod, volume)
            case ReportForeignClaim(volume):
                meta, name = view.pod.metadata, _claim_name(view.pod, volume)
                self._recorder.record(
                    object_reference(PODS, meta),
                    type="Warning",
                    reason="FailedBinding",
                    message=(
                        f"ephemeral volume {volume.name}: PVC {meta.namespace}/{name} was not "
                        f"created for pod {meta.namespace}/{meta.name} (pod is not owner)"
                    ),
                )
            case _:
                assert_never(effect)

    async def _create(self, sync: Sync, pod: Pod, volume: Volume) -> None:
        meta = pod.metadata
        try:
            await self._claims.create(_new_claim(pod, volume), namespace=meta.namespace)
        except AlreadyExistsError:  # maybe by a creation whose response was lost
            await self._claims.read(f"{meta.namespace}/{_claim_name(pod, volume)}")
            sync.again = True


def _new_claim(pod: Pod, volume: Volume) -> dict[str, Any]:
    template = volume.ephemeral.volume_claim_template if volume.ephemeral is not None else {}
    given = template.get("metadata") or {}
    owner = {
        "apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    metadata = {key: given[key] for key in ("labels", "annotations") if given.get(key)}
    metadata |= {"name": _claim_name(pod, volume), "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": template.get("spec") or {}}


def _is_owned(claim: Claim, pod: Pod) -> bool:
    owner = claim.metadata.controller
    return owner is not None and owner.uid == pod.metadata.uid
