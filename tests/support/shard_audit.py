"""Which replica held which shard, and what it wrote for others, from a server's audit log."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import support.audit_log as audit

from batholith.machinery.shards import shard_of

LEASE = "volcano-system/vc-controller-manager"
EXEMPT = frozenset({"leases", "events"})


def key_of(request: audit.AuditedRequest) -> str:
    """Return the key of the object that a controller reconciled when it sent this write.

    Names of jobs contain no hyphen here, and there are no other pods and PodGroups than theirs.
    """
    resource = request.resource.partition("/")[0]
    namespace, _, name = request.name.partition("/")
    match resource:
        case "jobs" | "queues":
            return request.name
        case "pods" | "podgroups":
            name = name or request.body["metadata"]["name"]
            return f"{namespace}/{name.partition('-')[0]}"
        case _:
            raise AssertionError(f"unexpected write: {request.verb} {request.resource}")


def leaderships(
    requests: Sequence[audit.AuditedRequest], shards: int
) -> list[list[audit.Leadership]]:
    """Return who held each shard, in order of time."""
    leases = [one for one in requests if one.resource == "leases"]
    return [audit.leaderships(leases, f"{LEASE}-shard-{shard}") for shard in range(shards)]


def current_holders(requests: Sequence[audit.AuditedRequest], shards: int) -> set[str]:
    """Return the users that hold a shard, as far as the Leases show; one may have ended."""
    held = leaderships(requests, shards)
    return {each[-1].user for each in held if each and each[-1].ended == audit.LEASE_MARGIN}


def writes_for_other_shards(
    requests: Sequence[audit.AuditedRequest], shards: int, users: Iterable[str]
) -> list[audit.StaleWrite]:
    """Return the writes of *users* for shards that they did not hold."""
    users = set(users)
    by_shard: list[dict[str, list[audit.Leadership]]] = []
    for held in leaderships(requests, shards):
        by_user = defaultdict(list)
        for leadership in held:
            by_user[leadership.user].append(leadership)
        by_shard.append(by_user)
    found = []
    for one in requests:
        resource = one.resource.partition("/")[0]
        if one.user not in users or resource in EXEMPT:
            continue
        if not (one.took_effect or one.may_have_taken_effect):
            continue
        shard = shard_of(key_of(one), shards)
        if why := audit.outside_leadership(one, by_shard[shard][one.user]):
            found.append(audit.StaleWrite(one, f"shard {shard}: {why}"))
    return found


def imbalance(requests: Sequence[audit.AuditedRequest], shards: int, users: Iterable[str]) -> int:
    """Return by how many shards *users*, who hold all of them, differ; *shards* if others do."""
    counts = Counter(dict.fromkeys(users, 0))
    for held in leaderships(requests, shards):
        if not held or held[-1].ended != audit.LEASE_MARGIN or held[-1].user not in counts:
            return shards
        counts[held[-1].user] += 1
    return max(counts.values()) - min(counts.values())
