"""Projected files of a running pod follow their sources, each update atomically."""

import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agent import container, decode_pod, manifest
from support.agent_cluster import AgentCluster, agent_cluster
from support.api_servers import ServerFactory
from support.examples import examples
from support.sandbox import detected_isolation

from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.local.agent.state.environment import (
    ContainerConfigError,
    PodRuntimeInfo,
    ResolvedSources,
)
from batholith.local.agent.volumes import source_manager
from batholith.local.agent.volumes.projected import ProjectedFile, atomic_write, collect_files
from batholith.machinery.clock import SystemClock, Timer
from batholith.model.names import CONFIGMAPS, PODS, SECRETS

Json = dict[str, Any]

FILES = st.dictionaries(
    st.sampled_from(["a", "b", "d/x", "d/y/z", "e"]),
    st.builds(ProjectedFile, st.binary(max_size=3), st.sampled_from([0o644, 0o400])),
)


def visible_files(directory: Path) -> dict[str, ProjectedFile]:
    """Return the visible files of *directory*."""
    found = {}
    for parent, below, names in os.walk(directory, followlinks=True):
        below[:] = [name for name in below if not name.startswith("..")]
        for name in names:
            path = Path(parent) / name
            mode = stat.S_IMODE(path.stat().st_mode)
            found[str(path.relative_to(directory))] = ProjectedFile(path.read_bytes(), mode)
    return found


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(FILES, min_size=1, max_size=4))
def test_directory_shows_the_last_written_files(
    tmp_path_factory: pytest.TempPathFactory, versions: list[Mapping[str, ProjectedFile]]
) -> None:
    directory = tmp_path_factory.mktemp("volume")
    for before, files in zip([None, *versions], versions, strict=False):
        assert atomic_write(directory, files) == (files != before)
        assert visible_files(directory) == files
        assert len([e for e in directory.iterdir() if e.is_dir() and not e.is_symlink()]) == 1


def test_interrupted_write_is_cleaned_up(tmp_path: Path) -> None:
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


def test_a_volume_that_names_a_large_value_many_times_is_too_large() -> None:
    field = {"fieldRef": {"fieldPath": "metadata.annotations['a']"}}
    items = [{"path": f"f{number}"} | field for number in range(1000)]
    created = manifest(
        "p", container("true"), volumes=[{"name": "v", "downwardAPI": {"items": items}}]
    )
    created["metadata"]["annotations"] = {"a": "x" * 200_000}
    pod = decode_pod(created)
    with pytest.raises(ContainerConfigError, match="volume 'v' are larger than"):
        collect_files(pod.spec.volumes[0], pod, sources=ResolvedSources(), info=PodRuntimeInfo())


def reader(script: str) -> Json:
    """Return a pod with all kinds of sources."""
    label = {"path": "label", "fieldRef": {"fieldPath": "metadata.labels['round']"}}
    sources = [{"configMap": {"name": "m"}}, {"downwardAPI": {"items": [label]}}]
    volumes = [
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "p", "projected": {"sources": sources}},
    ]
    mounts = [
        {"name": "m", "mountPath": "/m"},
        {"name": "m", "mountPath": "/single", "subPath": "text"},
        {"name": "s", "mountPath": "/s"},
        {"name": "p", "mountPath": "/p"},
    ]
    one = container("sh", "-c", script, volumeMounts=mounts)
    created = manifest("p", one, restartPolicy="Never", volumes=volumes)
    created["metadata"]["labels"] = {"round": "1"}
    return created


async def change(cluster: AgentCluster, text: str) -> None:
    """Change the content of all sources."""
    await cluster.client.patch(CONFIGMAPS, "m", {"data": {"text": text}}, namespace="default")
    await cluster.client.patch(SECRETS, "s", {"stringData": {"text": text}}, namespace="default")
    labels = {"metadata": {"labels": {"round": text}}}
    await cluster.client.patch(PODS, "p", labels, namespace="default")


WAIT = (
    "R=$BATHOLITH_ROOT; shown() { cat $R/m/text $R/s/text $R/p/text $R/p/label; };"
    "until_shows() { until test $(shown) = $1; do sleep 0.02; done; };"
)


@pytest.mark.parametrize("watches", [100, 0], ids=["watched", "read at intervals"])
@pytest.mark.process
async def test_files_follow_their_sources_while_a_pod_runs(
    servers: ServerFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watches: int
) -> None:
    monkeypatch.setattr(source_manager, "MAX_WATCHES", watches)
    monkeypatch.setattr(source_manager, "POLL_INTERVAL", 0.05)
    script = WAIT + (
        "shown; echo; until_shows 2222; echo 2; echo single $(cat $R/single);"
        "touch $R/m/mine 2>/dev/null || echo no; until test -f $R/p/more; do sleep 0.02; done"
    )
    async with agent_cluster(servers, tmp_path) as w, w.agent():
        await w.create({"metadata": {"name": "m"}, "data": {"text": "1"}}, CONFIGMAPS)
        await w.create({"metadata": {"name": "s"}, "data": {"text": "MQ=="}}, SECRETS)
        await w.run(reader(script))
        await w.phase("p", "Running")
        await w.wait_log("p", "1111")
        await change(w, "2")
        if detected_isolation().isolation is IsolationLevel.PLAIN:
            await w.wait_log("p", "2\n")
        else:
            assert (await w.wait_log("p", "no\n")) == "1111\n2\nsingle 1\nno\n"
        await w.client.patch(CONFIGMAPS, "m", {"data": {"more": ""}}, namespace="default")
        await w.phase("p", "Succeeded")


@pytest.mark.process
async def test_next_agent_updates_projected_files(servers: ServerFactory, tmp_path: Path) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        await w.create({"metadata": {"name": "m"}, "data": {"text": "1"}}, CONFIGMAPS)
        await w.create({"metadata": {"name": "s"}, "data": {"text": "MQ=="}}, SECRETS)
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


@pytest.mark.process
async def test_container_starts_when_its_missing_secret_is_created(
    servers: ServerFactory, tmp_path: Path
) -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "text"}}}]
    async with agent_cluster(servers, tmp_path) as w, w.agent():
        await w.run(manifest("p", container("sh", "-c", "echo $A", env=env), restartPolicy="Never"))
        await w.wait_pod(
            "p",
            lambda pod: "CreateContainerConfigError" in str(pod["status"].get("containerStatuses")),
        )
        await w.create({"metadata": {"name": "s"}, "data": {"text": "MQ=="}}, SECRETS)
        await w.phase("p", "Succeeded")
        assert await w.logs("p") == "1\n"


_FASTER = 300


class FastClock(SystemClock):
    """A steady clock that is 300 times faster."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() * _FASTER

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return super().call_later(seconds / _FASTER, callback)


@pytest.mark.process
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
