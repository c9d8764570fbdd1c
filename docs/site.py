"""Pages of the site that are made of other files: mkdocs calls `on_files` before it builds.

Invariants:
- Nothing is written twice: README, CHANGELOG and CONTRIBUTING are the pages of these names, and what is read from the
  code comes from `docs/reference_pages.py`.
- A link to a file of the repository that is no page becomes plain text: the site has no repository behind it.
"""

import posixpath
import re
import sys
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
    for page, text in _reference_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    whole = _DATE.sub(r'| <span class="date">\1</span> |', markdown)
    return _LINK.sub(lambda link: _inside(link, folder), whole)


def _reference_pages() -> dict[str, str]:
    """Returns the pages that are read from the code."""
    # mkdocs takes away what a hook adds to the path while it is loaded, so it is added here.
    sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
    import reference_pages as made

    writers = {
        "reference/keys.md": made.write_keys,
        "reference/rules.md": made.write_rules,
        "reference/foreign_keys.md": made.write_foreign_keys,
        "reference/api.md": made.write_api,
        "reference/published.md": made.write_published,
    }
    return {page: "\n".join(write()) + "\n" for page, write in writers.items()}


def _moved(text: str) -> str:
    """Returns the text of a file of the root with links as a page beside those of docs/ has them."""
    return _LINK.sub(lambda link: link[0].replace("](docs/", "]("), text)


def _inside(link: re.Match[str], folder: str) -> str:
    """Returns a link as it is, or its words alone where it leads to what is no page.

    `folder` is the folder of the page, below docs/.
    """
    target = link[3].partition("#")[0]
    if not target or "://" in target:
        return link[0]
    path = posixpath.normpath(posixpath.join(folder, target))
    name = PAGES.get(path.removeprefix("../"))
    if name:
        return link[0].replace(target, posixpath.relpath(name, folder or "."))
    if path.startswith("../"):
        return link[2]
    if path.startswith("reference/") or (ROOT / "docs" / path).is_file():
        return link[0]
    return link[2]
