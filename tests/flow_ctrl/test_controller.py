"""JobFlows in a simulated cluster: order, failures, deleted Jobs, templates, events."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.flow_stateful import TASKS, FlowWorld, phase_of

from batholith.model.names import JOBFLOWS, JOBS, JOBTEMPLATES

Json = dict[str, Any]

DIAMOND: list[Json] = [
    {"name": "a"},
    {"name": "b", "dependsOn": {"targets": ["a"]}},
    {"name": "c", "dependsOn": {"targets": ["a"]}},
    {"name": "d", "dependsOn": {"targets": ["b", "c"]}},
]


@pytest.fixture
def world() -> Iterator[FlowWorld]:
    world = FlowWorld()
    for name in "abcd":
        world.put_template(name)
    yield world
    world.close()
    assert world.violations == []


def settle(world: FlowWorld) -> None:
    world.run(world.run_until_quiet())
    world.check_invariants()


def job(world: FlowWorld, name: str) -> Json:
    return world.api.objects(JOBS)[f"d/{name}"]


def end(world: FlowWorld, name: str, phase: str = "Completed", **status: Any) -> None:
    world.set_phase(job(world, name), phase, **status)
    settle(world)


def names(world: FlowWorld) -> list[str]:
    return sorted(each["metadata"]["name"] for each in world.api.objects(JOBS).values())


def status(world: FlowWorld, flow: str = "f") -> Json:
    found: Json = world.flows[flow]["status"]
    return found


def test_jobs_are_created_once_their_targets_have_completed(world: FlowWorld) -> None:
    """INV-JF-2."""
    world.put_flow("f", DIAMOND)
    settle(world)
    assert (names(world), world.phase("f")) == (["f-a"], "Pending")
    end(world, "f-a", "Running")
    assert (names(world), world.phase("f")) == (["f-a"], "Running")
    end(world, "f-a")
    assert names(world) == ["f-a", "f-b", "f-c"]
    end(world, "f-b")
    assert names(world) == ["f-a", "f-b", "f-c"]
    end(world, "f-c")
    end(world, "f-d")
    assert world.phase("f") == "Succeed"
    assert status(world)["completedJobs"] == ["f-a", "f-b", "f-c", "f-d"]
    assert world.events("Created") == [f"created job f-{name}" for name in "abcd"]
    assert world.events("Succeeded") == ["all jobs have completed: 4"]


def test_a_job_has_the_metadata_of_volcano_and_the_spec_of_its_template(world: FlowWorld) -> None:
    world.put_template("a", queue="q")
    flow = world.put_flow("f", [{"name": "a", "patch": {"jobSpec": {"queue": "fast"}}}])
    settle(world)
    created = job(world, "f-a")
    marks = {"volcano.sh/createdByJobFlow": "d.f", "volcano.sh/createdByJobTemplate": "d.a"}
    assert created["metadata"]["labels"] == created["metadata"]["annotations"] == marks
    assert created["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "flow.volcano.sh/v1alpha1",
            "kind": "JobFlow",
            "name": "f",
            "uid": flow["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert created["spec"] == {"tasks": TASKS, "queue": "fast"}


def test_the_status_shows_the_history_of_each_job(world: FlowWorld) -> None:
    world.put_flow("f", DIAMOND[:1])
    settle(world)
    counts = {"t": {"phase": {"Running": 1}}}
    end(world, "f-a", "Running", retryCount=2, taskStatusCount=counts, runningDuration="90s")
    created = job(world, "f-a")["metadata"]["creationTimestamp"]
    (shown,) = status(world)["jobStatusList"]
    histories = shown.pop("runningHistories")
    assert [each["state"] for each in histories] == ["Running"]
    assert shown == {
        "name": "f-a",
        "state": "Running",
        "startTimestamp": created,
        "endTimestamp": "2026-01-01T00:01:30Z",
        "restartCount": 2,
    }
    assert status(world)["conditions"] == {
        "f-a": {
            "phase": "Running",
            "createTime": created,
            "runningDuration": "90s",
            "taskStatusCount": counts,
        }
    }


def test_the_history_keeps_the_latest_phases(world: FlowWorld) -> None:
    world.put_flow("f", DIAMOND[:1])
    settle(world)
    for _ in range(15):
        end(world, "f-a", "Restarting")
        end(world, "f-a", "Running")
    (shown,) = status(world)["jobStatusList"]
    assert len(shown["runningHistories"]) == 20
    assert [each["state"] for each in shown["runningHistories"][-2:]] == ["Restarting", "Running"]
    assert all("endTimestamp" in each for each in shown["runningHistories"][:-1])


@pytest.mark.parametrize(
    ("phase", "listed"),
    [("Failed", "failedJobs"), ("Terminated", "terminatedJobs"), ("Aborted", "unKnowJobs")],
)
def test_quirk_f6_a_failed_terminated_or_aborted_job_fails_the_flow(
    world: FlowWorld, phase: str, listed: str
) -> None:
    world.put_flow("f", DIAMOND)
    settle(world)
    state = {"phase": phase, "reason": "PodsFailed", "message": "1 of 1 pods failed"}
    end(world, "f-a", phase, state=state)
    text = f"job f-a is {phase}: PodsFailed: 1 of 1 pods failed"
    assert (names(world), world.phase("f")) == (["f-a"], "Failed")
    assert world.events(f"Job{phase}") == [text]
    condition = status(world)["conditions"]["f-a"]
    assert (condition["reason"], condition["message"]) == (f"Job{phase}", text)
    assert status(world)[listed] == ["f-a"]


def test_a_failure_leaves_the_other_jobs_alone_and_the_status_follows_them(
    world: FlowWorld,
) -> None:
    world.put_flow("f", DIAMOND)
    settle(world)
    end(world, "f-a")
    end(world, "f-b", "Failed")
    end(world, "f-c", "Running")
    assert (names(world), world.phase("f")) == (["f-a", "f-b", "f-c"], "Failed")
    assert status(world)["runningJobs"] == ["f-c"]
    end(world, "f-c")
    assert (names(world), world.phase("f")) == (["f-a", "f-b", "f-c"], "Failed")
    assert status(world)["completedJobs"] == ["f-a", "f-c"]


def test_a_suspended_job_does_not_fail_the_flow(world: FlowWorld) -> None:
    world.put_template("a", suspend=True)
    world.put_flow("f", DIAMOND[:2])
    settle(world)
    world.set_phase(job(world, "f-a"), "Aborted")
    world.run(world.run_until_quiet())
    assert world.phase("f") == "Pending"
    world.api.put(JOBS, "f-a", spec={"tasks": TASKS})
    end(world, "f-a", "Running")
    assert world.phase("f") == "Running"


# Deleted Jobs


@pytest.mark.parametrize("restart", [False, True])
def test_quirk_f2_a_completed_job_that_is_deleted_is_not_created_again(
    world: FlowWorld, restart: bool
) -> None:
    """INV-JF-1, and the Jobs that depend on it need not wait for it again."""
    world.put_flow("f", DIAMOND)
    settle(world)
    end(world, "f-a")
    end(world, "f-b")
    world.remove_job(job(world, "f-a"))
    world.remove_job(job(world, "f-b"))
    if restart:
        world.run(world.kill())
    settle(world)
    end(world, "f-c")
    assert names(world) == ["f-c", "f-d"]
    end(world, "f-d")
    assert world.phase("f") == "Succeed"
    assert status(world)["completedJobs"] == ["f-a", "f-b", "f-c", "f-d"]
    for name in names(world):
        world.remove_job(job(world, name))
    world.run(world.kill())
    settle(world)
    assert (names(world), world.phase("f")) == ([], "Succeed")


@pytest.mark.parametrize("restart", [False, True])
def test_a_job_that_is_deleted_before_it_ends_fails_the_flow(
    world: FlowWorld, restart: bool
) -> None:
    world.put_flow("f", DIAMOND)
    settle(world)
    end(world, "f-a", "Running")
    world.remove_job(job(world, "f-a"))
    if restart:
        world.run(world.kill())
    settle(world)
    assert (names(world), world.phase("f")) == ([], "Failed")
    text = "job f-a was deleted before it ended"
    assert world.events("JobDeleted") == [text]
    assert status(world)["conditions"]["f-a"]["message"] == text
    assert status(world)["unKnowJobs"] == ["f-a"]


def test_a_job_that_completes_and_is_deleted_at_once_has_completed(world: FlowWorld) -> None:
    """Its TTL is zero, and the status does not show its end yet."""
    world.put_flow("f", DIAMOND[:2])
    settle(world)
    world.set_phase(job(world, "f-a"), "Completed")
    world.remove_job(job(world, "f-a"))
    settle(world)
    assert names(world) == ["f-b"]
    assert status(world)["completedJobs"] == ["f-a"]


def test_a_late_list_of_jobs_does_not_count_as_deletion(world: FlowWorld) -> None:
    """Another leader has created the Job, and the watch of Jobs is behind the flow's status."""
    world.api.force_delete(JOBTEMPLATES, "a")
    uid = world.put_flow("f", DIAMOND[:1])["metadata"]["uid"]
    settle(world)
    world.api.hold_watches(JOBS)
    owner = {"apiVersion": JOBFLOWS.api_version, "kind": JOBFLOWS.kind, "name": "f", "uid": uid}
    metadata = {
        "labels": {"volcano.sh/createdByJobFlow": "d.f"},
        "ownerReferences": [owner | {"controller": True}],
    }
    world.api.put(JOBS, "f-a", metadata=metadata, status={"state": {"phase": "Running"}})
    listed = [{"name": "f-a", "state": "Running"}]
    world.api.put(JOBFLOWS, "f", status={"state": {"phase": "Running"}, "jobStatusList": listed})
    world.run(world.pass_time(1))
    assert world.phase("f") == "Running"
    world.run(world.run_until_quiet())
    assert world.phase("f") == "Running"


