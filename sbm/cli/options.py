"""Options that several commands have, each described once, and the settings they stand for."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from sbm.cli.liblinear import OPTIONS, read_options
from sbm.errors import SettingsError
from sbm.losses import LOSSES
from sbm.settings import POLICY_NAMES, TASKS, Settings

__all__ = [
    "COST", "DISTRIBUTED", "FILE", "INPUT_FORMAT", "LIBLINEAR", "NEW_FILE", "ON_ERROR",
    "SETTINGS", "TEST", "THREADS", "given_settings", "read_settings", "some", "without",
]  # fmt: skip

Option = Callable[..., Any]


class _NewFile(click.Path):
    """A file or folder to write; there is no such thing as standard output for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "-":
            raise SettingsError("-o - would write to standard output, which holds no such file; "
                                "give -o a name")  # fmt: skip
        return super().convert(value, param, ctx)


FILE = click.Path(path_type=Path)
NEW_FILE = _NewFile(path_type=Path)

COST = click.option("-C", "C", type=float, help="Cost of a row's loss.  [default: 1]")
THREADS = click.option(
    "--threads", type=int, metavar="N", help="Threads to use.  [default: all cores]"
)
TEST = click.option(
    "--test", type=click.Path(), metavar="FILE", help="Also predict this file at the end."
)
ON_ERROR = click.option(
    "--on-error", type=click.Choice(["fail", "skip"]),
    help="At a line that cannot be read: end, or leave it out.  [default: fail]",
)  # fmt: skip
INPUT_FORMAT = click.option(
    "--format", type=click.Choice(["libsvm", "csv", "tsv", "vw", "npz", "parquet"]),
    help="Format of the input.  [default: by the file's name, else libsvm]",
)  # fmt: skip
_CLASS_WEIGHT = click.option(
    "--class-weight", multiple=True, metavar="L=W",
    help="Multiply C for label L; may be repeated. Or balanced.",
)  # fmt: skip

# What decides a model beside C, and the budgets of its training: the words of `Settings`.
SETTINGS = {
    "loss": click.option(
        "--loss", type=click.Choice(LOSSES), metavar="NAME",
        help="What a row costs: one of the losses below.  [default: hinge]",
    ),
    "task": click.option(
        "--task", type=click.Choice(TASKS),
        help="Of squared_error: what labels are.  [default: auto]",
    ),
    "epsilon": click.option(
        "--epsilon", type=float, help="Of regression: deviation that costs nothing.  [default: 0.1]"
    ),
    "nu": click.option(
        "--nu", type=float, help="Of one_class: share of rows that may lie outside.  [default: 0.5]"
    ),
    "cache_frac": click.option(
        "--cache-frac", metavar="F",
        help="Share of the working set that is cache, or auto.  [default: 0.5]",
    ),
    "mem": click.option(
        "--mem", metavar="SIZE", help="Most memory the process may take.  [default: 2GB]"
    ),
    "rounds": click.option(
        "--rounds", metavar="N",
        help="Most rounds over a working set, 2,2,5 by pass, or auto.  [default: auto]",
    ),
    "tol": click.option(
        "--tol", type=float, help="Relative duality gap to reach.  [default: 1e-3]"
    ),
    "max_passes": click.option(
        "--max-passes", type=int, metavar="N", help="Most passes over the store.  [default: 50]"
    ),
    "time_limit": click.option(
        "--time-limit", metavar="T", help="Most time, as 90s, 5m or 2h.  [default: none]"
    ),
    "checkpoint_every": click.option(
        "--checkpoint-every", metavar="T",
        help="Commit so often inside a pass, too; 0: only at its end.  [default: 5m]",
    ),
    "policy": click.option(
        "--policy", type=click.Choice(POLICY_NAMES),
        help="How the cache is chosen.  [default: gradient]",
    ),
    "screen": click.option(
        "--screen/--no-screen", default=None,
        help="Leave out rows that are at rest before their visit.  [default: screen]",
    ),
    "bias": click.option(
        "--bias", type=float, metavar="B",
        help="Value of an extra feature in every row; 0 is none.  [default: 0]",
    ),
    "class_weight": _CLASS_WEIGHT,
    "liblinear_w": click.option(
        "--liblinear-w", multiple=True, hidden=True, help="A factor of C for a label: -w1 2.5."
    ),
    "weights": click.option(
        "--weights", type=click.Path(), metavar="FILE",
        help="A factor of C for each row, one a line.",
    ),
    "class_blocks": click.option(
        "--class-blocks", type=int, metavar="N",
        help="Of weston_watkins: divide N blocks of classes among processes.",
    ),
    "seed": click.option("--seed", type=int, help="Seed of every random choice.  [default: 0]"),
    "threads": THREADS,
    "config": click.option(
        "--config", type=FILE, metavar="FILE",
        help="TOML file of settings: the names of these options; options override it.",
    ),
}  # fmt: skip

DISTRIBUTED = {
    "sigma": click.option(
        "--sigma", metavar="S",
        help="Of several processes: how far each goes, adaptive, safe or a number from 1 on.  "
        "[default: adaptive]",
    ),
    "sync_every": click.option(
        "--sync-every", type=int, metavar="N",
        help="Of several processes: blocks before weights are added up.  [default: 1]",
    ),
    "comm_timeout": click.option(
        "--comm-timeout", metavar="T",
        help="Of several processes: most time to wait for the others.  [default: 10m]",
    ),
}  # fmt: skip


def _name_of(flag: str) -> str:
    """Return what click calls the value of an option of LIBLINEAR."""
    return f"liblinear{flag.replace('-', '_')}"


# Hidden: help shows them in a table of their own.
LIBLINEAR = {
    o.flag: click.option(o.flag, _name_of(o.flag), type=o.type, hidden=True, help=o.meaning)
    for o in OPTIONS
}


def some(options: Iterable[Option]) -> Option:
    """Decorate a command with options, in the order given."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(list(options)):
            command = option(command)
        return command

    return decorate


def without(table: dict[str, Option], *names: str) -> list[Option]:
    """Return the options of a table but some."""
    return [option for name, option in table.items() if name not in names]


def read_settings(config: Path | None, options: dict[str, Any]) -> Settings:
    """Turn options and a configuration file into settings; see `given_settings`."""
    return Settings.from_dict(given_settings(config, options))


def given_settings(config: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, by name.

    Options override the file; they are in our words or in LIBLINEAR's.

    Raises
    ------
    SettingsError
        One has no meaning; if it is of the file, that is named.
    """
    values = {} if config is None else Settings.read_toml(config)
    merged = {key.replace("-", "_"): value for key, value in values.items()}
    typed = {key: value for key, value in options.items() if value not in (None, ())}
    given = {o.flag: typed.pop(_name_of(o.flag), None) for o in OPTIONS}
    given["-w"] = typed.pop("liblinear_w", None)
    if "class_weight" in typed:
        typed["class_weight"] = list(typed["class_weight"])
    settings = merged | read_options(given, typed) | typed
    try:
        Settings.from_dict(settings)
    except SettingsError as error:
        text = str(error).removeprefix("settings: ")
        is_typed = config is None or text.partition(" ")[0] in typed
        raise SettingsError(text if is_typed else f"{config}: {text}") from None
    return settings
