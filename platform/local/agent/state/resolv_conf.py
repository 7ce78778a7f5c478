"""A pod's ``resolv.conf``, by its DNS policy as a kubelet applies it."""

from collections.abc import Iterable
from typing import NamedTuple

from ....model.service_network import CLUSTER_DOMAIN
from ...network.resolvers import ResolverConfig
from .core_types import DnsOption, Pod

_MAX_NAMESERVERS, _MAX_SEARCHES, _MAX_SEARCH_LENGTH = 3, 32, 2048
_CLUSTER_OPTIONS = ("ndots:5",)


class ResolvConf(NamedTuple):
    """The file, and what a kubelet records as the event ``DNSConfigForming``."""

    text: str
    warnings: tuple[str, ...] = ()


def uses_cluster_dns(pod: Pod) -> bool:
    """Whether the names of the cluster are to be resolved in *pod*."""
    policy = pod.spec.dns_policy
    return policy == "ClusterFirstWithHostNet" or (
        policy == "ClusterFirst" and not pod.spec.host_network
    )


def resolv_conf(pod: Pod, machine: ResolverConfig, cluster_dns: str) -> ResolvConf | None:
    """Return the pod's own file; None if the one of the machine has the same effect.

    Without *cluster_dns*, the address of the cluster's name server, names are resolved as on the
    machine, with the pod's additions.
    """
    spec, config = pod.spec, machine
    if spec.dns_policy == "None":
        config = ResolverConfig()
    elif cluster_dns and uses_cluster_dns(pod):
        own = f"{pod.metadata.namespace}.svc.{CLUSTER_DOMAIN}", f"svc.{CLUSTER_DOMAIN}"
        searches = (*own, CLUSTER_DOMAIN, *machine.searches)
        config = ResolverConfig((cluster_dns,), tuple(dict.fromkeys(searches)), _CLUSTER_OPTIONS)
    elif spec.dns_config is None:
        return None
    if (added := spec.dns_config) is not None:
        config = ResolverConfig(
            tuple(dict.fromkeys((*config.nameservers, *added.nameservers))),
            tuple(dict.fromkeys((*config.searches, *added.searches))),
            _merged_options(config.options, added.options),
        )
    return _within_limits(config)


def _merged_options(known: Iterable[str], added: Iterable[DnsOption]) -> tuple[str, ...]:
    """Return the options; those of the pod replace others of the same name."""
    options = {each.partition(":")[0]: each for each in known}
    options |= {
        each.name: f"{each.name}:{each.value}" if each.value else each.name for each in added
    }
    return tuple(options.values())


def _within_limits(config: ResolverConfig) -> ResolvConf:
    warnings = list[str]()
    servers, searches = config.nameservers[:_MAX_NAMESERVERS], list(config.searches)
    if len(config.nameservers) > _MAX_NAMESERVERS:
        warnings.append(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied "
            f"nameserver line is: {' '.join(servers)}"
        )
    del searches[_MAX_SEARCHES:]
    while len(" ".join(searches)) > _MAX_SEARCH_LENGTH:
        searches.pop()
    if len(searches) < len(config.searches):
        warnings.append(
            "Search Line limits were exceeded, some search paths have been omitted, the applied "
            f"search line is: {' '.join(searches)}"
        )
    lines = [f"search {' '.join(searches)}"] if searches else []
    lines += [f"nameserver {each}" for each in servers]
    lines += [f"options {' '.join(config.options)}"] if config.options else []
    return ResolvConf("".join(f"{line}\n" for line in lines), tuple(warnings))
