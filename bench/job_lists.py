"""Lists of jobs for people: ``python -m bench.job_lists [JOBS] [ON THE PAGE]``, 10,000 and 5,000.

An API server and the REST API run as processes. Printed are the elapsed time, the processor time of
``batholith jobs`` and of the REST API, its requests and the size of the output; and the same of the
page with the list of jobs, as a browser loads it and as it reads it again after a change. Each is
measured several times, and the median is printed.
"""

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import aiohttp
import uvloop

from batholith.kube.client.config import load_credentials
from bench.apiserver import running_server
from bench.load import NAMESPACE
from bench.rest_pages import RestApi, config_of, fill, install_crds, rest_api, wait_total

REPEATS = 5
REQUESTS = "batholith_rest_requests_total{"
Call = Callable[[], Awaitable[tuple[float, int]]]
"""Returns its processor time in seconds, and the bytes of its output."""


def _cpu_of(pid: int) -> float:
    """Return the seconds of processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _requests(session: aiohttp.ClientSession, api: RestApi) -> float:
    """Return the number of requests that the REST API has answered so far."""
    async with session.get(api.metrics) as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(REQUESTS))


async def measure(name: str, session: aiohttp.ClientSession, api: RestApi, call: Call) -> None:
    """Print a row of *call*."""
    rows = []
    size = 0
    for _ in range(REPEATS):
        requests = await _requests(session, api)
        before, begun = _cpu_of(api.pid), time.perf_counter()
        own, size = await call()
        passed, server = time.perf_counter() - begun, _cpu_of(api.pid) - before
        rows.append((passed, own, server, await _requests(session, api) - requests))
    passed, own, server, requests = (statistics.median(each) for each in zip(*rows, strict=True))
    print(
        f"| {name} | {passed:.2f} | {own:.2f} | {server:.2f} | {requests:.0f} | {size / 1e6:.2f} |",
        flush=True,
    )


async def _command(api: RestApi, token_file: Path, output: str) -> tuple[float, int]:
    connection = ("--url", api.url, "--token-file", str(token_file), "-n", NAMESPACE)
    command = [sys.executable, "-m", "batholith.cli", "jobs", "-o", output, *connection]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return own, len(done.stdout)


async def _page(
    session: aiohttp.ClientSession, url: str, headers: dict[str, str]
) -> tuple[float, int]:
    async with session.get(url, headers=headers) as response:
        body = await response.read()
        if response.status != 200:
            raise RuntimeError(f"{url}: {response.status}")
    return 0.0, len(body)


async def _measure_page(api: RestApi, token: str, jobs: int) -> None:
    jar = aiohttp.CookieJar(unsafe=True)  # of an address instead of a name
    async with aiohttp.ClientSession(headers={"Origin": api.url}, cookie_jar=jar) as browser:
        async with browser.post(f"{api.url}/login", data={"token": token}) as response:
            response.raise_for_status()
        url = f"{api.url}/jobs?namespace={NAMESPACE}"
        await measure(f"the page, {jobs} jobs", browser, api, partial(_page, browser, url, {}))
        fragment = {"HX-Request": "true"}
        call = partial(_page, browser, url, fragment)
        await measure(f"its list, {jobs} jobs", browser, api, call)


async def main(jobs: int, on_page: int) -> None:
    """Fill a cluster and measure."""
    command = (sys.executable, "-m", "batholith.cli", "apiserver")
    async with running_server(*command) as (server, client):
        await install_crds(client)
        config = config_of(server)
        token = load_credentials(config).token
        token_file = Path(config).parent / "bench-token"
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        print("| what | seconds | processor: client | REST API | requests | MB |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            with rest_api(config, "--pages") as api:
                await fill(client, on_page)
                await wait_total(session, api.url, on_page)
                await _measure_page(api, token, on_page)
                await fill(client, jobs, first=on_page)
                await wait_total(session, api.url, jobs)
                for output in ("table", "wide", "json", "name"):
                    name = f"`batholith jobs -o {output}`, {jobs} jobs"
                    call = partial(_command, api, token_file, output)
                    await measure(name, session, api, call)


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:]]
    uvloop.run(main(*(numbers + [10_000, 5_000][len(numbers) :])))
