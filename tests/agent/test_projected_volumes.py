"""What a running pod reads of the API follows its sources, each change in one step."""

import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agent import container, manifest
from support.agent_cluster import AgentCluster, agent_cluster
from support.api_servers import ServerFactory

from batholith.agent.runtime.runs import IsolationLevel, detect_isolation
from batholith.agent.volumes.projected import ProjectedFile, atomic_write
from batholith.machinery.clock import SystemClock, Timer
from batholith.model.names import CONFIGMAPS, PODS, SECRETS

Json = dict[str, Any]

FILES = st.dictionaries(
    st.sampled_from(["a", "b", "d/x", "d/y/z", "e"]),
    st.builds(ProjectedFile, st.binary(max_size=3), st.sampled_from([0o644, 0o400])),
)


def visible_files(folder: Path) -> dict[str, ProjectedFile]:
    """What somebody sees who looks into *folder*, save the machinery behind it."""
    found = {}
    for place, below, names in os.walk(folder, followlinks=True):
        below[:] = [name for name in below if not name.startswith("..")]
        for name in names:
            path = Path(place) / name
            mode = stat.S_IMODE(path.stat().st_mode)
            found[str(path.relative_to(folder))] = ProjectedFile(path.read_bytes(), mode)
    return found


@settings(deadline=None, max_examples=50)
@given(st.lists(FILES, min_size=1, max_size=4))
def test_a_folder_shows_what_was_published_last(
    tmp_path_factory: pytest.TempPathFactory, versions: list[Mapping[str, ProjectedFile]]
) -> None:
    folder = tmp_path_factory.mktemp("volume")
    for before, files in zip([None, *versions], versions, strict=False):
        assert atomic_write(folder, files) == (files != before)
        assert visible_files(folder) == files
        assert len([e for e in folder.iterdir() if e.is_dir() and not e.is_symlink()]) == 1


def test_what_was_begun_and_left_is_cleaned_up(tmp_path: Path) -> None:
    half = tmp_path / "..half"
    half.mkdir()
    (half / "a").touch()
    (tmp_path / "..link").symlink_to("..half")
    (tmp_path / "a").write_text("by an older version")
    assert atomic_write(tmp_path, {"a": ProjectedFile(b"1", 0o600)})
    assert visible_files(tmp_path) == {"a": ProjectedFile(b"1", 0o600)}
    assert not half.exists()
    (tmp_path / "a").unlink()
    assert not atomic_write(tmp_path, {"a": ProjectedFile(b"1", 0o600)})
    assert visible_files(tmp_path) == {"a": ProjectedFile(b"1", 0o600)}


def reader(script: str) -> Json:
    """A pod that sees all kinds of sources."""
    label = {"path": "label", "fieldRef": {"fieldPath": "metadata.labels['round']"}}
    sources = [{"configMap": {"name": "m"}}, {"downwardAPI": {"items": [label]}}]
    volumes = [
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "p", "projected": {"sources": sources}},
    ]
    mounts = [
        {"name": "m", "mountPath": "/m"},
        {"name": "m", "mountPath": "/part", "subPath": "word"},
        {"name": "s", "mountPath": "/s"},
        {"name": "p", "mountPath": "/p"},
    ]
    one = container("sh", "-c", script, volumeMounts=mounts)
    made = manifest("p", one, restartPolicy="Never", volumes=volumes)
    made["metadata"]["labels"] = {"round": "1"}
    return made


async def change(cluster: AgentCluster, word: str) -> None:
    """Give all sources another content."""
    await cluster.client.patch(CONFIGMAPS, "m", {"data": {"word": word}}, namespace="default")
    await cluster.client.patch(SECRETS, "s", {"stringData": {"word": word}}, namespace="default")
    labels = {"metadata": {"labels": {"round": word}}}
    await cluster.client.patch(PODS, "p", labels, namespace="default")


WAIT = (
    "R=$BATHOLITH_ROOT; shown() { cat $R/m/word $R/s/word $R/p/word $R/p/label; };"
    "until_shows() { until test $(shown) = $1; do sleep 0.02; done; };"
)


async def test_files_follow_their_sources_while_a_pod_runs(
    servers: ServerFactory, tmp_path: Path
) -> None:
    script = WAIT + (
        "shown; echo; until_shows 2222; echo 2; echo part $(cat $R/part);"
        "touch $R/m/mine 2>/dev/null || echo no; until test -f $R/p/more; do sleep 0.02; done"
    )
    async with agent_cluster(servers, tmp_path) as w, w.agent():
        await w.create({"metadata": {"name": "m"}, "data": {"word": "1"}}, CONFIGMAPS)
        await w.create({"metadata": {"name": "s"}, "data": {"word": "MQ=="}}, SECRETS)
        await w.run(reader(script))
        await w.phase("p", "Running")
        await w.wait_log("p", "1111")
        await change(w, "2")
        if detect_isolation().isolation is IsolationLevel.PLAIN:
            await w.wait_log("p", "2\n")
        else:
            assert (await w.wait_log("p", "no\n")) == "1111\n2\npart 1\nno\n"
        await w.client.patch(CONFIGMAPS, "m", {"data": {"more": ""}}, namespace="default")
        await w.phase("p", "Succeeded")


async def test_an_agent_that_comes_back_brings_the_files_up_to_date(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        await w.create({"metadata": {"name": "m"}, "data": {"word": "1"}}, CONFIGMAPS)
        await w.create({"metadata": {"name": "s"}, "data": {"word": "MQ=="}}, SECRETS)
        async with w.agent():
            await w.run(
                reader(WAIT + "shown; echo; until_shows 2222; shown; echo; until_shows 3333")
            )
            await w.phase("p", "Running")
            await w.wait_log("p", "1111")
        await change(w, "2")
        async with w.agent():
            await w.wait_log("p", "2222")
            await change(w, "3")
            await w.phase("p", "Succeeded")


async def test_what_was_missing_is_used_when_it_comes(
    servers: ServerFactory, tmp_path: Path
) -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "word"}}}]
    async with agent_cluster(servers, tmp_path) as w, w.agent():
        await w.run(manifest("p", container("sh", "-c", "echo $A", env=env), restartPolicy="Never"))
        await w.wait_pod(
            "p",
            lambda pod: "CreateContainerConfigError" in str(pod["status"].get("containerStatuses")),
        )
        await w.create({"metadata": {"name": "s"}, "data": {"word": "MQ=="}}, SECRETS)
        await w.phase("p", "Succeeded")
        assert await w.logs("p") == "1\n"


_FASTER = 300


class FastClock(SystemClock):
    """A steady clock of which minutes pass in a second."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() * _FASTER

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return super().call_later(seconds / _FASTER, callback)


@pytest.mark.parametrize("servers", ["real"], indirect=True)  # the embedded one gives no tokens
async def test_a_token_is_renewed_before_it_expires(servers: ServerFactory, tmp_path: Path) -> None:
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
    script = (
        "F=$BATHOLITH_ROOT/t/token; T=$(cat $F); test -n $T || exit 1;"
        "until test $(cat $F) != $T; do sleep 0.02; done"
    )
    mounts = [{"name": "t", "mountPath": "/t"}]
    volumes = [{"name": "t", "projected": {"sources": [token]}}]
    one = container("sh", "-c", script, volumeMounts=mounts)
    async with agent_cluster(servers, tmp_path) as w, w.agent(clock=FastClock()):
        await w.run(manifest("p", one, restartPolicy="Never", volumes=volumes))
        assert (await w.phase("p", "Succeeded", "Failed"))["status"]["phase"] == "Succeeded"
