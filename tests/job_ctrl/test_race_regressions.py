"""Small histories that a random machine found, told again step by step."""

from typing import Any

import pytest
from support.job_stateful import PATIENCE, Life
from support.jobs import task

from batholith.model.names import (
    COMMANDS,
    JOBS,
    PERSISTENTVOLUMECLAIMS,
    PODGROUPS,
    PODS,
    SERVICES,
)


def submit(life: Life, **spec: Any) -> None:
    life.submit({"minAvailable": 2, "maxRetry": 3, "queue": "q", "tasks": [task()], **spec})


def test_a_podgroup_that_goes_before_its_creation_is_answered_is_made_again(life: Life) -> None:
    gone: list[str] = []

    def hear(prefix: str, change: str, new: Any, old: Any) -> None:
        life.audit.hear(prefix, change, new, old)
        if prefix == PODGROUPS.path() and not gone:
            gone.append(new["metadata"]["name"])
            life.loop.call_soon(life.api.take_away, PODGROUPS, gone[0])

    life.api.told, life.api.lag = hear, 10
    submit(life)
    life.do(life.rest())
    assert gone
    assert life.group() is not None


def test_a_podgroup_that_no_cache_ever_showed_is_known_to_be_gone(life: Life) -> None:
    life.do(life.start())
    life.do(life.idle())
    life.api.hold(PODGROUPS)
    submit(life)
    life.do(life.pass_time(2))
    assert life.group() is not None
    life.command("RestartJob")
    life.do(life.pass_time(2))
    assert (life.phase, life.group()) == ("Restarting", None)
    life.api.lose()
    life.do(life.rest())
    assert life.phase == "Pending"
    assert life.group() is not None


def test_a_pod_that_no_cache_ever_showed_is_known_to_be_gone(life: Life) -> None:
    submit(life)
    life.do(life.rest())
    life.api.hold(PODS)
    life.admit()
    life.do(life.pass_time(2))
    life.evict("j-t-1", force=True)
    life.api.lose()
    life.do(life.rest())
    assert life.named(PODS).keys() == {"j-t-0", "j-t-1"}


def test_pods_that_are_left_to_themselves_are_forgotten(life: Life) -> None:
    """INV-VC-3: a job deleted with propagation Orphan."""
    submit(life)
    life.do(life.rest())
    life.admit()
    life.do(life.rest())
    for name in ("j-t-0", "j-t-1"):
        life.api.put(PODS, name, metadata={"ownerReferences": []})
    life.delete_job()
    life.sweep()
    life.do(life.rest())
    assert life.controller is not None
    assert life.controller.statistics() == {"cases": 0, "queued": 0}
    submit(life)
    life.do(life.rest())
    life.admit()
    for name in ("j-t-0", "j-t-1"):
        life.api.take_away(PODS, name)
    life.do(life.rest())
    (uid,) = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in life.named(PODS).values()}
    assert life.job is not None
    assert uid == life.job["metadata"]["uid"]


def test_a_pod_that_somebody_hides_is_not_evicted_again_and_again(life: Life) -> None:
    submit(life, policies=[{"action": "RestartPod", "event": "PodEvicted"}], maxRetry=9)
    life.do(life.rest())
    life.admit()
    life.do(life.rest())
    life.audit.evicted("j-t-0")
    life.api.put(PODS, "j-t-0", metadata={"labels": {"volcano.sh/job-name": None}})
    for _ in range(5):
        life.do(life.rest())
        life.admit()
        life.do(life.pass_time(20))
    assert life.status["retryCount"] == 1


