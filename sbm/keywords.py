"""What functions show in Python: errors that name keyword arguments, and reports in short."""

from __future__ import annotations

import functools
import re
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from sbm.errors import SbmError
from sbm.settings import SETTINGS
from sbm.units import cut

__all__ = ["Report", "in_python", "with_keywords"]

Function = TypeVar("Function", bound=Callable[..., Any])

# Options without a value, as keywords.
_FLAGS = {
    **{name: f"{name}=True" for name, row in SETTINGS.items() if row.rule.kind is bool},
    **{name: f"{name}=True" for name in ("append", "force", "if_any", "dry_run", "resume",
                                         "decision", "probability", "follow", "new_labels",
                                         "strict")},
    "fresh": "resume=False", "no_shuffle": "shuffle=False",
    "no_header": "header=False", "no_names": "names=False", "no_labels": "labels=False",
}  # fmt: skip
_OTHER_NAMES = {"source": "sources"}  # keywords of options that may be repeated
_NO_KEYWORDS = ("launch", "json")  # of the command line only
# Options after the name of another program are not those of sbm.
_OTHER_PROGRAM = r"\b(curl|mpiexec|pip|xzcat|zstdcat)\b[^;,()]*$"
# Argument that -o stands for.
_OUTPUTS = {"split": "store", "predict": "output", "cat": "output", "export": "output",
            "report": "output"}  # fmt: skip
# Values that are words; metavariables are in capital letters.
_WORDS = {
    "format": ("csv", "tsv", "vw", "npz", "json", "parquet", "feather", "libsvm", "liblinear"),
    "dtype": ("float32", "float64"),
}
_MOST_KEYS, _MOST_TEXT = 12, 80  # of a report, as it is shown
_NUMBER = r"[0-9][0-9.,]*(e[+-]?[0-9]+)?%?"
# A setting that a message begins with: "max_passes is 0; ..."
_SUBJECT = r"(\w+)(?= (is|has|needs|names|does|applies)\b)"
_SIZE = r"([0-9][0-9.]*) ?([kMGT]B)\b"
_PATH = r"[\w/{}.-]*[/.][\w/{}.-]*[\w}]"  # of a file, in a sentence
_OPTION = r"(?<![\w-])(?:--(?P<name>[a-z](?:[a-z-]*[a-z])?)|-(?P<short>[oC]))(?![\w-])"
_COMMAND = (
    r"\bsbm (?P<name>cat|check|expire|export|info|inspect|plan|predict|report|split|stream|train|"
    rf"tune)\b(?P<more>(?: (?:\w+=(?:'[^']*'|[^ ;,.)]+)|{_PATH}))*)"
)


def in_python(sentence: str, names: Mapping[str, str] | None = None, command: str = "") -> str:
    """Return a message in which options are keyword arguments: ``--mem 2GB`` is ``mem='2GB'``.

    Parameters
    ----------
    sentence : str
    names : mapping, optional
        Names of arguments that differ from those of settings; ``"name=value"`` for a flag.
    command : str
        Name of the function, for the meaning of ``-o``.
    """
    names = names or {}
    parts, end = [], 0
    for match in re.finditer(_OPTION, sentence):
        before = sentence[: match.start()]
        if len(before) < end or match["name"] in _NO_KEYWORDS or re.search(_OTHER_PROGRAM, before):
            continue
        after = sentence[match.end() :]
        if match["short"] == "o":
            shown, rest = f"{_OUTPUTS.get(command, 'model')}=...", after
        else:
            name = match["short"] or match["name"].replace("-", "_")
            shown, rest = _keyword(name, after, names)
        parts += [sentence[end : match.start()], shown]
        end = len(sentence) - len(rest)
    sentence = "".join([*parts, sentence[end:]])
    subject = re.match(_SUBJECT, sentence)
    if subject and subject[1] in names:
        sentence = names[subject[1]].partition("=")[0] + sentence[subject.end() :]
    return re.sub(_COMMAND, _call, sentence)


def _keyword(name: str, after: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Return an option as a keyword with its value, and the text that is left after the value."""
    if name in _FLAGS:
        return names.get(name, _FLAGS[name]), after
    name = names.get(name, _OTHER_NAMES.get(name, name))
    if after.startswith(" "):
        text = after[1:]
        word = re.match(r"[\w.-]*\w", text)
        choices = _WORDS.get(name, SETTINGS[name].rule.choices if name in SETTINGS else ())
        if size := re.match(_SIZE, text):
            return f"{name}='{size[1]}{size[2]}'", text[size.end() :]
        path = re.match(_PATH, text)
        if path and not re.fullmatch(_NUMBER, path[0]):
            return f"{name}='{path[0]}'", text[path.end() :]
        if word and word[0] in choices:
            return f"{name}='{word[0]}'", text[word.end() :]
        if word and (re.fullmatch(_NUMBER, word[0]) or re.fullmatch(r"[A-Z]+", word[0])):
            return f"{name}={word[0]}", text[word.end() :]
    return name, after


def _call(match: re.Match[str]) -> str:
    words = match["more"].split()
    more = ", ".join(word if "=" in word else f"'{word}'" for word in words)
    return f"sbm.{match['name']}({more})" if more else f"sbm.{match['name']}"


class Report(dict[str, Any]):
    """A dict that is shown in short; ``dict(report)`` shows all of it."""

    def __repr__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self._shown()]
        return "\n".join([*lines, *self._more()])

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from html import escape

        cells = [f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self._shown()]
        return f"<table>{''.join(cells)}</table>{escape(''.join(self._more()))}"

    def _shown(self) -> list[tuple[str, str]]:
        short = reprlib.Repr()
        short.maxdict = short.maxlist = 3
        short.maxlevel, short.maxstring = 2, 60
        return [
            (name, cut(short.repr(value), _MOST_TEXT))
            for name, value in list(self.items())[:_MOST_KEYS]
        ]

    def _more(self) -> list[str]:
        more = list(self)[_MOST_KEYS:]
        names = cut(", ".join(more), 3 * _MOST_TEXT)
        return [f"and {len(more)} more: {names}; dict(...) shows all"] if more else []


def _compact(result: Any) -> Any:
    """Return a report, or those in a tuple, in a form that is shown in short."""
    if type(result) is dict:
        return Report(result)
    return tuple(map(_compact, result)) if type(result) is tuple else result


def with_keywords(names: Mapping[str, str] | None = None) -> Callable[[Function], Function]:
    """Return a decorator that makes errors of a function speak of its arguments, not of options."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                return _compact(function(*arguments, **keywords))
            except SbmError as error:
                error.args = (cut(in_python(str(error), names, function.__name__)),)
                raise

        return cast(Function, call)

    return decorate
