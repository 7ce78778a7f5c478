"""The pages in Chromium, on a cluster that is started as users do it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.browser import Browser, browser

from batholith.client import Client
from batholith.kube.client.config import load_credentials
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.supervisor import read_state

pytestmark = pytest.mark.process

AXE = Path(__file__).parents[1] / "data" / "axe.min.js"
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run({resultTypes: ["violations"]}).then(found => done(found.violations
    .filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => each.id + ": " + each.nodes.map(node => node.html).join(" "))));
"""
REPLACE_LIST = """
document.querySelector("form.filters").addEventListener("htmx:beforeSend", () => {
    const list = document.getElementById("jobs");
    list.replaceWith(list.cloneNode(true));
}, {once: true});
"""
"""Replaces the list as a refresh does whose response arrives before that of a filter."""
READ_SLOWLY = """
const {send} = XMLHttpRequest.prototype;
window.refreshes = 0;
document.addEventListener("refresh", () => { window.refreshes += 1; });
XMLHttpRequest.prototype.send = function (...given) {
    XMLHttpRequest.prototype.send = send;
    const {onload} = this;
    this.onload = () => { window.respond = () => onload.call(this); };
    return send.apply(this, given);
};
"""
"""Of the next request, the response arrives when the test wants it."""

READ = """
if (!window.respond) htmx.trigger("#jobs", "refresh");
return window.respond ? window.refreshes : null;
"""
"""Reads the list until that is the request; htmx drops a refresh while another one is answered."""

COUNT_RESPONSES = """
window.responses = 0;
document.addEventListener("htmx:beforeSwap", () => { window.responses += 1; });
"""
PRESS_AFTER_REFRESH = """
document.addEventListener("htmx:afterSwap", () => setTimeout(
    () => document.querySelector("button[value=suspend]").click()
), { once: true });
htmx.trigger("#jobs", "refresh");
"""
"""Presses a button at the first moment in which a user could after the list was replaced."""
SCRIPT = "<script>window.attacked = true</script>"


@dataclass
class Cluster:
    """A cluster that is up, and a browser whose user has followed its link."""

    data: DataDir
    url: str
    client: Client
    browser: Browser

    def submit(self, command: str, *, annotation: str = "", replicas: int = 2) -> str:
        """Submit a gang of pods that run a shell command; return the name of the job."""
        name = f"train-{uuid.uuid4().hex[:6]}"
        container = {"name": "c", "image": "busybox", "command": ["sh", "-c", command]}
        manifest: dict[str, Any] = {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": name, "annotations": {"note": annotation}},
            "spec": {
                "minAvailable": replicas,
                "schedulerName": "volcano",
                "tasks": [
                    {
                        "name": "w",
                        "replicas": replicas,
                        "template": {
                            "spec": {
                                "containers": [container],
                                "restartPolicy": "Never",
                                "terminationGracePeriodSeconds": 0,
                            }
                        },
                    }
                ],
            },
        }
        self.client.jobs.submit(manifest)
        return name

    def kill_api(self) -> int:
        """``kill -9`` the REST API; return its process id."""
        state = read_state(self.data)
        assert state is not None
        process = state.components["api"].process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        return process.pid


