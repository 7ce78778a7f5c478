"""Root file systems of images, as root's agent and as a normal user's, stacked and copied.

The images are hostile; they are loaded by the agent's user, like those of its pods.
"""

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.images import Layer, busybox, image, write_layout

from batholith.local.agent.images import archives
from batholith.local.agent.images.store import ImageStore, StoredImage
from batholith.local.agent.images.unpacking import UnpackLimits
from batholith.local.agent.runtime import image_run, runs, shim
from batholith.local.agent.runtime.ids import IMAGES, SHARED, Ids
from batholith.local.agent.runtime.image_run import RunImage
from batholith.local.agent.runtime.mounting import ID_RANGE_SIZE
from batholith.local.agent.runtime.removal import remove_tree
from batholith.local.agent.runtime.rootfs import Mount, mount_plan
from batholith.local.agent.runtime.runs import ExitRecord, IsolationLevel, LaunchSpec, RunDir

pytestmark = [pytest.mark.process, pytest.mark.combinations(2)]

UNPRIVILEGED = 54321
SHIM = Path(shim.__file__).with_name("starting.py")


def as_user(user: int, function: Callable[[], Any]) -> None:
    """Run a function in a process of *user*."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0 and user:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@dataclass
class Agent:
    """An agent's user, its data directory, and containers without a pod."""

    user: int
    data: Path
    overlay: bool
    program: str

    @property
    def store(self) -> ImageStore:
        return ImageStore(self.data / "agent")

    @property
    def real_program(self) -> str:
        """The interpreter of the agent's programs."""
        return os.path.realpath(self.program)

    @property
    def ids(self) -> Ids:
        """The ids of the pod: not those of the store, nor the shared ones."""
        return Ids(SHARED + ID_RANGE_SIZE) if self.user == 0 else Ids()

    def load(self, *layers: Layer, name: str = "app:1", shell: bool = True) -> StoredImage:
        """Load an image with some layers, on top of busybox with *shell*."""
        every = [busybox(), *layers] if shell else layers
        layout = write_layout(self.data / "layout", name, image(every))
        own(layout, self.user)
        as_user(
            self.user,
            lambda: archives.load(self.store, layout, limits=UnpackLimits(free=0), name=name),
        )
        shutil.rmtree(layout)
        [stored] = self.store.images()
        return stored

    async def run(
        self,
        stored: StoredImage,
        script: str,
        *mounts: Mount,
        user: int = 0,
        argv: Sequence[str] = (),
        **options: Any,
    ) -> tuple[ExitRecord, list[str]]:
        """Run a shell script; return its exit, and its output."""
        run_dir = self.new_run()
        run_image = self.run_image(stored, **options)
        steps = [("ro" if m.read_only else "rw", m.source, m.target, m.sub_path) for m in mounts]
        return await self.execute(
            run_dir,
            LaunchSpec(
                argv=argv or ["/bin/sh", "-c", f"exec 2>&1; {script}"],
                env={"PATH": "/bin"},
                cwd=run_image.working_dir,
                log=run_dir.path / "log",
                hostname="some-pod",
                isolation=IsolationLevel.UNSHARE,
                user=(user, user),
                ids=self.ids,
                steps=steps,
                image=run_image,
            ),
        )

    def new_run(self) -> RunDir:
        return RunDir(self.data / "agent" / "pods" / str(uuid.uuid4()) / "c" / "0")

    def run_image(self, stored: StoredImage, **options: Any) -> RunImage:
        return RunImage(
            name=stored.name,
            image_id=stored.id,
            chains=stored.layers,
            directories=tuple(str(self.store.layer_dir(each)) for each in reversed(stored.layers)),
            first_id=IMAGES if self.user == 0 else None,
            overlay=self.overlay,
            **options,
        )

    async def execute(self, run_dir: RunDir, spec: LaunchSpec) -> tuple[ExitRecord, list[str]]:
        """Run what *spec* describes; return its exit, and its output."""
        run_dir.prepare(spec)
        own(run_dir.path.parents[1], self.user)
        more: dict[str, Any] = {}
        if os.geteuid() == 0:
            more = {"user": self.user, "group": self.user, "extra_groups": []}
        process = await asyncio.create_subprocess_exec(
            self.program, "-I", "-S", str(SHIM), str(run_dir.path), start_new_session=True,
            env={runs.RUN_VARIABLE: run_dir.name, "PATH": os.defpath}, **more,
        )  # fmt: skip
        await process.wait()
        record = run_dir.exit_record()
        assert record is not None, run_dir.errors()
        return record, [line.split(" ", 3)[3] for line in spec.log.read_text().splitlines()]


