"""The podgroup controller in a simulated cluster, for random histories, and its invariants."""

from typing import Any

from support.inmemory_api import InMemoryClient
from support.virtual_controller import CheckedWorld

from batholith.model.names import GROUP_NAME, PODGROUPS, PODS, Resource
from batholith.podgroup_ctrl.controller import OWNERS, PodGroupController, PodGroupSettings

Object = dict[str, Any]

SETTINGS = PodGroupSettings(workers=2, reconcile_timeout=60.0)
STATEFULSETS = OWNERS["apps", "StatefulSet"]
DAEMONSETS = OWNERS["apps", "DaemonSet"]
SIZE = "scheduling.volcano.sh/group-min-member"


class PodGroupWorld(CheckedWorld[PodGroupController]):
    """The server with at most one podgroup controller, and what others do in namespaces d and e."""

    def make_controller(self, client: InMemoryClient) -> PodGroupController:
        """A new podgroup controller."""
        return PodGroupController(
            client, settings=SETTINGS, clock=self.clock, recorder=self.recorder
        )

    def objects_by_key(self, resource: Resource) -> dict[str, Object]:
        """Objects by namespace and name, in their order."""
        return dict(sorted(self.api.objects(resource).items()))

    def put(self, resource: Resource, key: str, **fields: Any) -> None:
        """Create or update an object."""
        namespace, _, name = key.partition("/")
        self.api.put(resource, name, namespace=namespace, **fields)

    def pod(self, key: str, owner: Resource | None) -> None:
        """Create a pod, maybe of the set ``w`` of its namespace, which may be deleted already."""
        owners = []
        there = self.objects_by_key(owner).get(f"{key[0]}/w") if owner is not None else None
        if owner is not None and there is not None:
            kind = {"apiVersion": "apps/v1", "kind": owner.kind, "controller": True}
            owners = [{**kind, "name": "w", "uid": there["metadata"]["uid"]}]
        meta = {"ownerReferences": owners}
        spec = {"schedulerName": "volcano", "containers": [{"name": "main"}]}
        self.put(PODS, key, metadata=meta, spec=spec, status={"phase": "Pending"})

    def collect_garbage(self) -> bool:
        """Remove objects whose owner is deleted; return whether there were any."""
        uids = {
            obj["metadata"]["uid"]
            for objects in self.api.stores.values()
            for obj in objects.values()
        }
        left = [
            (kind, key)
            for kind in (PODS, PODGROUPS)
            for key, obj in self.objects_by_key(kind).items()
            if (owners := obj["metadata"].get("ownerReferences"))
            and not any(owner["uid"] in uids for owner in owners)
        ]
        for kind, key in left:
            self.api.force_delete(kind, key)
        return bool(left)

    # What happens.

    def _check(self, prefix: str, change: str, new: Object, old: Object) -> None:
        meta, body = new["metadata"], self.api.received[-1].body
        if prefix == PODS.path():
            assert change == "MODIFIED", f"a pod is {change}"
            assert body["metadata"]["uid"] == meta["uid"], "INV-OW-2"
            had = old["metadata"].get("annotations", {}).get(GROUP_NAME)
            assert not had, f"{meta['name']} belonged to {had} already"
            assert meta["annotations"][GROUP_NAME] == podgroup_name(new)
            assert {**new, "metadata": 0} == {**old, "metadata": 0}
            return
        assert prefix == PODGROUPS.path(), f"{prefix} is written"
        if change == "DELETED":
            assert body["preconditions"]["uid"] == meta["uid"], "INV-OW-2"
            assert not any(
                expected_podgroup(pod) == object_key(new)
                for pod in self.objects_by_key(PODS).values()
            ), f"{meta['name']} is removed, and there are pods of it"
        controllers = [one for one in meta["ownerReferences"] if one.get("controller")]
        assert len(controllers) == 1, "INV-OW-1"
        assert meta["name"] == f"podgroup-{controllers[0]['uid']}"

    # At rest.

    def check_invariants(self) -> None:
        """Check that all is as it should be when the controller has nothing left to do.

        Raises:
            AssertionError: it is not.
        """
        groups = self.objects_by_key(PODGROUPS)
        for key, pod in self.objects_by_key(PODS).items():
            expected = expected_podgroup(pod)
            if expected:
                bound = pod["metadata"].get("annotations", {}).get(GROUP_NAME)
                assert f"{key[0]}/{bound}" == expected, f"{key} is not bound to {expected}"
                assert expected in groups, f"{key} has no PodGroup"
        bound = 20 + 12 * self.external_changes
        assert self.controller_writes <= bound, (
            f"{self.controller_writes} writes for {self.external_changes} changes"
        )


def podgroup_name(pod: Object) -> str:
    """Name of the PodGroup that is created for *pod*."""
    meta = pod["metadata"]
    owners = [one["uid"] for one in meta.get("ownerReferences", ()) if one.get("controller")]
    return f"podgroup-{owners[0] if owners else meta['uid']}"


def object_key(obj: Object) -> str:
    """Namespace and name."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def expected_podgroup(pod: Object) -> str:
    """Key of the PodGroup that *pod* must have; empty if it needs none of ours."""
    meta, own = pod["metadata"], podgroup_name(pod)
    bound = meta.get("annotations", {}).get(GROUP_NAME, "")
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return f"{meta['namespace']}/{own}" if bound in ("", own) and not ended else ""
