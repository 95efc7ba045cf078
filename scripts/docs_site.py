"""What mkdocs needs to know of this repository; ``mkdocs.yml`` names this file.

Pages link to files outside ``docs/`` as they lie in the repository: ``../scripts/results/grid.md``.
The site holds each file that a page links to, under its path in the repository.
"""

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\]\(\.\./([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the files that pages link to, and those that they link to."""
    linked = {"CHANGELOG.md"}
    for page in sorted(Path(config.docs_dir).glob("*.md")):
        linked |= set(_LINK.findall(page.read_text("utf-8")))
    for name in sorted(linked):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links out of ``docs/`` links to those files."""
    if page.file.generated_by is None:
        return _LINK.sub(r"](\1", markdown)
    # Not all files are here that such a page links to.
    return re.sub(r"\[([^\]]*)\]\((?!https:)[^)]*\)", r"\1", markdown)


class FormattedDocstrings(griffe.Extension):
    """Shows what `sbm.settings` makes when it is imported: the docstring and the defaults."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Take them from the imported class."""
        if cls.path == "sbm.settings.Settings" and cls.docstring:
            from sbm.settings import SETTINGS, Settings

            cls.docstring.value = Settings.__doc__ or ""
            for name, row in SETTINGS.items():
                cls.members[name].value = repr(row.default)