def own(directory: Path, user: int) -> None:
    if os.geteuid() == 0:
        for path in (directory, *directory.rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)


@pytest.fixture(params=["root-overlay", "root-copy", "user-overlay", "user-copy"])
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    kind, _, how = request.param.partition("-")
    if kind == "root" and os.geteuid():
        pytest.skip("only root can run what root's pods can do")
    program = sys.executable if os.geteuid() else shutil.which("python3", path="/usr/bin")
    if program is None:
        pytest.skip("no python3 that all users may run")
    candidates = [p for p in ("/srv", "/opt", os.path.expanduser("~")) if os.access(p, os.W_OK)]
    data = Path(tempfile.mkdtemp(prefix="batholith-images-", dir=candidates[0]))
    user = 0 if kind == "root" else (os.geteuid() or UNPRIVILEGED)
    (data / "agent").mkdir(mode=0o700)
    own(data, user)
    try:
        yield Agent(user, data, how == "overlay", program)
    finally:
        remove_tree(data)


def snapshot(directory: Path) -> dict[str, Any]:
    """Return the files of a directory with owner, mode and content."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path)] = (status.st_uid, status.st_mode, status.st_mtime_ns, content)
    return found


async def test_layers_are_one_tree(agent: Agent) -> None:
    base = (
        Layer().file("removed", "1").file("d/x", "1").file("d/y", "1").dir("e").file("e/old", "1")
        .file("same", "1").hard_link("other", "same").file("f", "1").dir("g").file("g/x", "1")
    )  # fmt: skip
    upper = (
        Layer().file(".wh.removed").file("d/x", "2").file("e/.wh..wh..opq").file("e/new", "2")
        .dir("f").file("f/x", "2").file("g", "2").link("link", "d/x")
    )  # fmt: skip
    stored = agent.load(base, upper)
    record, lines = await agent.run(
        stored,
        "cat /removed; ls /d /e /f; cat /d/x /link /g; echo; stat -c %h /same; stat -c %a /tmp",
    )
    assert record.code == 0
    assert sorted(lines[:-3]) == sorted(
        ["cat: can't open '/removed': No such file or directory", "/d:", "x", "y", "", "/e:", "new",
         "", "/f:", "x"]
    )  # fmt: skip
    assert lines[-3:] == ["222", "2", "1777"]


@pytest.mark.parametrize("user", [0, 1000])
async def test_containers_change_neither_layers_nor_each_other(agent: Agent, user: int) -> None:
    stored = agent.load(Layer().dir("d", mode=0o777).file("d/f", "1\n", mode=0o666, uid=user))
    before = snapshot(agent.store.root)
    script = (
        "cat /d/f; echo changed > /d/f; rm -rf /bin/ls /d/new; touch /d/new; chmod 4777 /d/f;"
        "chown 7 /d/f"
    )
    for _ in range(2):
        _, lines = await agent.run(stored, script, user=user)
        assert "1" in lines
    assert snapshot(agent.store.root) == before


async def test_files_have_the_owners_of_the_image(agent: Agent) -> None:
    stored = agent.load(
        Layer()
        .file("app", "app\n", uid=1234, gid=4321, mode=0o600)
        .file("root", "root\n", mode=0o600)
    )
    script = "(cat /app /root; stat -c %u:%g /app /root) 2>&1"
    _, lines = await agent.run(stored, script, user=1234)
    if agent.user == 0:
        denied = "cat: can't open '/root': Permission denied"
        assert lines == ["app", denied, "1234:4321", "0:0"]
    else:
        assert lines == ["app", "root", "1234:1234", "1234:1234"], "a normal user has one id only"


@pytest.mark.parametrize("name", ["dev", "proc", "sys"])
@pytest.mark.parametrize("target", ["outside", "/etc", "../../../..", "missing"])
async def test_special_directories_are_no_links(agent: Agent, name: str, target: str) -> None:
    outside = agent.data / "outside"
    outside.mkdir(mode=0o777)
    stored = agent.load(Layer().link(name, str(outside) if target == "outside" else target))
    record, _ = await agent.run(stored, "true")
    assert record.reason == "StartError"
    assert f"the image's /{name} is not a directory" in record.message
    assert list(outside.iterdir()) == []


async def test_mounts_below_links_of_the_image_stay_inside(agent: Agent) -> None:
    outside, volume = agent.data / "outside", agent.data / "volume"
    for each in (outside, volume):
        each.mkdir()
        own(each, agent.user)
    (volume / "key").write_text("value")
    secret = secrets.token_hex()
    (outside / "secret").write_text(secret)
    before = snapshot(outside)
    layer = (
        Layer().file("etc/.wh..wh..opq").link("run", str(outside)).link("data", f"{outside}/data")
        .link("up", "../" * 30 + str(outside).lstrip("/")).link("w", f"{outside}/w")
        .link("passwd", f"{outside}/secret")
    )  # fmt: skip
    stored = agent.load(layer)
    record, lines = await agent.run(
        stored,
        "cat /data/v/key; echo; cat /up/v/key; echo; cat /passwd; pwd; touch here && echo done",
        Mount(str(volume), "/data/v", read_only=True),
        Mount(str(volume), "/up/v"),
        Mount(str(volume), "/run/v"),
        working_dir="/w/d",
        volumes=("/data/v2",),
    )
    assert record.code == 0, (record, lines)
    assert lines[:2] == ["value", "value"]
    assert secret not in "".join(lines)
    assert lines[-1] == "done"
    assert snapshot(outside) == before


@pytest.mark.parametrize("target", ["/", "../..", "."])
async def test_root_is_not_replaced_by_a_volume(agent: Agent, target: str) -> None:
    volume = agent.data / "volume"
    volume.mkdir()
    own(volume, agent.user)
    stored = agent.load(Layer().link("data", target))
    record, _ = await agent.run(stored, "true", Mount(str(volume), "/data"))
    assert record.reason == "StartError"
    assert "a link to the root directory" in record.message


async def test_mounts_below_a_link_to_proc_do_not_replace_it(agent: Agent) -> None:
    volume = agent.data / "volume"
    volume.mkdir()
    own(volume, agent.user)
    stored = agent.load(Layer().link("data", "/proc"))
    _, lines = await agent.run(
        stored, "echo x > /proc/sys/kernel/hostname; ls /proc/sys",
        Mount(str(volume), "/data/sys"),
    )  # fmt: skip
    assert "can't create" in lines[0]
    assert "kernel" in lines


async def test_setuid_programs_give_no_rights(agent: Agent) -> None:
    [(_, content)] = [each for each in busybox().entries if each[0].name == "bin/busybox"]
    stored = agent.load(Layer().file("bin/su-id", content, mode=0o4755))
    # busybox chooses the applet by its name.
    script = "ln -s /bin/su-id /tmp/id; stat -c %a /bin/su-id; /tmp/id -u"
    _, lines = await agent.run(stored, script, user=1000)
    assert lines[:2] == ["755", "1000"]


async def test_programs_named_like_the_agent_s_are_not_executed_as_root(agent: Agent) -> None:
    """Only the container's own command runs what the image has, with the pod's ids."""
    hostile = "#!/bin/sh\necho RAN $(cat /proc/self/uid_map) >&2\n"
    layer = Layer()
    for path in (
        agent.program,
        agent.real_program,
        "/usr/bin/env",
        "/usr/bin/newgidmap",
        "/sbin/modprobe",
        "/bin/mount",
        "/usr/sbin/nologin",
    ):
        layer.file(path, hostile, mode=0o755)
    stored = agent.load(layer)
    record, lines = await agent.run(stored, "echo own")
    assert record.code == 0
    assert lines == ["own"]
    assert record.message == ""


_GO_PROGRAM = """package main
import ("fmt"; "os")
func main() {
    name, _ := os.Hostname()
    data, err := os.ReadFile("/etc/data/key")
    fmt.Println(name, os.Getuid(), string(data), err, os.WriteFile("/tmp/file", data, 0600))
}
"""


async def test_static_program_runs_without_anything_else(agent: Agent, tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    (tmp_path / "main.go").write_text(_GO_PROGRAM)
    build = await asyncio.create_subprocess_exec(
        go, "build", "-o", "app", "main.go", cwd=tmp_path,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GO111MODULE": "off"},
    )  # fmt: skip
    assert await build.wait() == 0
    volume = agent.data / "volume"
    volume.mkdir()
    (volume / "key").write_text("value")
    own(volume, agent.user)
    layer = Layer().file("app", (tmp_path / "app").read_bytes(), mode=0o755).dir("tmp", mode=0o1777)
    stored = agent.load(layer, shell=False)
    record, lines = await agent.run(
        stored, "", Mount(str(volume), "/etc/data", read_only=True), user=1000, argv=["/app"]
    )
    assert (record.code, lines) == (0, ["some-pod 1000 value <nil> <nil>"])


async def test_image_without_layers_has_mount_points_only(agent: Agent) -> None:
    stored = agent.load(shell=False)
    record, _ = await agent.run(stored, "true")
    assert 'exec: "/bin/sh": No such file' in record.message


@pytest.mark.parametrize("sub_path", ["", "dir"])
async def test_programs_of_the_machine_read_the_image_of_a_volume(
    agent: Agent, sub_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = agent.load(Layer().file("dir/a", "old"), Layer().file("dir/a", "new"), shell=False)
    monkeypatch.setattr(sys, "executable", agent.program)
    run_dir = agent.new_run()
    volume = run_dir.path / "volume"
    volume.mkdir(parents=True)
    image_of_volume = image_run.volume_image(run_dir.path, volume, agent.run_image(stored))
    mount = Mount(str(volume), "/model", True, sub_path)
    path = "/model" if sub_path else "/model/dir"
    script = f"cat {path}/a; echo; echo 1 > {path}/a; stat -c %u {path}/a"
    if os.geteuid() == 0:
        os.seteuid(agent.user)
    try:
        steps = mount_plan([mount], hidden=[], home="/no-home")
    finally:
        os.seteuid(os.getuid())
    record, lines = await agent.execute(
        run_dir,
        LaunchSpec(
            argv=["sh", "-c", f"exec 2>&1; {script}; grep ' /model ' /proc/mounts"],
            env={"PATH": os.defpath},
            cwd="/",
            log=run_dir.path / "log",
            hostname="some-pod",
            isolation=IsolationLevel.BUBBLEWRAP if agent.user else IsolationLevel.UNSHARE,
            ids=agent.ids,
            steps=steps,
            can_stage=True,
            volume_images=(image_of_volume,),
        ),
    )
    assert record.code == 0, lines
    assert (lines[0], lines[2]) == ("new", "0")
    assert "Read-only file system" in lines[1]
    [mounted] = lines[3:]
    assert mounted.startswith("overlay ") == agent.overlay
    assert {"ro", "nosuid", "nodev", "noexec"} <= {*mounted.split()[3].split(",")}
