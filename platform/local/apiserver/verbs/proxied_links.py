"""Links in HTML that is read through a proxy: absolute paths lead through the proxy, too."""

import html
import re
from urllib.parse import urlsplit

_ATTRIBUTES = {
    "a": ("href",), "applet": ("codebase",), "area": ("href",), "audio": ("src",),
    "base": ("href",), "blockquote": ("cite",), "body": ("background",),
    "button": ("formaction",), "command": ("icon",), "del": ("cite",), "embed": ("src",),
    "form": ("action",), "frame": ("longdesc", "src"), "head": ("profile",),
    "html": ("manifest",), "iframe": ("longdesc", "src"),
    "img": ("longdesc", "src", "usemap"), "input": ("formaction", "src", "usemap"),
    "ins": ("cite",), "link": ("href",), "object": ("classid", "codebase", "data", "usemap"),
    "q": ("cite",), "script": ("src",), "source": ("src",), "video": ("poster", "src"),
}  # fmt: skip
"""Attributes of HTML's elements that hold URLs."""

_TAG = re.compile(r"<([a-zA-Z]+)(\s(?:[^\"'>]|\"[^\"]*\"|'[^']*')*)>")
_ATTRIBUTE = re.compile(r"(\s)([a-zA-Z]+)(\s*=\s*)(\"[^\"]*\"|'[^']*'|[^\s\"'>]+)")


def rewrite_url(url: str, prefix: str, *, hosts: tuple[str, ...]) -> str:
    """Return *url* with *prefix* if it has an absolute path on one of *hosts*; else unchanged."""
    try:
        link = urlsplit(url)
    except ValueError:
        return url
    different = link.netloc and link.netloc not in hosts
    if different or not link.path.startswith("/") or link.path.startswith(f"{prefix}/"):
        return url
    return link._replace(scheme="", netloc="", path=prefix + link.path).geturl()


def rewrite_html(text: str, prefix: str, *, hosts: tuple[str, ...]) -> str:
    """Return a document with all its links rewritten by :func:`rewrite_url`."""

    def rewrite_tag(tag: re.Match[str]) -> str:
        names = _ATTRIBUTES.get(tag[1].lower(), ())

        def rewrite_attribute(found: re.Match[str]) -> str:
            blank, name, sign, value = found.groups()
            if name.lower() not in names:
                return found[0]
            bare = value[1:-1] if value[0] in "\"'" else value
            url = rewrite_url(html.unescape(bare), prefix, hosts=hosts)
            return f'{blank}{name}{sign}"{html.escape(url)}"'

        return f"<{tag[1]}{_ATTRIBUTE.sub(rewrite_attribute, tag[2])}>"

    return _TAG.sub(rewrite_tag, text)