@pytest.mark.parametrize("policy", [None, "retain", "delete"])
def test_jobs_of_a_flow_that_succeeded_follow_the_retain_policy(
    world: FlowWorld, policy: str | None
) -> None:
    world.put_flow("f", DIAMOND[:2], **({} if policy is None else {"jobRetainPolicy": policy}))
    settle(world)
    end(world, "f-a")
    end(world, "f-b")
    assert world.phase("f") == "Succeed"
    assert names(world) == ([] if policy == "delete" else ["f-a", "f-b"])
    assert status(world)["completedJobs"] == ["f-a", "f-b"]


def test_quirk_f12_a_job_that_is_deleted_already_is_no_error(world: FlowWorld) -> None:
    world.put_flow("f", DIAMOND[:1], jobRetainPolicy="delete")
    settle(world)
    world.api.hold_watches(JOBS)
    world.api.inject_fault("lost", method="DELETE", path="/jobs")
    world.api.release_watches()
    end(world, "f-a")
    assert names(world) == []
    assert world.phase("f") == "Succeed"


def test_a_flow_that_failed_keeps_its_jobs_with_either_policy(world: FlowWorld) -> None:
    world.put_flow("f", DIAMOND[:2], jobRetainPolicy="delete")
    settle(world)
    end(world, "f-a", "Failed")
    assert names(world) == ["f-a"]


