"""Turn Sphinx roles in docstrings into links; fail the strict build if one is left."""

from __future__ import annotations

import logging
import re
from typing import Any

_ROLES = r":(?:func|class|meth|data|mod|attr|exc|obj):"
_ROLE = re.compile(_ROLES + r"<code>(~?)([\w.]+)</code>")
_RAW = re.compile(_ROLES + r"|^&gt;&gt;&gt;", re.MULTILINE)
_FENCE = re.compile("```")  # in code too: a docstring's section without its fence
_CODE = re.compile(r"<pre.*?</pre>", re.DOTALL)
_log = logging.getLogger("mkdocs.hooks.roles")  # a warning fails a strict build


def _link(match: re.Match[str]) -> str:
    shortened, name = match.groups()
    shown = name.rpartition(".")[2] if shortened else name
    # Optional, since other libraries and private modules have no page here.
    return f'<autoref optional identifier="{name}"><code>{shown}</code></autoref>'


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Replace the roles of a page."""
    html = _ROLE.sub(_link, html)
    if raw := _RAW.search(_CODE.sub("", html)) or _FENCE.search(html):
        around = html[max(0, html.find(raw[0]) - 40) :][:120]
        _log.warning("%s shows raw markup: %s", page.file.src_path, around)
    return html