@pytest.mark.parametrize("stop", ["AbortJob", "suspend"])
def test_a_stop_does_not_save_a_job_without_retries_left(life: Life, stop: str) -> None:
    submit(life, maxRetry=1, policies=[{"action": "RestartJob", "event": "PodFailed"}])
    life.do(life.rest())
    life.admit()
    life.do(life.rest())
    life.api.fail(500, times=50, method="PATCH", path="/status")
    life.turn("j-t-0", "Failed", code=1)
    life.do(life.idle())
    life.do(life.kill())
    life.api.heal()
    status = life.status | {"state": {"phase": "Restarting", "reason": "RestartJob"}}
    life.api.put(JOBS, "j", status=status | {"retryCount": 1, "version": 1})
    if stop == "suspend":
        life.edit(suspend=True)
    else:
        life.command(stop)
    life.do(life.rest())
    assert (life.phase, life.status["retryCount"]) == ("Failed", 1)


def test_inv_ex_4_pods_that_may_have_been_made_are_awaited_and_no_others(life: Life) -> None:
    """Eight, tried 1, 2 and 4 at a time: one is refused, two are not answered, one is skipped."""

    def hear(prefix: str, change: str, new: Any, old: Any) -> None:
        life.audit.hear(prefix, change, new, old)
        if prefix == PODS.path() and len(life.named(PODS)) == 3:
            life.api.fail(403, method="POST", path="/pods")
            life.api.fail("drop", method="POST", path="/pods")
            life.api.fail("done 504", method="POST", path="/pods")

    submit(life, minAvailable=8, tasks=[task("t", 8)])
    life.do(life.rest())
    life.api.told = hear
    life.api.hold(PODS)
    life.admit()
    life.do(life.idle())
    assert life.controller is not None
    awaited = life.controller._expectations.pending("d/j")
    assert life.named(PODS).keys() == {f"j-t-{index}" for index in (0, 1, 2, 5, 6)}
    assert awaited == {*life.named(PODS), "j-t-4"}
    life.do(life.rest())
    assert len(life.named(PODS)) == 8
    assert not life.controller._expectations.pending("d/j")


def test_a_taken_name_holds_up_no_other_pod_and_is_told(life: Life) -> None:
    life.put(PODS, "j-t-0", metadata={"labels": {"app": "other"}})
    submit(life)
    life.do(life.rest())
    life.admit()
    life.do(life.rest())
    assert life.named(PODS).keys() == {"j-t-0", "j-t-1"}
    assert (life.status["state"]["reason"], life.status["pending"]) == ("FailedCreate", 1)
    assert "j-t-0" in life.status["state"]["message"]
    life.api.take_away(PODS, "j-t-0")
    life.do(life.pass_time(PATIENCE))
    assert (life.status["state"].get("reason"), life.status["pending"]) == (None, 2)


def test_numbers_follow_the_pods_while_the_quota_is_full(life: Life) -> None:
    submit(life, minAvailable=1, tasks=[task("t", 3)])
    life.do(life.rest())
    life.admit()
    life.do(life.rest())
    for name in life.named(PODS):
        life.turn(name, "Running")
    life.do(life.rest())
    life.api.full.add("d")
    life.evict("j-t-2", force=True)
    life.do(life.pass_time(PATIENCE))
    assert (life.status["state"]["reason"], life.status["running"]) == ("FailedCreate", 2)
    life.turn("j-t-1", "Unknown")
    life.do(life.pass_time(3))
    assert (life.status["running"], life.status["unknown"]) == (1, 1)


def test_pods_are_made_within_a_minute_of_room_in_the_quota(life: Life) -> None:
    submit(life)
    life.do(life.rest())
    life.admit()
    life.api.full.add("d")
    life.do(life.pass_time(3600))
    before = life.api.requests
    life.do(life.pass_time(600))
    assert life.api.requests - before <= 15
    life.api.full.clear()
    life.do(life.pass_time(61))
    assert life.named(PODS).keys() == {"j-t-0", "j-t-1"}


def test_commands_found_by_a_new_list_are_obeyed_in_their_order(life: Life) -> None:
    """INV-VC-2."""
    submit(life)
    life.do(life.rest())
    life.api.hold(COMMANDS)
    life.command("AbortJob")
    life.command("ResumeJob")
    life.do(life.idle())
    life.api.lose()
    life.do(life.rest())
    assert life.audit.phases == ["Pending", "Aborting", "Restarting", "Pending"]


