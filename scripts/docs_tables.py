"""Write the table of settings in ``docs/train.md`` from the rows of `sbm.settings.SETTINGS`.

python -m scripts.docs_tables           writes it
python -m scripts.docs_tables --check   exits with 1 if it is stale
"""

import sys
from pathlib import Path

from sbm.settings import SETTINGS, option_name

PAGE = Path(__file__).resolve().parent.parent / "docs" / "train.md"
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"


def update(page: Path, check: bool = False) -> int:
    """Write the table between its markers; return 1 if that was only checked and is due."""
    lines = ["| option | meaning | default | commands |\n", "|---|---|---|---|\n"]
    for name, row in SETTINGS.items():
        typed = f"`{option_name(name)}" + (f" {row.metavar}`" if row.metavar else "`")
        if isinstance(row.default, bool):
            typed += f", `--no-{name}`"
        meaning = f"{row.meaning} {row.details}".strip()
        cells = [typed, meaning, row.default_text, row.commands.replace(" ", ", ")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    text = page.read_text("utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    new = before + BEGIN + "".join(lines) + END + after
    if check:
        return int(new != text)
    page.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(update(PAGE, check="--check" in sys.argv))