def batholith(*arguments: str) -> str:
    command = [sys.executable, "-m", "batholith", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = DataDir(tmp_path_factory.mktemp("browser") / "data")
    with contextlib.ExitStack() as stack:
        page = stack.enter_context(browser())
        ports = ("--port", "0", "--api-port", "0")
        banner = batholith("up", "--detach", "--data-dir", str(data.root), *ports)
        stack.callback(batholith, "down", "--data-dir", str(data.root))
        (link,) = re.findall(r"http://batholith\.localhost\S+/login\?code=\S+", banner)
        page.open(link)
        page.find("#jobs")
        url = link.partition("/login")[0]
        client = stack.enter_context(_client(url, data))
        yield Cluster(data=data, url=url, client=client, browser=page)


def _client(url: str, data: DataDir) -> Client:
    return Client(
        url.replace("batholith.localhost", "127.0.0.1"),
        kubeconfig=str(data.kubeconfig),
    )


def _row(name: str) -> str:
    return f"#jobs tr:has(input[value='default/{name}'])"


def test_a_job_is_followed_suspended_and_resumed(cluster: Cluster) -> None:
    page = cluster.browser
    page.open(f"{cluster.url}/jobs")
    page.wait_text("#live-state", "live")
    name = cluster.submit("echo started; sleep 1000")
    page.wait_text(_row(name), "Running")
    page.click(f"{_row(name)} input")
    page.click("button[value=suspend]")
    assert page.confirm() == "Suspend 1 job?"
    page.wait_text("#message", "1 job commanded")
    page.wait_text(_row(name), "Aborted")

    page.click(f"{_row(name)} a")
    page.wait_text("#phase", "Aborted")
    assert "resume" in page.text("#why")
    bars = len(page.all("#timeline .row:first-of-type rect"))
    page.click("button[value=resume]")
    page.wait_text("#phase", "Running")
    page.wait(lambda: len(page.all("#timeline .row")) == 3, "a row of each pod")
    page.wait(lambda: len(page.all("#timeline .row:first-of-type rect")) > bars, "more phases")
    running = "#timeline .row:not(:first-of-type) rect.running"
    page.wait(lambda: len(page.all(running)) == 2, "running pods")
    page.click("button[value=terminate]")
    assert page.confirm() == f"Cancel default/{name}?"
    page.wait_text("#phase", "Terminated")
    assert page.errors() == []


def test_logs_are_followed_and_texts_of_pods_stay_texts(cluster: Cluster) -> None:
    page = cluster.browser
    lines = "i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); sleep 1; done"
    command = f"echo '{SCRIPT}'; {lines}"
    name = cluster.submit(command, annotation=SCRIPT, replicas=1)
    page.open(f"{cluster.url}/jobs/default/jobs/{name}")
    page.wait_text("#phase", "Running")
    page.click("#log-form button")
    page.wait_text("#log", SCRIPT)
    page.wait_text("#log", "line 2")
    page.find("#log-form [type=search]").send_keys("attacked")
    page.wait(lambda: "line" not in page.text("#log"), "lines that match only")
    assert SCRIPT in page.text("#log")
    page.click("details.manifest summary")
    page.wait_text("#manifest", SCRIPT)
    assert page.driver.execute_script("return window.attacked") is None
    assert page.errors() == []
    cluster.client.jobs.get(name).delete()


def test_a_filter_is_applied_although_the_list_is_read_again_meanwhile(cluster: Cluster) -> None:
    page = cluster.browser
    name = cluster.submit("sleep 1000", replicas=1)
    page.open(f"{cluster.url}/jobs")
    page.wait(lambda: page.all(_row(name)), "the job")
    page.driver.execute_script(REPLACE_LIST)
    page.find("#search").send_keys("no-such-job")
    page.wait(lambda: not page.all(_row(name)), "the filter")
    cluster.client.jobs.get(name).delete()


def test_a_change_is_shown_although_it_was_reported_while_the_list_was_read(
    cluster: Cluster,
) -> None:
    page = cluster.browser
    job = cluster.client.jobs.get(cluster.submit("true", replicas=1))
    job.wait(timeout=60)
    page.open(f"{cluster.url}/jobs")
    page.wait_text("#live-state", "live")
    page.wait_text(_row(job.name), "Completed")
    page.driver.execute_script(READ_SLOWLY)
    before = page.wait(lambda: page.driver.execute_script(READ), "the response")
    job.delete()
    changed = f"return window.refreshes > {before}"
    page.wait(lambda: page.driver.execute_script(changed), "the refresh after the deletion")
    page.driver.execute_script("window.respond()")
    page.wait(lambda: not page.all(_row(job.name)), "the deletion")


def test_a_key_that_is_down_while_the_list_is_read_selects(cluster: Cluster) -> None:
    page = cluster.browser
    name = cluster.submit("sleep 1000", replicas=1)
    box = f"input[value='default/{name}']"
    page.open(f"{cluster.url}/jobs")
    page.wait_text(_row(name), "Running")
    page.tab_to(box)
    ActionChains(page.driver).key_down(Keys.SPACE).perform()
    page.driver.execute_script(COUNT_RESPONSES)
    read = "htmx.trigger('#jobs', 'refresh'); return window.responses > 0"
    page.wait(lambda: page.driver.execute_script(read), "the list")
    ActionChains(page.driver).key_up(Keys.SPACE).perform()
    page.wait(lambda: page.all(f"{box}:checked"), "the selection")
    cluster.client.jobs.get(name).delete()


def test_a_button_works_as_soon_as_the_list_was_replaced(cluster: Cluster) -> None:
    page = cluster.browser
    name = cluster.submit("sleep 1000", replicas=1)
    page.open(f"{cluster.url}/jobs")
    page.wait_text(_row(name), "Running")
    page.tab_to(f"input[value='default/{name}']")
    page.press(Keys.SPACE)
    page.driver.execute_script(PRESS_AFTER_REFRESH)
    page.reject()
    cluster.client.jobs.get(name).delete()


def test_jobs_are_filtered_suspended_and_followed_by_keys_alone(cluster: Cluster) -> None:
    page = cluster.browser
    other = cluster.submit("sleep 1000", replicas=1)
    name = cluster.submit("while :; do echo tick; sleep 1; done", replicas=1)
    page.open(f"{cluster.url}/jobs")
    page.wait_text("#live-state", "live")
    page.tab_to("a.skip")
    page.press(Keys.ENTER)
    page.tab_to("#search")
    page.press(name)
    page.wait(lambda: not page.all(_row(other)), "the filter")
    page.wait_text(_row(name), "Running")
    box, suspend = f"input[value='default/{name}']", "button[value=suspend]"
    page.tab_to(box)
    page.press(Keys.SPACE)
    page.tab_to(suspend, back=True)
    page.press(Keys.ENTER)
    page.reject()
    page.wait(lambda: page.has_focus(suspend), "the focus of the button")
    page.press(Keys.ENTER)
    assert page.confirm() == "Suspend 1 job?"
    page.wait_text(_row(name), "Aborted")  # the list was replaced, with the button
    page.wait(lambda: page.has_focus(suspend), "the focus of the button")
    page.tab_to(f"{_row(name)} a")
    page.press(Keys.ENTER)
    page.wait_text("#phase", "Aborted")
    page.tab_to("button[value=resume]")
    page.press(Keys.ENTER)
    page.wait_text("#phase", "Running")
    page.wait(lambda: page.has_focus("button[value=resume]"), "the focus of the button")
    page.tab_to("#log-form button")
    page.press(Keys.ENTER)
    page.wait_text("#log", "tick\n[")  # two lines: more follow
    page.tab_to("#log")
    page.tab_to("summary")
    page.press(Keys.ENTER)
    page.wait_text("#manifest", name)
    assert page.errors() == []
    for each in (name, other):
        cluster.client.jobs.get(each).delete()


def test_the_list_goes_on_after_a_restart_of_the_api_without_double_rows(
    cluster: Cluster,
) -> None:
    page = cluster.browser
    first = cluster.submit("sleep 1000", replicas=1)
    page.open(f"{cluster.url}/jobs")
    page.wait_text("#live-state", "live")
    page.wait_text(_row(first), "Running")
    cluster.kill_api()
    page.wait_text("#live-state", "reconnecting")
    page.wait_text("#live-state", "live")
    second = page.wait(lambda: cluster.submit("sleep 1000", replicas=1), "the API")
    page.wait_text(_row(second), "Running")
    names = [each.get_attribute("value") for each in page.all("#jobs input[name=job]")]
    assert len(names) == len(set(names))
    assert f"default/{first}" in names
    for name in (first, second):
        cluster.client.jobs.get(name).delete()
    page.wait(lambda: not page.all(_row(first)), "the deleted job")


def test_pages_are_accessible_in_light_and_dark_and_fit_a_narrow_screen(cluster: Cluster) -> None:
    page = cluster.browser
    name = cluster.submit("exit 3", replicas=2)
    job = cluster.client.jobs.get(name)
    job.wait(timeout=60)
    paths = (
        *(
            "/jobs",
            f"/jobs/default/jobs/{name}",
            "/jobs?labels=%3D",
            "/queues",
            "/history",
            "/cluster",
        ),
        *("/history", f"/history/jobs/{job.info.uid}", "/history/usage"),
    )
    try:
        for dark, width in ((False, 1100), (True, 400)):
            page.set_dark(dark)
            page.resize(width)
            for path in paths:
                page.open(cluster.url + path)
                page.find("main")
                page.driver.execute_script(AXE.read_text())
                assert page.driver.execute_async_script(RUN_AXE) == [], (path, dark)
                script = "return document.documentElement.scrollWidth"
                assert page.driver.execute_script(script) <= width, (path, width)
                assert page.errors() == [], path
    finally:
        page.set_dark(False)
        page.resize(1100)


def test_a_page_leaves_when_its_session_has_ended(cluster: Cluster) -> None:
    page = cluster.browser
    page.open(f"{cluster.url}/jobs")
    page.wait_text("#live-state", "live")
    cookie = page.driver.get_cookie("batholith_session")
    assert cookie is not None
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    address = cluster.url.replace("batholith.localhost", "127.0.0.1")
    response = httpx.post(
        f"{address}/logout",
        headers={"Origin": address, "Cookie": f"batholith_session={cookie['value']}"},
    )
    assert response.status_code == 303
    page.wait(lambda: page.driver.current_url.endswith("/login"), "the page to sign in")
    page.find("#token").send_keys(load_credentials(str(cluster.data.kubeconfig)).token)
    page.click("form.login button")
    page.wait_text("#live-state", "live")
