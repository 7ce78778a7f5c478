"""The official Python client."""

from collections.abc import Iterator
from contextlib import contextmanager

from kubernetes import client
from support.embedded_apiserver import Server


@contextmanager
def official_core(server: Server) -> Iterator[client.CoreV1Api]:
    """Its client of the core group, as the admin."""
    configuration = client.Configuration()
    configuration.host = server.url
    configuration.ssl_ca_cert = str(server.pki.ca)
    configuration.api_key = {"authorization": f"Bearer {server.tokens['admin']}"}
    with client.ApiClient(configuration) as api:
        yield client.CoreV1Api(api)
