"""Credentials for the images of a pod: its pull secrets, then the user's Docker configuration."""

import asyncio
import os

from ....kube.client.client import Client
from ....kube.errors import ApiError, ConnectionLostError
from ....model.names import SECRETS
from ..images.credentials import CONFIG_KEYS, Keyring, parse_config, user_keyring
from ..images.puller import RecordEvent
from ..state.core_types import Pod, Secret


async def pull_keyring(client: Client, pod: Pod, record: RecordEvent) -> Keyring:
    """Return the credentials; like kubelet, report a secret that cannot be used, and go on."""
    found: Keyring = ()
    for reference in pod.spec.image_pull_secrets:
        try:
            found += await _credentials(client, pod.metadata.namespace, reference.name)
        except (ApiError, ConnectionLostError, ValueError) as error:
            message = f'Unable to use the image pull secret "{reference.name}": {error}'
            record("FailedToRetrieveImagePullSecret", message, True)
    return found + await asyncio.to_thread(user_keyring, os.environ)


async def _credentials(client: Client, namespace: str, name: str) -> Keyring:
    secret = await client.get(SECRETS, name, namespace=namespace, view=Secret)
    content = secret.content()
    for key, nested in CONFIG_KEYS.items():
        if key in content:
            return parse_config(content[key], nested=nested)
    raise ValueError(f"it has none of the keys {', '.join(CONFIG_KEYS)}")
