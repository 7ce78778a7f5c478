"""Measure how long the embedded API server blocks its event loop: ``python -m bench.loop_latency``.

The server runs in this process together with a probe that repeatedly sleeps a millisecond; a
separate process sends the requests. Printed are, for each operation on OBJECTS objects (default
50,000), its duration, and the maxima over the probe's iterations of the CPU milliseconds of the
loop's thread and of the probe's delay (which on a busy machine includes other processes).
"""

import asyncio
import gc
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from batholith.local.apiserver.http.auth import APISERVER_USER
from batholith.local.apiserver.http.requests import ObjectPath
from batholith.local.apiserver.verbs.write_requests import WriteRequest
from batholith.local.supervisor.apiserver import GC_THRESHOLD, RunningServer, Settings, running

Json = dict[str, Any]
SECRETS = "/api/v1/namespaces/{}/secrets"
MAPS = "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
JSON_PATCH = "application/json-patch+json"
YAML = "application/yaml"
STREAM = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
MEGABYTES = 3 * 2**20 - 1000


class LoopLatencyProbe:
    """Delays of the loop."""

    def __init__(self) -> None:
        self.max_delay = self.cpu = 0.0

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            self.max_delay = max(self.max_delay, time.perf_counter() - before - 0.001)
            self.cpu = max(self.cpu, time.thread_time() - cpu)


