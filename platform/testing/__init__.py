"""A cluster inside the process of a test, for tests of operators, controllers and jobs.

:class:`ApiServer` starts the embedded API server on a free port of loopback; it accepts any client
of Kubernetes. :class:`Cluster` adds admission, the controllers, the scheduler and simulated nodes.
Faults are injected on the server's side of the connection, so every client sees them:

    async with Cluster() as cluster:
        cluster.faults.lose_response(RequestMatcher("create", "pods"))
        await cluster.create("jobs.batch.volcano.sh", job)
        await cluster.wait_for_phase("jobs.batch.volcano.sh", "train", "Completed")

``with Cluster() as cluster`` starts it in its own thread, for tests and clients that block.
"""

from .apiserver import ApiServer, BlockingApiServer
from .changes import ObjectChange, WaitTimeoutError
from .clock import AdvanceableClock
from .cluster import BlockingCluster, Cluster
from .components import ComponentError
from .faults import Fault, FaultInjector, HeldRequests
from .namespaces import BlockingNamespace, ClusterNamespace
from .requests import RecordedRequest, RequestMatcher
from .watches import WatchStream
from .webhooks import ServedWebhook

__all__ = [
    "AdvanceableClock",
    "ApiServer",
    "BlockingApiServer",
    "BlockingCluster",
    "BlockingNamespace",
    "Cluster",
    "ClusterNamespace",
    "ComponentError",
    "Fault",
    "FaultInjector",
    "HeldRequests",
    "ObjectChange",
    "RecordedRequest",
    "RequestMatcher",
    "ServedWebhook",
    "WaitTimeoutError",
    "WatchStream",
]
