"""Write the tables of README.md and ``docs/`` that repeat code or results, and claims.md.

A table stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``, where NAME is a key of
`TABLES`.

python -m scripts.docs_tables           writes them
python -m scripts.docs_tables --check   exits with 1 if one is stale
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from sbm.cli import cli
from sbm.cli.liblinear import OPTIONS
from sbm.inputs.formats import ARROW, FORMATS
from sbm.losses import LOSSES
from sbm.programs.training.dual import Dual
from sbm.programs.training.fit import fit
from sbm.settings import SETTINGS
from sbm.solver.step import Solver
from scripts.bench import pages, results
from scripts.papers.claims import collect, table

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES += [ROOT / "CONTRIBUTING.md", ROOT / "scripts/results/README.md"]
_SHARED = ("quiet", "verbose", "as_json")
_OPTION = ("option", "meaning", "default")
_HELP = ["-h", "--help"]  # click remembers what a command's first context says


def _table(titles: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(titles), ["---"] * len(titles)]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _row_of(option: click.Option, in_detail: bool) -> list[str]:
    """Return option, meaning and default, from the help and the details of settings."""
    meaning, _, default = (option.help or "").partition("[default: ")
    default = default.removesuffix("]")
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    metavar = option.metavar or ("NAME" if choices else "")
    if not (metavar or option.is_flag):
        metavar = "N" if option.type is click.INT else "X"
    typed = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if metavar:
        typed = typed.removesuffix("`") + f" {metavar.replace('|', ' or ')}`"
    details = SETTINGS[option.name].details if in_detail and option.name in SETTINGS else ""
    if choices and list(choices) != [*LOSSES]:
        details = f"One of {', '.join(f'`{choice}`' for choice in choices)}. {details}"
    return [typed, f"{meaning.strip()} {details}".strip(), default]


def _options(name: str) -> str:
    """Return the section of a command: what it does, its options, an example."""
    command = cli.commands[name]
    usage = " ".join(command.collect_usage_pieces(click.Context(command, help_option_names=_HELP)))
    first = " ".join((command.help or "").split("\n\n")[0].split())
    shown = [o for o in command.params if isinstance(o, click.Option) and not o.hidden]
    rows = [_row_of(o, in_detail=name == "train") for o in shown if o.name not in _SHARED]
    text = f"## sbm {name}\n\n{first}\n\n```text\nsbm {name} {usage}\n```\n\n"
    return text + (_table(_OPTION, rows) + "\n" if rows else "")


def _ranks() -> str:
    """Return the options of several processes."""
    names = ("launch", "comm_timeout")
    options = {o.name: o for o in cli.commands["train"].params if isinstance(o, click.Option)}
    return _table(_OPTION, [_row_of(options[name], in_detail=True) for name in names])


def _losses() -> str:
    rows = [
        [f"`{loss.name}`", loss.problem, ", ".join(f"`-s {s}`" for s in loss.liblinear)]
        for loss in LOSSES.values()
    ]
    return _table(["`--loss`", "problem, minimised over w", "LIBLINEAR"], rows)


def _liblinear() -> str:
    rows = [[f"`{o.flag} {o.metavar}`", o.meaning] for o in OPTIONS]
    return _table(["LIBLINEAR", "sbm"], [*rows, ["`-wL W`", "--class-weight L=W"]])


def _formats() -> str:
    rows = [
        [f"`{f.name}`", ", ".join(f"`{ending}`" for ending in f.endings),
         "yes" if f.is_stream else "no", "a dictionary of names, or as written" if f.name in ARROW
         else "a dictionary of names" if f.opener else "hashes of names" if f.has_names else
         "column numbers" if f.name == "npz" else "as written"]
        for f in FORMATS.values()
    ]  # fmt: skip
    return _table(["`--format`", "file names", "pipes, compressed files", "feature ids"], rows)


def _loop() -> str:
    """Return the source of the pass loop, of a pass and of a step, with one line of docstring."""
    found = []
    for function in (fit, Dual.run_pass, Solver.step):
        source = textwrap.dedent(inspect.getsource(function))
        told = ast.get_docstring(ast.parse(source).body[0], clean=False) or ""  # type: ignore[arg-type]
        owner = function.__qualname__.rpartition(".")[0]
        source = f"# {owner}\n{source}" if owner else source
        found.append(source.replace(told, told.partition("\n")[0]))
    return "```python\n" + "\n\n".join(found) + "```\n"


TABLES: dict[str, Callable[[], str]] = {
    "loop": _loop,
    "options": lambda: "".join(_options(name) for name in cli.commands).rstrip("\n") + "\n",
    "ranks": _ranks,
    "losses": _losses,
    "liblinear": _liblinear,
    "formats": _formats,
    **pages.BLOCKS,
    "results": results.page,
}


def _made(name: str, make: Callable[[], str]) -> str | None:
    """Return a block, or None if its result is missing: then the block stays as it is."""
    try:
        return make()
    except FileNotFoundError as error:
        click.echo(
            f"{name}: {error.filename} is missing; run python -m scripts.bench all", err=True
        )
        return None


def update(pages: Iterable[Path] = PAGES, check: bool = False) -> int:
    """Write the tables of pages; return 1 if that was only checked and one is stale."""
    stale = 0
    for page in pages:
        text = new = page.read_text("utf-8")
        for name, make in TABLES.items():
            begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
            if begin in new and (text_of := _made(name, make)) is not None:
                new = new.split(begin)[0] + begin + text_of + end + new.split(end)[1]
        stale |= new != text
        if new != text and not check:
            page.write_text(new, "utf-8")
    return int(stale and check)


if __name__ == "__main__":
    if "--check" not in sys.argv:
        (results.HERE / "claims.md").write_text(table(collect(results.HERE)), "utf-8")
    sys.exit(update(check="--check" in sys.argv))
