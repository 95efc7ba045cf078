"""Options that several commands share, and how they become settings."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from sbm.cli.liblinear import DEFAULT_SOLVER, OPTIONS, read_options
from sbm.errors import SettingsError
from sbm.settings import SETTINGS, Settings, nearest, option_name

__all__ = [
    "FILE",
    "GROUPS",
    "LAST",
    "LIBLINEAR",
    "NEW_FILE",
    "PATH",
    "REMOTE_TIMEOUT",
    "TEST",
    "THREADS",
    "Choice",
    "given_settings",
    "read_settings",
    "settings_of",
    "some",
    "without",
]

Option = Callable[..., Any]


class _Path(click.Path):
    """Name of a file or folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip() and getattr(param, "flag_value", None) != LAST:
            raise SettingsError(f"{_shown(param)} is empty; give a file name")
        return super().convert(value, param, ctx)


class _NewFile(_Path):
    """File or folder to write, but not standard output."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "-":
            option = _shown(param)
            raise SettingsError(f"{option} - (standard output) is not supported; give a file name")
        return super().convert(value, param, ctx)


def _shown(param: click.Parameter | None) -> str:
    """Return an option or argument as it is typed."""
    if isinstance(param, click.Argument):
        return param.human_readable_name.strip("[].")
    return "-o" if param is None or "-o" in param.opts else max(param.opts, key=len)


class Choice(click.Choice):  # type: ignore[type-arg]  # generic in new versions only
    """One of some words; an error suggests the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word. Raises `click.BadParameter` if it is not one of them."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            hint = nearest(str(value), map(str, self.choices))
            text = error.message.removesuffix(".") + (hint or ".")
            raise click.BadParameter(text, ctx, param) from None


# Without a check that files are readable: their readers report errors, with exit code 1.
FILE = _Path(path_type=Path, readable=False)
NEW_FILE = _NewFile(path_type=Path, readable=False)
PATH = _Path(readable=False)  # or a pattern, a URL, "-"

TEST = click.option("--test", type=PATH, metavar="FILE", help="Also predict this file at the end.")
_NUMBERS = (int, float)
_MEMORY, _CLASSES = "Memory and speed", "Classes and rows"
_VALIDATION = "Validation"
_PROCESSES, _TEXT = "Several processes", "Reading text"
# Group of an option in help; options without a group come first.
GROUPS = {
    **dict.fromkeys(("mem", "parts", "cache_frac", "rounds", "policy", "screen", "threads",
                     "checkpoint_every"), _MEMORY),
    **dict.fromkeys(("class_weight", "weights", "calibrate"), _CLASSES),
    **dict.fromkeys(("validate", "metric", "threshold"), _VALIDATION),
    **dict.fromkeys(("blocks", "dtype", "on_error", "min_count", "format", "hash_bits", "label",
                     "categorical", "weight", "exclude", "column", "columns", "cross",
                     "quadratic", "header", "sep", "quote", "decimal", "encoding", "strict",
                     "feature_names", "names", "keep_store", "remote_timeout"), _TEXT),
    **dict.fromkeys(("launch", "comm_timeout"), _PROCESSES),
}  # fmt: skip
LAST = ""  # --warm-start without a name

# Arguments of click.option that do not follow from the table of settings.
_MORE: dict[str, dict[str, Any]] = {
    "class_weight": {"multiple": True},
    "weights": {"type": PATH},
    "warm_start": {"type": PATH, "is_flag": False, "flag_value": LAST},
}


def _make_option(name: str) -> Option:
    """Make the option of a setting from its row in the table."""
    setting, typed = SETTINGS[name], option_name(name)
    rule = setting.rule
    more: dict[str, Any] = {}
    if rule.kind is bool:
        typed += f"/--no-{name}"
    elif rule.choices:
        more["type"] = Choice(rule.choices)
    elif rule.kind in _NUMBERS and not rule.texts:
        more["type"] = rule.kind
    default = setting.default_text
    meaning = f"{setting.meaning} {setting.limits}".strip()
    meaning += f"  [default: {default}]" if default else ""
    more |= {"metavar": setting.metavar, "default": None, **_MORE.get(name, {})}
    return click.option(typed, name, help=meaning, **more)


THREADS = _make_option("threads")
REMOTE_TIMEOUT = _make_option("remote_timeout")
_CONFIG = click.option(
    "--config", type=FILE, metavar="FILE",
    help="TOML file of settings, named like the options; options override it.",
)  # fmt: skip


def settings_of(command: str, *but: str) -> Option:
    """Decorate a command with the options of its settings, without those in `but`."""

    def options() -> list[Option]:
        names = [name for name, row in SETTINGS.items() if command in row.commands.split()]
        return [*(_make_option(name) for name in names if name not in but), _CONFIG]

    return _later(options)


def _name_of(flag: str) -> str:
    """Return click's parameter name for an option of LIBLINEAR."""
    return f"liblinear{flag.replace('-', '_')}"


# Hidden, because help shows them in a separate table.
LIBLINEAR = {
    o.flag: click.option(o.flag, _name_of(o.flag), type=o.type, hidden=True, help=o.meaning)
    for o in OPTIONS
} | {
    "-w": click.option(
        "--liblinear-w", multiple=True, hidden=True, help="A factor of C for a label: -w1 2.5."
    )
}


class Later:
    """Stands for options of a command until the command is used: a start needs those of one."""

    def __init__(self, options: Callable[[], Iterable[Option]]) -> None:
        self._options = options

    def params(self) -> list[click.Parameter]:
        """Make the options."""

        def command() -> None: ...

        for option in reversed(list(self._options())):
            option(command)
        params: list[click.Parameter] = vars(command).get("__click_params__", [])
        return params[::-1]


def _later(options: Callable[[], Iterable[Option]]) -> Option:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        vars(command).setdefault("__click_params__", []).append(Later(options))
        return command

    return decorate


def some(options: Iterable[Option]) -> Option:
    """Decorate a command with options, in this order."""
    return _later(lambda: options)


def without(table: dict[str, Option], *names: str) -> list[Option]:
    """Return the options of a table without those named."""
    return [option for name, option in table.items() if name not in names]


def read_settings(config: Path | None, options: dict[str, Any]) -> Settings:
    """Turn options and a configuration file into settings; see `given_settings`."""
    return Settings.from_dict(given_settings(config, options))


def given_settings(config: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings from a file and from options, by name.

    Options, including those of LIBLINEAR, override the file.

    Raises
    ------
    SettingsError
        A value is invalid. The message names the file if the value is from there.
    """
    values = {} if config is None else Settings.read_toml(config)
    merged = {key.replace("-", "_"): value for key, value in values.items()}
    typed = {key: value for key, value in options.items() if value not in (None, ())}
    given = {o.flag: typed.pop(_name_of(o.flag), None) for o in OPTIONS}
    given["-w"] = typed.pop("liblinear_w", None)
    if "class_weight" in typed:
        typed["class_weight"] = list(typed["class_weight"])
    is_theirs = any(value not in (None, ()) for value in given.values())
    if is_theirs and given["-s"] is None and "loss" not in {**merged, **typed}:
        given["-s"] = DEFAULT_SOLVER
    settings = merged | read_options(given, typed) | typed
    try:
        Settings.from_dict(settings)
    except SettingsError as error:
        text = str(error).removeprefix("settings: ")
        is_typed = config is None or text.partition(" ")[0] in typed
        raise SettingsError(text if is_typed else f"{config}: {text}") from None
    return settings