def test_a_refusal_is_told_as_long_as_pods_may_be_made(life: Life) -> None:
    submit(life)
    life.do(life.rest())
    life.admit()
    life.api.full.add("d")
    life.do(life.rest())
    assert life.status["state"]["reason"] == "FailedCreate"
    before = life.audit.writes
    life.do(life.kill())
    life.do(life.rest())
    assert life.audit.writes == before
    group = life.group()
    assert group is not None
    life.api.take_away(PODGROUPS, group)
    life.do(life.rest())
    assert "reason" not in life.status["state"]


def test_a_pod_that_comes_from_elsewhere_while_others_are_made_is_not_lost_sight_of(
    life: Life,
) -> None:
    """What a former leader had sent: the cache shows it before its turn to be made comes."""
    late: list[str] = []

    def hear(prefix: str, change: str, new: Any, old: Any) -> None:
        life.audit.hear(prefix, change, new, old)
        if prefix == PODS.path() and not late:
            assert new["metadata"]["name"] == "j-t-0"
            late.append("j-t-1")
            meta = {key: new["metadata"][key] for key in ("labels", "annotations")}
            meta |= {"ownerReferences": new["metadata"]["ownerReferences"]}
            life.loop.call_soon(lambda: life.put(PODS, late[0], metadata=meta))

    submit(life)
    life.do(life.rest())
    life.api.told, life.api.lag = hear, 10
    life.admit()
    life.do(life.rest())
    assert late
    for name in ("j-t-0", "j-t-1"):
        life.turn(name, "Running")
    life.do(life.rest())
    assert (life.phase, life.status["running"]) == ("Running", 2)
    life.command("AbortJob")
    life.do(life.rest())
    assert all("deletionTimestamp" in pod["metadata"] for pod in life.named(PODS).values())
    for name in ("j-t-0", "j-t-1"):
        life.reap(name)
    life.do(life.rest())
    assert life.phase == "Aborted"


def test_what_plugins_made_for_a_job_that_resumes_and_stops_at_once_is_removed(life: Life) -> None:
    life.put(PERSISTENTVOLUMECLAIMS, "data")
    volumes = [{"mountPath": "/data", "volumeClaimName": "data"}]
    submit(life, plugins={"svc": []}, volumes=volumes)
    life.do(life.rest())
    for _ in range(2):
        life.edit(suspend=True)
        life.do(life.rest())
        assert life.named(SERVICES) == {}
        life.edit(suspend=False)
        life.do(life.idle())
        assert life.named(SERVICES).keys() == {"j"}


def test_a_delayed_action_is_taken_in_time_though_pods_are_refused(life: Life) -> None:
    """INV-VC-7."""
    late = {"action": "AbortJob", "event": "PodFailed", "timeout": "40s"}
    submit(life, minAvailable=1, tasks=[task("t", 3)], policies=[late])
    life.do(life.rest())
    life.admit()
    life.do(life.rest())
    for name in life.named(PODS):
        life.turn(name, "Running")
    life.api.full.add("d")
    life.evict("j-t-2", force=True)
    life.do(life.pass_time(PATIENCE))
    life.turn("j-t-0", "Failed", code=1)
    life.do(life.pass_time(38))
    assert life.phase == "Running"
    life.do(life.pass_time(4))
    assert life.phase in ("Aborting", "Aborted")


LOST = ("lost", "done 408", "done 500", "done 502", "done 503", "done 504")
"""It is carried out, and the answer is lost or tells of something else."""


def run_with_abort_on_eviction(life: Life, **spec: Any) -> None:
    stop = {"action": "AbortJob", "event": "PodEvicted"}
    run(life, **{"policies": [stop], "tasks": [task(policies=[])], **spec})


def run(life: Life, **spec: Any) -> None:
    submit(life, **spec)
    life.do(life.rest())
    life.admit()
    life.do(life.rest())
    for name in life.named(PODS):
        life.turn(name, "Running")
    life.do(life.rest())
    assert life.phase == "Running"


