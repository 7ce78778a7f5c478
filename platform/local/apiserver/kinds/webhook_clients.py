"""Validation of the webhooks that objects name: of admission, and of conversion."""

import base64
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from ....model import validation
from ..errors.fields import FieldError, first_positions, invalid, required

Json = dict[str, Any]

_REVIEW_VERSIONS = ("v1", "v1beta1")


def validate_review_versions(versions: Sequence[str], path: str, errors: list[FieldError]) -> None:
    """Validate the versions of reviews that a webhook understands."""
    accepted = ", ".join(_REVIEW_VERSIONS)
    if not versions:
        errors.append(required(path, f"must specify one of {accepted}"))
        return
    first = first_positions(versions)
    for index, version in enumerate(versions):
        if first[version] < index:
            errors.append(invalid(f"{path}[{index}]", version, "duplicate version"))
        elif problem := validation.dns1035_label_error(version):
            errors.append(invalid(f"{path}[{index}]", version, problem))
    if not set(versions) & set(_REVIEW_VERSIONS):
        errors.append(invalid(path, versions, f"must include at least one of {accepted}"))


def validate_client_config(config: Json, path: str, errors: list[FieldError]) -> None:
    """Validate how a webhook is reached."""
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        errors.append(required(path, "exactly one of url or service is required"))
    elif url is not None:
        _validate_url(url, f"{path}.url", errors)
    else:
        _validate_service(service or {}, f"{path}.service", errors)


def ca_bundle_error(bundle: str) -> str:
    """Return what is wrong with a CA bundle in base64.

    OpenSSL reads it, as for calls: it accepts the serial number 0, which the authorities of many
    webhooks have.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode())
    except (ssl.SSLError, ValueError) as error:  # also malformed base64
        return f"unable to load root certificates: {error}"
    return ""


def _validate_url(url: str, path: str, errors: list[FieldError]) -> None:
    form = "; desired format: https://host[/path]"
    try:
        split = urlsplit(url)
        _ = split.port
    except ValueError as error:
        errors.append(required(path, f"url must be a valid URL: {error}{form}"))
        return
    if split.scheme != "https":
        text = f"'https' is the only allowed URL scheme{form}"
        errors.append(invalid(path, split.scheme, text))
    if not split.netloc:
        errors.append(invalid(path, split.netloc, f"host must be specified{form}"))
    if "@" in split.netloc:
        user = split.netloc.rpartition("@")[0]
        errors.append(invalid(path, user, "user information is not permitted in the URL"))
    if split.fragment:
        errors.append(invalid(path, split.fragment, "fragments are not permitted in the URL"))
    if split.query:
        errors.append(invalid(path, split.query, "query parameters are not permitted in the URL"))


def _validate_service(service: Json, path: str, errors: list[FieldError]) -> None:
    # As kube-apiserver, which names the one field where the other is missing.
    for key, named in (("name", "namespace"), ("namespace", "name")):
        errors += [] if service.get(key) else [required(f"{path}.{named}")]
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        text = "port is not valid: must be between 1 and 65535, inclusive"
        errors.append(invalid(f"{path}.port", port, text))
    url_path = service.get("path")
    if url_path in (None, "", "/"):
        return
    path = f"{path}.path"
    if url_path == "//":
        errors.append(invalid(path, url_path, "segment[0] may not be empty"))
        return
    if not url_path.startswith("/"):
        errors.append(invalid(path, url_path, "must start with a '/'"))
    for index, step in enumerate(url_path[1:].removesuffix("/").split("/")):
        if not step:
            errors.append(invalid(path, url_path, f"segment[{index}] may not be empty"))
        elif problem := validation.dns1123_subdomain_error(step):
            errors.append(invalid(path, url_path, f"segment[{index}]: {problem}"))
