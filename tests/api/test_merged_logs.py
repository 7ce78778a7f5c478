"""The merged logs of a job, by a scripted API server: errors, restarts, limits, memory."""

import asyncio
from typing import Any

import pytest
from support.fake_logs import Body, FakeCluster, Step, make_pod, merge, stamped
from support.polling import wait_for

from batholith.api.logs import merged as merged_logs
from batholith.api.logs import pod_watch
from batholith.api.logs.containers import LogStreams
from batholith.api.logs.merged import IncompleteLogsError
from batholith.api.problems import ProblemError
from batholith.kube.errors import (
    BadRequestError,
    ConnectionLostError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    ServerError,
)


@pytest.fixture(autouse=True)
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_logs, "RETRY_DELAY", 0.001)
    monkeypatch.setattr(merged_logs, "MAX_RETRY_DELAY", 0.002)
    monkeypatch.setattr(merged_logs, "FINISH_INTERVAL", 0.01)
    monkeypatch.setattr(pod_watch, "INITIAL_BACKOFF", 0.001)


def finished(name: str) -> FakeCluster:
    """A cluster with one pod that has ended."""
    pod = make_pod(name, state="terminated", phase="Succeeded")
    return FakeCluster(pods={name: pod})


async def test_a_broken_stream_continues_after_the_last_line() -> None:
    """Lines of one time are counted: some of them may have been read."""
    same = b"2026-01-01T00:00:00.000000000Z "
    first: list[Step] = [same + b"a\n" + same + b"b\n" + same + b"trunc", ConnectionLostError("x")]
    whole: list[Step] = [same + b"a\n" + same + b"b\n" + same + b"truncated no more\n"]
    cluster, body = finished("w-0"), Body()
    cluster.logs["w-0"] = [first, whole]
    await merge(cluster, body, tail_lines=9)
    assert body.lines == ["a", "b", "truncated no more"]
    queries = [each.query for each in cluster.requests]
    assert queries[0] == {"container": "c", "tailLines": "9", "timestamps": "true"}
    assert queries[1] == {
        "container": "c",
        "sinceTime": "2026-01-01T00:00:00Z",
        "timestamps": "true",
    }


async def test_a_log_that_cannot_be_read_breaks_the_transfer() -> None:
    cluster, body = finished("w-0"), Body()
    cluster.pods["w-1"] = make_pod("w-1", state="terminated", phase="Succeeded")
    cluster.logs = {"w-0": [[ServerError("no kubelet", status=500)]], "w-1": [[stamped("one")]]}
    with pytest.raises(IncompleteLogsError, match="pod w-0"):
        await merge(cluster, body)
    notice, line = sorted(body.lines)
    assert notice.startswith("[batholith] cannot read the log of pod w-0: 500")
    assert line == "one"
    assert len(cluster.requests) == merged_logs.MAX_ATTEMPTS + 1


async def test_a_stream_that_breaks_at_the_same_line_is_not_read_for_ever() -> None:
    cluster, body = finished("w-0"), Body()
    cluster.logs["w-0"] = [[stamped("a"), ConnectionLostError("x")]]
    with pytest.raises(IncompleteLogsError, match="pod w-0"):
        await merge(cluster, body)
    assert body.lines[0] == "a"
    assert len(body.lines) == 2


async def test_a_lost_log_is_reported() -> None:
    cluster, body = finished("w-0"), Body()
    cluster.logs["w-0"] = [[NotFoundError('pods "w-0" not found', status=404)]]
    await merge(cluster, body)
    assert body.lines == ['[batholith] the log of pod w-0 is lost: pods "w-0" not found']


async def test_a_refusal_before_the_first_line_is_an_error() -> None:
    cluster, body = finished("w-0"), Body()
    cluster.logs["w-0"] = [[ForbiddenError("pods/log", status=403)]]
    with pytest.raises(ForbiddenError):
        await merge(cluster, body)
    assert body.messages == []


