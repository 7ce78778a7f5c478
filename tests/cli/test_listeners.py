"""Sockets on which an embedded cluster listens."""

import os
from pathlib import Path

import pytest

from batholith.cli.listeners import listen_as_service
from batholith.model.service_network import API_SERVER_IPS, is_in


@pytest.mark.skipif(os.geteuid() != 0, reason="port 443 is privileged")
def test_each_cluster_of_a_machine_has_an_address_of_its_own_for_the_api_server(
    tmp_path: Path,
) -> None:
    first, second = listen_as_service(tmp_path), listen_as_service(tmp_path)
    assert first is not None
    assert second is not None
    with first, second:
        (one, port), (other, other_port) = first.getsockname(), second.getsockname()
    assert one != other
    assert is_in(API_SERVER_IPS, one)
    assert is_in(API_SERVER_IPS, other)
    assert (port, other_port) == (443, 443)