@pytest.mark.parametrize("force", [False, True], ids=["leaves", "goes at once"])
@pytest.mark.parametrize("how", LOST)
def test_pods_whose_deletion_was_not_answered_were_not_evicted(
    life: Life, how: str, force: bool
) -> None:
    run_with_abort_on_eviction(life, minAvailable=1, tasks=[task("t", 3, policies=[])])
    life.api.hold(PODS)
    life.api.fail(how, method="DELETE", path="/pods")
    life.edit(tasks=[task("t", 2, policies=[])])
    life.do(life.pass_time(2))
    if force:
        life.reap("j-t-2")
    life.api.release()
    life.do(life.idle())
    if not force:
        life.reap("j-t-2")
    life.do(life.rest())
    assert life.phase == "Running"
    assert life.named(PODS).keys() == {"j-t-0", "j-t-1"}


@pytest.mark.parametrize("behind", [False, True], ids=["watches ahead", "watches behind"])
@pytest.mark.parametrize("how", [*LOST, "drop", 504])
def test_a_restart_of_a_task_whose_deletions_were_not_answered_evicts_no_pod(
    life: Life, how: str | int, behind: bool
) -> None:
    """Behind the second tries, too, which then meet a conflict with the first ones."""
    again = {"action": "RestartTask", "event": "PodFailed"}
    stop = {"action": "AbortJob", "event": "PodEvicted"}
    run(life, policies=[again, stop], tasks=[task(policies=[])])
    life.api.fail(how, times=3, method="DELETE", path="/pods")
    life.turn("j-t-0", "Failed", code=1)
    life.do(life.idle())
    if behind:
        life.api.hold(PODS)
    life.do(life.pass_time(5))
    life.api.release()
    life.do(life.rest())
    life.reap("j-t-1")
    life.do(life.rest())
    assert life.audit.phases[-2:] == ["Restarting", "Pending"]
    assert life.named(PODS).keys() == {"j-t-0", "j-t-1"}
    assert life.status["retryCount"] == 1


def test_a_deletion_that_was_not_carried_out_hides_nothing_that_happens_later(life: Life) -> None:
    run_with_abort_on_eviction(life, minAvailable=1, tasks=[task("t", 3, policies=[])])
    life.api.fail("drop", times=99, method="DELETE", path="/pods")
    life.edit(tasks=[task("t", 2, policies=[])])
    life.do(life.pass_time(1))
    life.api.heal()
    life.edit(tasks=[task("t", 3, policies=[])])
    life.api.put(PODS, "j-t-2", metadata={"annotations": {"seen": "after it"}})
    life.do(life.rest())
    life.evict("j-t-2")
    life.do(life.rest())
    life.reap("j-t-2")
    life.do(life.rest())
    assert life.phase == "Aborting"


def test_a_deletion_given_up_long_ago_explains_no_eviction(life: Life) -> None:
    run_with_abort_on_eviction(life, minAvailable=1, tasks=[task("t", 3, policies=[])])
    life.api.fail("drop", times=99, method="DELETE", path="/pods")
    life.edit(tasks=[task("t", 2, policies=[])])
    life.do(life.pass_time(1))
    life.api.heal()
    life.edit(tasks=[task("t", 3, policies=[])])
    life.do(life.pass_time(400))
    life.evict("j-t-2", force=True)
    life.do(life.rest())
    assert life.phase == "Aborting"


@pytest.mark.parametrize("how", [*LOST, "drop", 504])
def test_an_end_whose_write_was_not_answered_is_counted_once(life: Life, how: str | int) -> None:
    run(life)
    life.api.fail(how, method="PATCH", path="/status")
    for name in life.named(PODS):
        life.turn(name, "Succeeded")
    life.do(life.rest())
    assert life.phase == "Completed"
    assert [family.samples[0].value for family in ends(life)] == [1]


def ends(life: Life) -> list[Any]:
    assert life.controller is not None
    return [family for family in life.controller._metrics.collect() if family.samples]