def test_a_flow_that_is_being_deleted_creates_nothing(world: FlowWorld) -> None:
    flow = world.put_flow("f", DIAMOND)
    settle(world)
    meta = flow["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.api.put(JOBFLOWS, "f", metadata=meta)
    world.set_phase(job(world, "f-a"), "Completed")
    world.run(world.run_until_quiet())
    assert names(world) == ["f-a"]


def test_a_flow_created_again_waits_for_the_deletion_of_the_old_jobs(world: FlowWorld) -> None:
    flow = world.put_flow("f", DIAMOND)
    settle(world)
    old = job(world, "f-a")["metadata"]["uid"]
    world.api.force_delete(JOBFLOWS, "f")
    world.put_flow("f", DIAMOND)
    world.run(world.pass_time(3))
    assert job(world, "f-a")["metadata"]["uid"] == old
    world.api.force_delete(JOBS, "f-a")
    settle(world)
    assert job(world, "f-a")["metadata"]["ownerReferences"][0]["uid"] != flow["metadata"]["uid"]
    assert world.events("JobExists") == []


# Quirks


def test_quirk_f3_a_flow_whose_last_job_completes_at_once_succeeds(world: FlowWorld) -> None:
    world.put_flow("f", DIAMOND[:1])
    world.run(world.start())
    world.run(world.run_until_idle())
    world.set_phase(job(world, "f-a"), "Completed")
    settle(world)
    assert world.phase("f") == "Succeed"


def test_quirk_f4_a_missing_template_is_reported_at_once_and_used_when_it_appears(
    world: FlowWorld,
) -> None:
    world.api.force_delete(JOBTEMPLATES, "a")
    world.put_flow("f", [*DIAMOND, {"name": "other"}])
    world.put_template("other")
    world.run(world.start())
    world.run(world.run_until_idle())
    assert world.events("JobTemplateNotFound") == ['JobTemplate "a" not found']
    settle(world)
    assert (names(world), world.phase("f")) == (["f-other"], "Pending")
    world.put_template("a")
    settle(world)
    assert names(world) == ["f-a", "f-other"]
    assert len(world.events("JobTemplateNotFound")) == 1


def test_quirk_f5_an_added_flow_is_created_at_once(world: FlowWorld) -> None:
    world.put_flow("f", DIAMOND[:2])
    settle(world)
    world.put_flow("f", [*DIAMOND[:2], {"name": "d"}])
    settle(world)
    assert names(world) == ["f-a", "f-d"]


def test_a_changed_template_applies_to_jobs_not_created_yet(world: FlowWorld) -> None:
    world.put_flow("f", DIAMOND[:2])
    settle(world)
    for name in "ab":
        world.put_template(name, queue="new")
    settle(world)
    end(world, "f-a")
    assert "queue" not in job(world, "f-a")["spec"]
    assert job(world, "f-b")["spec"]["queue"] == "new"


def test_quirk_f7_duplicate_and_removed_flows_do_not_prevent_success(world: FlowWorld) -> None:
    world.put_flow("f", [{"name": "a"}, {"name": "a"}, {"name": "b"}])
    settle(world)
    assert world.events("InvalidSpec") == []
    assert world.events("DuplicateFlow") == [
        'spec.flows[1].name: duplicate value "a": it is one job with spec.flows[0], which waits for'
        " the targets of both"
    ]
    end(world, "f-a")
    end(world, "f-b", "Running")
    world.api.put(JOBFLOWS, "f", spec={"flows": [{"name": "b"}]})
    settle(world)
    end(world, "f-b")
    assert world.phase("f") == "Succeed"
    assert status(world)["completedJobs"] == ["f-b", "f-a"]


def test_a_flow_that_is_listed_twice_waits_for_all_its_targets(world: FlowWorld) -> None:
    flows: list[dict[str, Any]] = [
        {"name": "a"},
        {"name": "b"},
        {"name": "c", "dependsOn": {"targets": ["a"]}, "patch": {"jobSpec": {"maxRetry": 7}}},
        {"name": "c", "dependsOn": {"targets": ["b"]}, "patch": {"jobSpec": {"maxRetry": 8}}},
    ]
    world.put_flow("f", flows)
    settle(world)
    end(world, "f-a")
    assert names(world) == ["f-a", "f-b"]
    end(world, "f-b")
    assert names(world) == ["f-a", "f-b", "f-c"]
    assert job(world, "f-c")["spec"]["maxRetry"] == 7
    assert world.events("DuplicateFlow")[0].endswith("; its patch is ignored")
    end(world, "f-c")
    assert world.phase("f") == "Succeed"


def test_entries_of_one_name_that_make_a_cycle_together_block_the_flow(world: FlowWorld) -> None:
    flows: list[dict[str, Any]] = [
        {"name": "a"},
        {"name": "a", "dependsOn": {"targets": ["b"]}},
        {"name": "b", "dependsOn": {"targets": ["a"]}},
    ]
    world.put_flow("f", flows)
    settle(world)
    assert names(world) == []
    assert "cycle of a, b" in world.events("InvalidSpec")[0]


def test_quirk_f8_a_flow_without_flows_succeeds(world: FlowWorld) -> None:
    world.put_flow("f", [])
    settle(world)
    assert world.phase("f") == "Succeed"


def test_quirk_f9_long_names_are_shortened_in_labels_only(world: FlowWorld) -> None:
    template = "a.b" + "c" * 70
    world.put_template(template)
    world.put_flow("f", [{"name": template}])
    settle(world)
    meta = job(world, f"f-{template}")["metadata"]
    key = "volcano.sh/createdByJobTemplate"
    assert meta["annotations"][key] == f"d.{template}"
    assert len(meta["labels"][key]) == 63
    assert meta["labels"][key].startswith("d.a.bccc")


def test_quirk_f10_a_failed_status_write_is_repeated(world: FlowWorld) -> None:
    world.put_flow("f", DIAMOND)
    settle(world)
    world.api.inject_fault(500, times=3, method="PATCH", path="/status")
    end(world, "f-a", "Failed")
    assert world.phase("f") == "Failed"
    assert len(world.events("JobFailed")) == 1


def test_quirk_f11_a_job_of_that_name_is_not_taken_for_the_flows(world: FlowWorld) -> None:
    world.api.put(JOBS, "f-a", spec={}, status={"state": {"phase": "Completed"}})
    world.put_flow("f", DIAMOND)
    world.run(world.run_until_quiet())
    assert (names(world), world.phase("f")) == (["f-a"], "Pending")
    assert world.events("JobExists") == ["a job f-a exists that this JobFlow does not control"]
    world.api.force_delete(JOBS, "f-a")
    world.run(world.pass_time(31))
    settle(world)
    assert "ownerReferences" in job(world, "f-a")["metadata"]
    assert len(world.events("JobExists")) == 1


def test_flows_stored_with_a_cycle_are_reported_and_continue_when_they_are_fixed(
    world: FlowWorld,
) -> None:
    flows = [{"name": "a", "dependsOn": {"targets": ["b"]}}, DIAMOND[1]]
    world.put_flow("f", flows)
    settle(world)
    assert names(world) == []
    assert world.events("InvalidSpec") == ["jobflow Flow is not DAG: it has a cycle of a, b"]
    world.put_flow("f", DIAMOND)
    settle(world)
    assert names(world) == ["f-a"]


def test_a_patch_that_cannot_be_applied_is_reported(world: FlowWorld) -> None:
    patch = {"jobSpec": {"volumes": [{"volumeClaimName": "c"}]}}
    world.put_flow("f", [{"name": "a", "patch": patch}, {"name": "b"}])
    world.run(world.run_until_quiet())
    assert names(world) == ["f-b"]
    text = "flow a: cannot apply patch.jobSpec: volumes: an item has no mountPath"
    assert world.events("InvalidPatch") == [text]


def test_a_rejected_job_does_not_keep_the_others_from_being_created(world: FlowWorld) -> None:
    world.api.inject_fault(403, times=1, method="POST", path="/jobs")
    world.put_flow("f", [{"name": name} for name in "abcd"])
    settle(world)
    assert names(world) == ["f-a", "f-b", "f-c", "f-d"]
    assert [text.partition(":")[0] for text in world.events("FailedCreate")] == [
        "cannot create job f-a"
    ]


# Crashes and lost responses


@pytest.mark.parametrize("response_lag", [1, 4])
def test_a_crash_at_any_point_creates_no_job_twice_and_loses_none(response_lag: int) -> None:
    """INV-JF-1: killed after each number of loop iterations, until it has nothing left to do."""
    for iterations in range(60):
        world = FlowWorld()
        for name in "abcd":
            world.put_template(name)
        world.api.response_lag = response_lag
        world.put_flow("f", DIAMOND)
        settle(world)
        for name in ("f-a", "f-b"):
            world.set_phase(job(world, name), "Completed")
            world.run(world.run_iterations(iterations))
            world.run(world.kill())
            settle(world)
        end(world, "f-c")
        end(world, "f-d")
        assert world.phase("f") == "Succeed"
        assert set(world.created.values()) == {1}
        world.close()
        assert world.violations == []


@pytest.mark.parametrize("fault", ["lost", "done 504", "drop", 500, 409, 429])
@pytest.mark.parametrize(("method", "path"), [("POST", "/jobs"), ("PATCH", "/status")])
def test_a_failed_or_lost_request_is_repeated(
    world: FlowWorld, fault: int | str, method: str, path: str
) -> None:
    world.put_flow("f", DIAMOND)
    settle(world)
    world.api.inject_fault(fault, times=2, method=method, path=path)
    end(world, "f-a")
    assert names(world) == ["f-a", "f-b", "f-c"]
    assert phase_of(world.flows["f"]) == "Running"


def test_a_job_of_another_namespace_with_the_uid_of_the_flow_is_not_its_own(
    world: FlowWorld,
) -> None:
    """The API server stores owner references unchecked."""
    world.put_flow("f", DIAMOND)
    settle(world)
    own = job(world, "f-a")["metadata"]
    forged = {name: own[name] for name in ("labels", "ownerReferences")}
    ended = {"state": {"phase": "Completed"}}
    world.api.put(JOBS, "f-b", namespace="mallory", metadata=forged, status=ended)
    world.set_phase(job(world, "f-a"), "Completed")
    world.run(world.run_until_quiet())
    assert "d/f-b" in world.api.objects(JOBS)
