"""What mkdocs needs to know of this repository; ``mkdocs.yml`` names this file.

Pages link to files outside ``docs/`` as they lie in the repository: ``../scripts/results/plan.md``.
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
    return re.sub(r"\[([^\]]*)\]\((?!https:)[^)]*\)", r"\1", markdown)  # its neighbours are not here


class FormattedDocstrings(griffe.Extension):
    """Shows docstrings that are completed when a module is imported, as that of `Settings`."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Take the docstring of the imported class."""
        if cls.path == "sbm.settings.Settings" and cls.docstring:
            from sbm.settings import Settings

            cls.docstring.value = Settings.__doc__ or ""