class LoopLatencyBench:
    """One server, its content, and the requests to it."""

    def __init__(self, server: RunningServer, count: int, probe: LoopLatencyProbe) -> None:
        self._server = server
        self._count = count
        self._probe = probe

    async def store_objects(
        self, plural: str, bodies: Iterator[Json], namespace: str = "default"
    ) -> None:
        """Store objects of a kind, without HTTP."""
        handlers = self._server.app.handlers
        group, version = ("ex.io", "v1") if plural == "foos" else ("", "v1")
        kind = self._server.app.catalog.get(group, version, plural)
        assert kind is not None
        call = WriteRequest(
            kind=kind, object_path=ObjectPath(namespace=namespace), user=APISERVER_USER
        )
        for number, body in enumerate(bodies):
            written = handlers.writer.create(call, body)
            if number % 500 == 499:
                await written.committed()
        await written.committed()

    def secrets(self, **metadata: Any) -> Iterator[Json]:
        """Small objects with a selectable field."""
        for number in range(self._count):
            labels = {"half": str(number % 2)}
            head = {"name": f"s{number:06d}", "labels": labels, **metadata}
            yield {"metadata": head, "data": {"k": "dg=="}, "type": "Opaque"}

    async def measure_request(
        self, name: str, *request: object, until: Callable[[], bool] | None = None
    ) -> None:
        """Print the cost of one request; *until* reports whether its effects are complete."""
        probe = self._probe
        probe.max_delay, probe.cpu, begun = 0.0, 0.0, time.perf_counter()
        target = {"url": self._server.url, "token": self._server.tokens.by_user["admin"]}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.loop_latency", "--client"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate(json.dumps({**target, "request": request}).encode())
        while until is not None and not until():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)
        took = time.perf_counter() - begun
        worst = f"{probe.cpu * 1000:.0f} | {probe.max_delay * 1000:.0f}"
        print(f"| {name} | {took:.1f} | {worst} | {out.decode()} |", flush=True)

    def object_count(self, plural: str, namespace: str = "default") -> int:
        """How many objects of a kind a namespace has."""
        for store in self._server.app.handlers.writer.store.resource_stores():
            if store.resource.plural == plural:
                return len(store.by_namespace.get(namespace, ()))
        return 0

    async def run(self) -> None:
        """All operations, one after the other."""
        await self._bodies()
        await self._reads()
        await self._deletions()
        await self._definitions()

    async def _bodies(self) -> None:
        keys = "".join(f"a{number:06d}: 1\n" for number in range(180_000))
        await self.measure_request("YAML of 180,000 keys", "POST", MAPS, YAML, keys)
        half = "".join(f"  a{number:06d}: x\n" for number in range(45_000))
        await self.measure_request(
            "YAML of 45,000 keys", "POST", MAPS, YAML, f"metadata: {{name: y}}\ndata:\n{half}"
        )
        for name, item in (("objects", "{},"), ("lists", "[],"), ("numbers", "1.5,")):
            body = (
                '{"metadata":{"name":"x"},"immutable":[' + item * (MEGABYTES // len(item)) + "0]}"
            )
            await self.measure_request(f"3 MiB of {name}", "POST", MAPS, "application/json", body)
        most = {"metadata": {"name": "m"}, "data": {f"k{n}": "x" * 10 for n in range(90_000)}}
        await self.measure_request(
            "90,000 keys", "POST", MAPS, "application/json", json.dumps(most)
        )
        same = [{"op": "test", "path": "/data", "value": most["data"]}]
        more = [{"op": "add", "path": f"/data/a{n}", "value": "x"} for n in range(9_000)]
        await self.measure_request(
            "JSON patch that tests 90,000 values",
            "PATCH",
            f"{MAPS}/m",
            JSON_PATCH,
            json.dumps(same),
        )
        await self.measure_request(
            "JSON patch of 9,000 operations", "PATCH", f"{MAPS}/m", JSON_PATCH, json.dumps(more)
        )
        await self.measure_request("table of it", "GET", MAPS, TABLE)
        await self.measure_request("it in YAML", "GET", f"{MAPS}/m", YAML)
        await self.measure_request("delete it", "DELETE", f"{MAPS}/m")

    async def _reads(self) -> None:
        await self.store_objects("secrets", self.secrets())
        path = SECRETS.format("default")
        await self.measure_request("list", "GET", path)
        await self.measure_request("list again", "GET", path)
        await self.measure_request("table", "GET", path, TABLE)
        await self.measure_request("metadata", "GET", path, METADATA)
        await self.measure_request("cold field selector", "GET", f"{path}?fieldSelector=type=none")
        await self.measure_request("label selector", "GET", f"{path}?labelSelector=half=1")
        await self.measure_request("all namespaces, after a write", "CHANGE", "/api/v1/secrets")
        await self.measure_request("pages while others write", "PAGES", path)
        await self.measure_request("exact version", "EXACT", path)
        await self.measure_request(
            "watch with initial events", "WATCH", f"{path}?{STREAM}&timeoutSeconds=1"
        )
        await self.measure_request(
            "such a table", "WATCH", f"{path}?{STREAM}&timeoutSeconds=1", TABLE
        )
        await self.measure_request("/metrics", "GET", "/metrics")
        await self.measure_request("/openapi/v3/api/v1", "GET", "/openapi/v3/api/v1")
        await self.measure_request("/openapi/v3/apis/apps/v1", "GET", "/openapi/v3/apis/apps/v1")

    async def _deletions(self) -> None:
        path = SECRETS.format("default")
        await self.measure_request("deletecollection, dry run", "DELETE", f"{path}?dryRun=All")
        await self.measure_request("deletecollection", "DELETE", path)
        for policy in ("Background", "Foreground", "Orphan"):
            await self._owner(policy)
        await self.measure_request("delete what is left", "DELETE", path)
        await self.measure_request(
            "create a namespace",
            "POST",
            "/api/v1/namespaces",
            "application/json",
            '{"metadata":{"name":"n"}}',
        )
        await self.store_objects("secrets", self.secrets(), "n")
        await self.measure_request(
            "delete a namespace",
            *("DELETE", "/api/v1/namespaces/n"),
            until=lambda: not self.object_count("namespaces", "") or not self._exists("n"),
        )

    def _exists(self, namespace: str) -> bool:
        for store in self._server.app.handlers.writer.store.resource_stores():
            if store.resource.plural == "namespaces":
                return store.get("", namespace) is not None
        return False

    async def _owner(self, policy: str) -> None:
        await self.store_objects("configmaps", iter([{"metadata": {"name": policy.lower()}}]))
        registry = self._server.app.handlers.writer.store
        (maps,) = [
            each for each in registry.resource_stores() if each.resource.plural == "configmaps"
        ]
        owner = maps.get("default", policy.lower())
        assert owner is not None
        head = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name, "uid": owner.uid}
        await self.store_objects(
            "secrets", self.secrets(ownerReferences=[{**head, "blockOwnerDeletion": True}])
        )

        def is_collected() -> bool:
            is_deleted = maps.get("default", owner.name) is None
            return is_deleted and (policy == "Orphan" or not self.object_count("secrets"))

        await self.measure_request(
            f"collect, {policy}",
            *("DELETE", f"{MAPS}/{owner.name}?propagationPolicy={policy}"),
            until=is_collected,
        )

    async def _definitions(self) -> None:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        definition = _definition({"size": {"type": "integer"}})
        await self.measure_request(
            "define",
            "POST",
            crds,
            "application/json",
            json.dumps(definition),
            until=self._is_defined,
        )
        head = {"apiVersion": "ex.io/v1", "kind": "Foo"}
        await self.store_objects(
            "foos",
            ({**head, "metadata": {"name": f"f{n}"}, "spec": {}} for n in range(self._count)),
        )
        changed = {
            "spec": _definition({"size": {"type": "integer"}, "x": {"type": "string"}})["spec"]
        }
        merge = "application/merge-patch+json"
        await self.measure_request(
            "change a schema", "PATCH", f"{crds}/foos.ex.io", merge, json.dumps(changed)
        )
        await self.measure_request(
            "delete a definition",
            *("DELETE", f"{crds}/foos.ex.io"),
            until=lambda: not self._is_defined(),
        )

    def _is_defined(self) -> bool:
        return self._server.app.catalog.get("ex.io", "v1", "foos") is not None