async def test_runs_of_a_container_are_read_in_order() -> None:
    """A run that was missed is read as the previous one, and those before it are reported."""
    cluster, body = FakeCluster(), Body()
    merging = asyncio.create_task(merge(cluster, body, follow=True))
    await wait_for(lambda: cluster._watches)
    cluster.logs["w-0"] = [
        [stamped("run 0", second=0)],
        [stamped("run 3", second=3)],
        [stamped("run 4", second=4)],
    ]
    cluster.set_pod(make_pod("w-0"))
    await wait_for(lambda: "run 0" in body.lines)
    cluster.set_pod(make_pod("w-0", restarts=4))
    await wait_for(lambda: "run 4" in body.lines)
    cluster.set_pod(make_pod("w-0", restarts=4, state="terminated", phase="Failed"))
    cluster.finished = True
    await merging
    lost = "[batholith] the logs of 2 runs of container c of pod w-0 are lost"
    assert body.lines == ["run 0", "run 3", lost, "run 4"]
    assert [each.query.get("previous") for each in cluster.requests[:3]] == [None, "true", None]


async def test_a_followed_log_that_ends_early_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the node rotates logs, or the API server ends streams."""
    monkeypatch.setattr(merged_logs, "RECHECK_INTERVAL", 0.01)
    cluster, body = FakeCluster(pods={"w-0": make_pod("w-0")}), Body()
    ends = asyncio.Event()
    both = stamped("one", "two")
    cluster.logs["w-0"] = [[stamped("one")], [stamped("one")], [both, ends], [both]]
    merging = asyncio.create_task(merge(cluster, body, follow=True))
    await wait_for(lambda: body.lines == ["one", "two"])
    cluster.set_pod(make_pod("w-0", state="terminated", phase="Succeeded"))
    cluster.finished = True
    ends.set()
    await merging
    assert body.lines == ["one", "two"]


async def test_unavailable_servers_are_asked_again_while_a_pod_runs() -> None:
    cluster, body = FakeCluster(pods={"w-0": make_pod("w-0")}), Body()
    cluster.watch_errors = [GoneError("old", status=410), ConnectionLostError("x")]
    down: list[list[Step]] = [[ServerError("starting", status=503)] for _ in range(5)]
    ends = asyncio.Event()
    cluster.logs["w-0"] = [*down, [BadRequestError("starting", status=400)], [stamped("a"), ends]]
    merging = asyncio.create_task(merge(cluster, body, follow=True))
    await wait_for(lambda: "a" in body.lines)
    cluster.set_pod(make_pod("w-0", state="terminated", phase="Succeeded"))
    cluster.finished = True
    ends.set()
    await merging
    assert len(body.lines) == 2
    assert body.lines[0].startswith("[batholith] cannot read the log of pod w-0, will retry")


async def test_pods_without_a_log_do_not_delay_the_end() -> None:
    cluster, body = FakeCluster(finished=True), Body()
    cluster.pods["w-0"] = make_pod("w-0", state="waiting", phase="Failed")
    await merge(cluster, body, follow=True)
    assert body.lines == []
    assert cluster.requests == []


async def test_a_deleted_pod_is_not_waited_for() -> None:
    cluster, body = FakeCluster(pods={"w-0": make_pod("w-0")}), Body()
    ends = asyncio.Event()
    cluster.logs["w-0"] = [[stamped("a"), ends]]
    merging = asyncio.create_task(merge(cluster, body, follow=True))
    await wait_for(lambda: "a" in body.lines)
    cluster.set_pod(cluster.pods["w-0"], deleted=True)
    cluster.finished = True
    ends.set()
    await merging
    assert body.lines == ["a"]


async def test_thousands_of_pods_are_read_with_few_streams_in_order() -> None:
    cluster, body = FakeCluster(), Body()
    for index in range(2000):
        name = f"w-{index}"
        cluster.pods[name] = make_pod(name, state="terminated", phase="Succeeded")
        cluster.logs[name] = [[stamped(name)]]
    streams = LogStreams()
    await merge(cluster, body, streams=streams)
    assert sorted(body.lines) == sorted(cluster.pods)
    order = [each.pod for each in cluster.requests]
    assert order == [f"w-{index}" for index in range(2000)]
    assert cluster.max_open_logs <= merged_logs.CONCURRENT_READS
    assert len(streams) == 0


async def test_jobs_with_too_many_pods_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_logs, "MAX_FOLLOWED", 2)
    cluster, body = FakeCluster(), Body()
    for index in range(3):
        cluster.pods[f"w-{index}"] = make_pod(f"w-{index}")
    with pytest.raises(ProblemError, match="at most 2 can be followed") as caught:
        await merge(cluster, body, follow=True)
    assert caught.value.status == 422


async def test_a_job_that_grows_beyond_the_limit_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merged_logs, "MAX_FOLLOWED", 1)
    cluster, body = FakeCluster(pods={"w-0": make_pod("w-0")}), Body()
    ends = asyncio.Event()
    cluster.logs = {"w-0": [[stamped("zero"), ends]], "w-1": [[stamped("one")]]}
    merging = asyncio.create_task(merge(cluster, body, follow=True))
    await wait_for(lambda: "zero" in body.lines)
    cluster.set_pod(make_pod("w-1", state="terminated", phase="Succeeded"))
    await wait_for(lambda: len(body.lines) == 2)
    assert "others wait" in body.lines[1]
    cluster.set_pod(make_pod("w-0", state="terminated", phase="Succeeded"))
    cluster.finished = True
    ends.set()
    await merging
    assert body.lines[2] == "one"


async def test_streams_are_limited_by_user_and_in_all() -> None:
    streams = LogStreams(total=3, per_user=2)
    await streams.acquire("ann")
    await streams.acquire("ann")
    with pytest.raises(ProblemError) as caught:
        streams.check("ann")
    assert (caught.value.status, caught.value.retry_after is None) == (503, False)
    await streams.acquire("bob")
    waiting = asyncio.create_task(streams.acquire("cid"))
    await asyncio.sleep(0)
    assert not waiting.done()
    streams.release("bob")
    await waiting
    assert len(streams) == 3
    cluster = finished("w-0")
    cluster.logs["w-0"] = [[stamped("a")]]
    with pytest.raises(ProblemError, match="too many logs"):
        await merge(cluster, Body(), streams=streams)


@pytest.mark.parametrize("follow", [False, True])
async def test_a_cancelled_request_releases_its_streams(follow: bool) -> None:
    cluster, body, streams = FakeCluster(), Body(), LogStreams()
    for index in range(20):
        cluster.pods[f"w-{index}"] = make_pod(f"w-{index}")
        cluster.logs[f"w-{index}"] = [[stamped("a"), asyncio.Event()]]
    merging = asyncio.create_task(merge(cluster, body, streams=streams, follow=follow))
    wanted = 20 if follow else merged_logs.CONCURRENT_READS
    await wait_for(lambda: len(body.lines) == wanted)
    merging.cancel()
    await asyncio.gather(merging, return_exceptions=True)
    await wait_for(lambda: len(streams) == 0)
    assert cluster.open_logs == 0
    assert cluster._watches == []


async def test_a_slow_client_stops_the_reads() -> None:
    """At most one batch of each log is in memory."""
    cluster, blocked = FakeCluster(), asyncio.Event()
    body = Body(on_send=blocked.wait)
    reads = 0

    class Counted(bytes):
        def find(self, *arguments: Any) -> int:
            nonlocal reads
            reads += not arguments[1]
            return super().find(*arguments)

    for index in range(4):
        cluster.pods[f"w-{index}"] = make_pod(f"w-{index}", state="terminated", phase="Succeeded")
        cluster.logs[f"w-{index}"] = [[Counted(stamped("x" * 100)) for _ in range(50)]]
    merging = asyncio.create_task(merge(cluster, body))
    await wait_for(lambda: body.messages)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert reads <= 4
    blocked.set()
    await merging
    assert len(body.lines) == 4 * 50
