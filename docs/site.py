"""Pages of the site that are made of other files: mkdocs calls `on_files` before it builds.

Invariants:
- Nothing is written twice: README, CHANGELOG and CONTRIBUTING are the pages of these names, and the keys are read from
  the schema.
- A link to a file of the repository that is no page becomes plain text: the site has no repository behind it.
"""

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
_DATE = re.compile(r"\| (\d{4}-\d\d-\d\d) \|")  # in a cell of its own: a narrow column would break it
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_moved((ROOT / source).read_text(encoding="utf-8"))))
    files.append(File.generated(config, "reference/keys.md", content="\n".join(_keys()) + "\n"))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    whole = _DATE.sub(r'| <span class="date">\1</span> |', markdown)
    return _LINK.sub(lambda link: _inside(link, folder), whole)


def _moved(text: str) -> str:
    """Links of a file of the root, as a page beside those of docs/."""
    return _LINK.sub(lambda link: link[0].replace("](docs/", "]("), text)


def _inside(link: re.Match[str], folder: str) -> str:
    """As it is, or the words alone where it leads to what is no page. `folder`: of the page, below docs/."""
    target = link[3].partition("#")[0]
    if not target or "://" in target:
        return link[0]
    path = posixpath.normpath(posixpath.join(folder, target))
    name = PAGES.get(path.removeprefix("../"))
    if name:
        return link[0].replace(target, posixpath.relpath(name, folder or "."))
    return link[2] if path.startswith("../") or not (ROOT / "docs" / path).is_file() else link[0]


def _keys() -> Iterator[str]:
    """A table for each group: key, default, what it is for."""
    sys.path.append(str(ROOT))  # here: what a hook adds while it is loaded is taken away again
    from swe_rl.config.keys import comment_of, describe_type, fields_of
    from swe_rl.config.schema import Config

    yield "# Every key\n\nMade of the schema. An option's file may set another default: `python -m swe_rl help KEY`"
    yield "says which value a key has, and where it comes from.\n"
    for group, hint in fields_of(Config).items():
        if not (isinstance(hint, type) and is_dataclass(hint)):
            continue
        yield f"## {group}\n\n{(hint.__doc__ or '').strip()}\n\n| key | default | what it is for |\n|---|---|---|"
        for field in fields(hint):
            kind = describe_type(fields_of(hint)[field.name])
            words = (f"`{group}.{field.name}`", _default(field), f"{comment_of(f'{group}.{field.name}')}<br>*{kind}*")
            yield f"| {' | '.join(word.replace('|', chr(92) + '|') for word in words)} |"
        yield ""


def _default(field: Any) -> str:
    """As an override writes it."""
    value = field.default if field.default is not MISSING else field.default_factory()
    if is_dataclass(value) or isinstance(value, dict):
        return "a table"
    if isinstance(value, tuple):
        return f"`[{', '.join(str(getattr(item, 'value', item)) for item in value)}]`"
    if value is None or isinstance(value, bool):
        return f"`{json.dumps(value)}`"
    return f"`{getattr(value, 'value', value)}`"
