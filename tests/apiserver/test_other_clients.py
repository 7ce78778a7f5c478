"""Client libraries of others, as they are installed from the package index, on both servers."""

import textwrap
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.api_servers import ServerFactory
from support.embedded_cluster import run

pytestmark = [pytest.mark.soak, pytest.mark.process]

LIGHTKUBE = """
    from lightkube import Client
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ConfigMap

    def config_map(name):
        return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data={"k": "v"})

    client = Client(field_manager="lightkube")
    client.create(config_map("a"))
    client.apply(config_map("b"))
    client.apply(config_map("b"))
    client.patch(ConfigMap, "a", {"data": {"k": "w"}})
    assert client.get(ConfigMap, "a").data == {"k": "w"}
    names = {each.metadata.name for each in client.list(ConfigMap, namespace="default")}
    assert {"a", "b"} <= names
    _, first = next(iter(client.watch(ConfigMap, namespace="default")))
    assert first.metadata.name in names
    client.delete(ConfigMap, "a")
"""
KR8S = """
    import os
    import kr8s
    from kr8s.objects import ConfigMap

    api = kr8s.api(kubeconfig=os.environ["KUBECONFIG"])
    body = {"metadata": {"name": "a", "namespace": "default"}, "data": {"k": "v"}}
    created = ConfigMap(body, api=api)
    created.create()
    created.patch({"data": {"k": "w"}})
    created.refresh()
    assert created.raw["data"] == {"k": "w"}
    assert "a" in {each.name for each in api.get("configmaps", namespace="default")}
    kind, first = next(iter(api.watch("configmaps", namespace="default")))
    assert first.kind == "ConfigMap", kind
    created.delete()
    assert not created.exists()
"""
KUBERNETES_ASYNCIO = """
    import asyncio
    from kubernetes_asyncio import client, config, watch

    async def main():
        await config.load_kube_config()
        async with client.ApiClient() as api:
            core = client.CoreV1Api(api)
            body = {"metadata": {"name": "a"}, "data": {"k": "v"}}
            await core.create_namespaced_config_map("default", body)
            await core.patch_namespaced_config_map("a", "default", {"data": {"k": "w"}})
            found = await core.read_namespaced_config_map("a", "default")
            assert found.data == {"k": "w"}
            async with watch.Watch().stream(core.list_namespaced_config_map, "default") as events:
                async for event in events:
                    assert event["object"].kind == "ConfigMap"
                    break
            await core.delete_namespaced_config_map("a", "default")

    asyncio.run(main())
"""
CLIENTS = {"lightkube": LIGHTKUBE, "kr8s": KR8S, "kubernetes_asyncio": KUBERNETES_ASYNCIO}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A virtual environment that the clients are installed into."""
    directory = tmp_path_factory.mktemp("clients")
    venv.create(directory, with_pip=True)
    yield directory


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_writes_reads_and_watches(
    client: str, environment: Path, servers: ServerFactory, tmp_path: Path
) -> None:
    python = str(environment / "bin" / "python")
    installed = await run(python, "-m", "pip", "install", "--quiet", client)
    assert installed.code == 0, installed.err
    async with servers.start(tmp_path) as server:
        kubeconfig = f"KUBECONFIG={server.kubeconfig}"
        done = await run("env", kubeconfig, python, "-c", textwrap.dedent(CLIENTS[client]))
    assert done.code == 0, done.err
