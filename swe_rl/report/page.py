"""`report.html`: the run as one file that needs nothing else.

Invariants:
- No request leaves the page, and its policy (CSP) forbids every script but the page's own, by hash.
- What agents wrote reaches the page as JSON with `<`, `>` and `&` escaped, and is shown as text only.
- Secrets of the environment are masked once more.
- Written aside, then renamed: a reader never sees half a page.
"""

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from swe_rl.logger.disk import encode_json, write_text_atomic
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.redact import Redactor
from swe_rl.logger.status import RunStatus
from swe_rl.report.payload import build_payload
from swe_rl.report.timeline import programs_of

_STYLES = ("page.css", "timeline.css")
_SCRIPTS = ("charts.js", "viewer.js", "timeline.js", "timeline_load.js", "page.js")
_PLACEHOLDER = re.compile(r"\{\{(title|policy|style|data|script)\}\}")
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPED = re.compile("[<>&\u2028\u2029]")


def write_report(folder: RunFolder, ending: RunStatus | None = None) -> Path:
    """Of a run in any state, or of one whose status is about to be `ending`; returns the page's path.

    Raises DiskError.
    """
    payload = build_payload(folder, ending) | {"programs": programs_of(folder)}
    data = Redactor.from_environ().json(encode_json(payload)).decode()
    style, script = ("\n".join(_asset(name) for name in names) for names in (_STYLES, _SCRIPTS))
    page = fill(
        _asset("page.html"),
        {
            "title": html.escape(f"{payload['title']} · {payload['folder']}"),
            "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'",
            "style": style,
            "data": escape_json(data),
            "script": script,
        },
    )
    write_text_atomic(folder.report_html, page)
    return folder.report_html


def fill(template: str, values: Mapping[str, str]) -> str:
    """All placeholders in one pass: what a value contains is never taken for a placeholder."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def escape_json(text: str) -> str:
    """JSON that can stand inside a script element: no character of it ends the element or starts a tag."""
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], text)


def _asset(name: str) -> str:
    return (files("swe_rl.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