def _definition(fields: Json) -> Json:
    spec = {"type": "object", "properties": fields}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
    }
    names = {"plural": "foos", "kind": "Foo"}
    return {
        "metadata": {"name": "foos.ex.io"},
        "spec": {"group": "ex.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }


class RequestProcess:
    """The other process: sends one request and prints status and size of the response."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def do(self, verb: str, path: str, form: str = "", body: str = "") -> str:
        """One operation of the bench."""
        if verb == "PAGES":
            return await self._pages(path)
        if verb == "CHANGE":
            await self._send("DELETE", f"{SECRETS.format('default')}/s000001")
            return await self._send("GET", path)
        if verb == "EXACT":
            head = await self._read(f"{path}?limit=1")
            await self._send("DELETE", f"{path}/s000002")
            version = head["metadata"]["resourceVersion"]
            query = f"resourceVersion={version}&resourceVersionMatch=Exact"
            return await self._send("GET", f"{path}?{query}")
        headers = {"Accept": form} if verb in ("GET", "WATCH") else {"Content-Type": form}
        return await self._send(
            "GET" if verb == "WATCH" else verb,
            path,
            data=body.encode() or None,
            headers={key: value for key, value in headers.items() if value},
        )

    async def _send(self, method: str, path: str, **options: Any) -> str:
        async with self._session.request(method, self._url + path, **options) as response:
            size = 0
            async for piece in response.content.iter_any():
                size += len(piece)
            return f"{response.status}, {size} bytes"

    async def _read(self, path: str) -> Json:
        async with self._session.get(self._url + path) as response:
            read: Json = await response.json()
            return read

    async def _pages(self, path: str) -> str:
        token, pages = "", 0
        while True:
            page = await self._read(f"{path}?limit=500&continue={token}")
            await self._send("DELETE", f"{path}/s{pages + 10:06d}")
            pages += 1
            token = page["metadata"].get("continue", "")
            if not token:
                return f"{pages} pages"


async def _client() -> None:
    task = json.loads(sys.stdin.read())
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context),
        headers={"Authorization": f"Bearer {task['token']}"},
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        print(await RequestProcess(session, task["url"]).do(*task["request"]), end="")


@asynccontextmanager
async def _started(count: int) -> AsyncIterator[LoopLatencyBench]:
    probe = LoopLatencyProbe()
    with tempfile.TemporaryDirectory(prefix="batholith-bench-") as directory:
        async with running(Settings(data_dir=Path(directory), port=0)) as server:
            # As the server's own process does.
            gc.collect()
            gc.freeze()
            gc.set_threshold(GC_THRESHOLD, 50, 50)
            looking = asyncio.create_task(probe.run())
            yield LoopLatencyBench(server, count, probe)
            looking.cancel()


async def main(count: int) -> None:
    """Print a row for each operation."""
    print(f"| on {count} objects | seconds | CPU at worst, ms | late, ms | response |")
    print("| --- | ---: | ---: | ---: | --- |")
    async with _started(count) as bench:
        await bench.run()


if __name__ == "__main__":
    if "--client" in sys.argv:
        asyncio.run(_client())
    else:
        uvloop.run(main(int(sys.argv[1]) if sys.argv[1:] else 50_000))
