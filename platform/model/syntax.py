"""What names, labels and values must look like in Kubernetes.

Each function answers with what is wrong with a text, in words that can follow the text itself in a
refusal, or with ``""`` when nothing is.
"""

import re

_DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL_RE = re.compile(_DNS_LABEL, re.ASCII)
_DNS_SUBDOMAIN_RE = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*", re.ASCII)
_NAME_RE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)


def dns_label_problem(text: str) -> str:
    """Of a name that becomes one part of a host name: containers, volumes, services."""
    if not _DNS_LABEL_RE.fullmatch(text):
        return (
            "a lowercase RFC 1123 label has only a-z, 0-9 and '-',"
            " and starts and ends with a letter or digit"
        )
    return _too_long(text, 63)


def dns_subdomain_problem(text: str) -> str:
    """Of the name of most objects."""
    if not _DNS_SUBDOMAIN_RE.fullmatch(text):
        return (
            "a lowercase RFC 1123 subdomain has only a-z, 0-9, '-' and '.',"
            " and each part starts and ends with a letter or digit"
        )
    return _too_long(text, 253)


def name_problem(text: str) -> str:
    """Of the part of a label key after its slash, and of names with the same rules."""
    if not text:
        return "name part must be non-empty"
    if not _NAME_RE.fullmatch(text):
        return (
            "name part must consist of letters, digits, '-', '_' or '.',"
            " and start and end with a letter or digit"
        )
    return f"name part {long}" if (long := _too_long(text, 63)) else ""


def qualified_name_problem(text: str) -> str:
    """Of the key of a label, annotation or resource: a name, perhaps after a domain and a slash."""
    prefix, slash, name = text.rpartition("/")
    if slash and not prefix:
        return "prefix part must be non-empty"
    if slash and (problem := dns_subdomain_problem(prefix)):
        return f"prefix part {problem}"
    return name_problem(name)


def label_value_problem(text: str) -> str:
    """Of the value of a label; the empty value is one."""
    if text and not _NAME_RE.fullmatch(text):
        return (
            "a label value is empty or has only letters, digits, '-', '_' and '.',"
            " and starts and ends with a letter or digit"
        )
    return _too_long(text, 63)


def _too_long(text: str, most: int) -> str:
    return f"must be no more than {most} bytes" if len(text) > most else ""
