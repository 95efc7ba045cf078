"""List the public names of sbm: functions, classes, parameters, commands and options.

    python -m scripts.api -o tests/frozen/v1/api.txt

A test compares the list with that file, so that no name, parameter or default changes by accident.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import sbm
import sbm.sklearn
from sbm.cli import cli


def _parameters(name: str, function: Any) -> Iterator[str]:
    """Yield a line for each parameter, with its place and default; annotations may become wider."""
    for place, one in enumerate(inspect.signature(function).parameters.values()):
        if one.name not in ("self", "cls") and not one.name.startswith("_"):
            shown = one.replace(annotation=inspect.Parameter.empty)
            if inspect.isfunction(one.default) or repr(one.default) == "<factory>":
                shown = shown.replace(default=...)
            where = "any place" if one.kind is inspect.Parameter.KEYWORD_ONLY else f"place {place}"
            yield f"{name}: {shown}, {where}"


def _members(name: str, kind: type) -> Iterator[str]:
    """Yield constructor, methods and properties of a class; of an error its bases."""
    if issubclass(kind, Exception):
        yield f"{name}: {', '.join(base.__name__ for base in kind.__mro__[1:-2])}"
        return
    yield from _parameters(name, kind)
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("sbm"):
            for member, value in vars(base).items():
                if not member.startswith("_") and not member.endswith("_request"):
                    yield f"{name}.{member}"
                    function = getattr(value, "__func__", getattr(value, "fn", value))
                    if inspect.isfunction(function):
                        yield from _parameters(f"{name}.{member}", function)


def lines() -> list[str]:
    """Return the list, sorted, one name per line."""
    found = set()
    for module in (sbm, sbm.sklearn):
        for name in module.__all__:
            value = getattr(module, name)
            full = f"{module.__name__}.{name}"
            found.add(full)
            found |= {*(_members if inspect.isclass(value) else _parameters)(full, value)}
    for name, command in cli.commands.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                found |= {f"$ sbm {name} {opt}" for opt in parameter.opts}
    return sorted(found)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File; default: printed.")
def main(output: Path | None) -> None:
    """Print or write the list."""
    text = "\n".join(lines()) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