@pytest.mark.parametrize("how", ["hang", "done, hang"])
def test_a_look_at_a_job_that_never_ends_is_cut_off_and_what_it_did_is_not_known(
    life: Life, how: str
) -> None:
    """The answers to one deletion and one creation never come."""
    run_with_abort_on_eviction(life, minAvailable=1, tasks=[task("t", 3, policies=[])])
    life.api.hold(PODS)
    life.api.fail(how, method="DELETE", path="/pods")
    life.edit(tasks=[task("t", 2, policies=[])])
    life.do(life.pass_time(290))
    life.api.release()
    life.do(life.pass_time(20))
    if "j-t-2" in life.named(PODS):
        life.reap("j-t-2")
    life.do(life.rest())
    assert life.phase == "Running"
    assert life.named(PODS).keys() == {"j-t-0", "j-t-1"}
    life.api.fail(how, method="POST", path="/pods")
    life.edit(tasks=[task("t", 3, policies=[])])
    life.do(life.pass_time(290))
    life.do(life.pass_time(20))
    assert life.named(PODS).keys() == {"j-t-0", "j-t-1", "j-t-2"}
    life.do(life.rest())
    assert life.status["pending"] == 1


INVALID = ("", "a/b", "..", "x%2f", "../../queues/default", "J", "a" * 254)
"""What no object is called."""


def command_to(life: Life, **target: str) -> None:
    life.put(COMMANDS, "c", action="AbortJob", target=target or None)


@pytest.mark.parametrize("name", INVALID)
def test_a_command_to_what_no_job_is_called_is_reported_and_deleted(
    life: Life, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    submit(life)
    life.do(life.rest())
    asked = life.api.requests
    life.notes.events.clear()
    command_to(life, apiVersion=JOBS.api_version, kind="Job", name=name)
    life.do(life.pass_time(1))
    assert life.named(COMMANDS) == {}
    assert life.api.requests == asked + 1
    ((kind, about, event_type, reason, message),) = life.notes.events
    assert (kind, about, event_type, reason) == ("Command", "c", "Warning", "InvalidTarget")
    assert message.startswith(f"cannot obey: target name {name[:253]!r} is invalid: ")
    assert "will retry" not in caplog.messages
    life.do(life.rest())
    assert life.phase == "Pending"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ({}, "no target is named"),
        ({"name": "j"}, "the target has no apiVersion or no kind"),
        (
            {"apiVersion": JOBS.api_version, "kind": "job", "name": "j"},
            "batch.volcano.sh/v1alpha1 has no job that takes Commands",
        ),
        (
            {"apiVersion": "batch.volcano.sh/v9", "kind": "Job", "name": "j"},
            "batch.volcano.sh/v9 has no Job that takes Commands",
        ),
        ({"apiVersion": "batch/v1", "kind": "Job", "name": "j"}, ""),
        ({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": "q"}, ""),
    ],
)
def test_a_command_that_is_for_no_controller_is_reported_and_left_alone(
    life: Life, target: dict[str, str], problem: str
) -> None:
    submit(life)
    life.do(life.rest())
    life.notes.events.clear()
    command_to(life, **target)
    life.do(life.rest())
    assert life.named(COMMANDS).keys() == {"c"}
    assert life.phase == "Pending"
    said = [("Command", "c", "Warning", "InvalidTarget", f"cannot obey: {problem}")]
    assert life.notes.events == (said if problem else [])


@pytest.mark.parametrize("name", ["a/b", "..", "x%2f"])
def test_a_claim_of_a_name_that_there_cannot_be_is_told_and_asks_nothing(
    life: Life, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    submit(life, volumes=[{"mountPath": "/data", "volumeClaimName": name}])
    life.do(life.rest())
    assert life.status["state"]["reason"] == "PVCError"
    assert f"{name} cannot be there, as its name is invalid" in life.status["state"]["message"]
    assert "will retry" not in caplog.messages
