"""What mkdocs needs to know of this repository; ``mkdocs.yml`` names this file.

Pages link to files outside ``docs/`` as they lie in the repository: ``../scripts/results/grid.md``.
The site holds each file that a page links to, under its path in the repository.
"""

import posixpath
import re
from functools import partial
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\]\(\.\./([^)#\s]+)")
_ANY_LINK = re.compile(r"\[([^\]]*)\]\(((?!https:)[^)#\s]*)(#[^)]*)?\)")
# mkdocs makes index.html of README.md and of docs/index.md, which is the home page.
_PLACES = {"README.md": "overview.md"}
_SHORT_CODE = re.compile(r"<code>(?=[^<]{1,26}</code>)")
_there: set[str] = set()  # files outside ``docs/`` that the site holds


def on_files(files: Any, config: Any) -> Any:
    """Add the files that pages link to, and those that they link to."""
    linked = {"CHANGELOG.md"}
    for page in sorted(Path(config.docs_dir).glob("*.md")):
        linked |= set(_LINK.findall(page.read_text("utf-8")))
    _there.update(linked)
    for name in sorted(linked):
        place = _PLACES.get(name, name)
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links out of ``docs/`` links to those files, and links of those files links to pages."""
    if page.file.generated_by is None:
        return _LINK.sub(lambda link: f"]({_PLACES.get(link[1], link[1])}", markdown)
    return _ANY_LINK.sub(partial(_link_here, folder=posixpath.dirname(page.file.src_uri)), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Mark code that should stay on one line, see ``docs/site.css``."""
    return _SHORT_CODE.sub('<code class="short">', html)


def _link_here(link: re.Match[str], folder: str) -> str:
    """Return a link of a file outside ``docs/`` as one of the site, or text if it is not there."""
    text, target, anchor = link[1], link[2], link[3] or ""
    if not target:
        return link[0]  # within the page
    path = posixpath.normpath(posixpath.join(folder, target))
    page = path.removeprefix("docs/")
    if page == path:
        page = _PLACES.get(path, path) if path in _there else ""
    elif not (ROOT / path).is_file():
        page = ""
    return f"[{text}]({posixpath.relpath(page, folder or '.')}{anchor})" if page else text


class FormattedDocstrings(griffe.Extension):
    """Shows what `sbm.settings` makes when it is imported: the docstring and the defaults."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Take them from the imported class."""
        if cls.path == "sbm.settings.Settings" and cls.docstring:
            from sbm.settings import SETTINGS, Settings

            cls.docstring.value = Settings.__doc__ or ""
            for name, row in SETTINGS.items():
                cls.members[name].value = repr(row.default)
