"""Profiles by ``schedulerName``, and node affinity that the configuration adds to that of pods."""

import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.scheduler import conf
from batholith.scheduler.plugins.added_affinity import NAME as ADDED
from batholith.scheduler.plugins.predicates import ADDED_AFFINITY_MISMATCH
from batholith.scheduler.state.cache.cache import SchedulerCache

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
FAST = "{matchExpressions: [{key: disk, operator: In, values: [fast]}]}"
REQUIRES_FAST = f"{ADDED}: {{{REQUIRED}: {{nodeSelectorTerms: [{FAST}]}}}}"
PREFERS_FAST = f"{ADDED}: {{{PREFERRED}: [{{weight: 50, preference: {FAST}}}]}}"


def text(plugin: str, arguments: str = "", *, profiles: str = "") -> str:
    base = f"{{name: {plugin}, arguments: {{{arguments}}}}}"
    return f'actions: "allocate"\ntiers:\n- plugins: [{{name: gang}}, {base}]\n{profiles}'


def profile(plugin: str, arguments: str, *, name: str = "packed") -> str:
    entry = f"{{name: {plugin}, arguments: {{{arguments}}}}}"
    return f"profiles:\n- {{schedulerName: {name}, plugins: [{entry}]}}\n"


def world(configuration: str) -> SchedulerWorld:
    """A slow node that is half full, and an idle one with a fast disk."""
    found = SchedulerWorld(configuration, single="packed")
    found.upsert(
        node("slow", cpu=8, labels={"disk": "slow"}),
        node("fast", cpu=8, labels={"disk": "fast"}),
        pod("other", node_name="slow", scheduler="other", cpu=4),
        podgroup("g", 1),
        pod("g-x-0", "g"),
        pod("single", scheduler="packed"),
    )
    return found


def test_each_profile_scores_with_its_own_arguments() -> None:
    packed = profile("nodeorder", "leastrequested.weight: 0, mostrequested.weight: 10")
    assert world(text("nodeorder", profiles=packed)).schedule() == {
        "g-x-0": "fast",
        "single": "slow",
    }


def test_each_profile_filters_with_its_own_arguments() -> None:
    here = world(text("predicates", profiles=profile("predicates", REQUIRES_FAST)))
    here.upsert(node("fast", cpu=0, labels={"disk": "fast"}))
    assert here.schedule() == {"g-x-0": "slow"}


def test_a_plugin_that_reads_the_cache_has_profiles() -> None:
    packed = "resources: {cpu: {type: MostAllocated}}"
    configuration = text("resource-strategy-fit", profiles=profile("resource-strategy-fit", packed))
    assert world(configuration).schedule() == {"g-x-0": "fast", "single": "slow"}


def test_a_new_configuration_may_add_profiles() -> None:
    here = world(text("nodeorder"))
    assert here.schedule() == {"g-x-0": "fast", "single": "fast"}
    here.reload(text("nodeorder", profiles=profile("nodeorder", "leastrequested.weight: -5")))
    here.upsert(pod("late", scheduler="packed"))
    assert here.schedule() == {"late": "slow"}


@pytest.mark.parametrize(
    ("profiles", "problem"),
    [
        ("profiles: {}", "profiles: must be a list"),
        ("profiles: [{schedulerName: packed, weight: 1}]", "profiles[0].weight: unknown key"),
        ("profiles: [{plugins: []}]", "profiles[0].schedulerName: must be the schedulerName"),
        ("profiles: [{schedulerName: a}, {schedulerName: a}]", "'a' has a profile already"),
        ("profiles: [{schedulerName: x}]", "profiles[0].schedulerName: pods of 'x' are not sch"),
        (profile("gang", ""), "profiles[0].plugins[0].name: must be one of binpack, nodeorder"),
        (profile("binpack", ""), "profiles[0].plugins[0].name: plugin 'binpack' is not in tiers"),
        (profile("nodeorder", "least: 1"), "plugins[0].arguments.least: unknown argument"),
        (profile("nodeorder", "leastrequested.weight: x"), "must be an integer, not 'x'"),
        (
            "profiles: [{schedulerName: a, plugins: [{name: nodeorder}, {name: nodeorder}]}]",
            "profiles[0].plugins[1].name: plugin 'nodeorder' is in the profile twice",
        ),
    ],
)
def test_an_invalid_profile_is_an_error_with_its_path(profiles: str, problem: str) -> None:
    with pytest.raises(conf.ConfError) as caught:
        conf.load(text("nodeorder", profiles=profiles), scheduler_names=("packed", "a"))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "argument", ["volumebinding.bindTimeoutSeconds: 5", "predicate.CacheEnable: true"]
)
def test_an_argument_that_concerns_all_pods_is_not_of_a_profile(argument: str) -> None:
    with pytest.raises(conf.ConfError, match="has no effect in a profile"):
        conf.load(text("predicates", profiles=profile("predicates", argument)))


def test_what_concerns_all_pods_is_that_of_the_tiers() -> None:
    (tier,) = conf.load(
        text(
            "predicates",
            "volumebinding.bindTimeoutSeconds: 5",
            profiles=profile("predicates", REQUIRES_FAST),
        )
    ).tiers
    here = SchedulerWorld()
    here.reload(text("predicates", "volumebinding.bindTimeoutSeconds: 5"))
    assert [option.name for option in tier] == ["gang", "predicates"]
    assert isinstance(here.cluster, SchedulerCache)
    assert here.core.volume_bind_timeout == 5


def test_pods_get_only_nodes_that_the_added_affinity_requires() -> None:
    here = world(text("predicates", REQUIRES_FAST))
    assert here.schedule() == {"g-x-0": "fast", "single": "fast"}
    here.remove(node("fast", labels={"disk": "fast"}))
    here.upsert(podgroup("h", 1), pod("h-x-0", "h"))
    assert here.schedule() == {}
    assert ADDED_AFFINITY_MISMATCH in here.fit_message("h")


def test_pods_prefer_nodes_that_the_added_affinity_prefers() -> None:
    weights = "leastrequested.weight: 0, mostrequested.weight: 1, balancedresource.weight: 0"
    assert world(text("nodeorder", weights)).schedule()["single"] == "slow"
    assert world(text("nodeorder", f"{weights}, {PREFERS_FAST}")).schedule()["single"] == "fast"


@pytest.mark.parametrize(
    ("plugin", "given", "problem"),
    [
        ("predicates", f"{{{PREFERRED}: []}}", "is an argument of the plugin nodeorder"),
        ("nodeorder", f"{{{REQUIRED}: {{}}}}", "is an argument of the plugin predicates"),
        ("predicates", f"{{{REQUIRED}: {{}}}}", "must have nodeSelectorTerms"),
        ("predicates", f"{{{REQUIRED}: {{nodeSelectorTerms: [{{}}]}}}}", "matches no node"),
        ("predicates", f"{{{REQUIRED}: 1}}", "Expected `object`, got `int`"),
        ("predicates", "{required: 1}", "unknown entry 'required'"),
        (
            "predicates",
            f"{{{REQUIRED}: {{nodeSelectorTerms: [{{matchExpressions: "
            "[{key: a, operator: Is, values: [b]}]}]}}",
            "unknown operator 'Is'",
        ),
        (
            "predicates",
            f"{{{REQUIRED}: {{nodeSelectorTerms: [{{matchExpressions: "
            "[{key: a, operator: Exists, values: [b]}]}]}}",
            "operator Exists with 1 values",
        ),
        (
            "predicates",
            f"{{{REQUIRED}: {{nodeSelectorTerms: [{{matchExpressions: "
            "[{key: a, operator: Exists, value: b}]}]}}",
            "unknown field 'value'",
        ),
        ("nodeorder", f"{{{PREFERRED}: [{{weight: 101}}]}}", "weight must be from 1 to 100"),
    ],
)
def test_a_malformed_affinity_is_an_error(plugin: str, given: str, problem: str) -> None:
    with pytest.raises(conf.ConfError) as caught:
        conf.load(text(plugin, f"{ADDED}: {given}"))
    assert str(caught.value).startswith(f"tiers[0].plugins[1].arguments.{ADDED}: ")
    assert problem in str(caught.value)
