"""The help of `sbm` and of each command agrees with the code."""

import re
import shlex

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from inside import GROUPS, LOSSES, METRICS, OPTIONS, POLICIES, SETTINGS, Settings, cli
from inside import INPUT_FORMATS as FORMATS

import sbm
from scripts import docs_tables

EVERY_COMMAND = pytest.mark.parametrize("name", list(cli.commands))
TRAINING = {option.name: option for option in cli.commands["train"].params}
THEIRS = {option.flag: f"{option.flag} {option.metavar} " for option in OPTIONS}


def help_of(*arguments: str) -> str:
    result = CliRunner().invoke(cli, [*arguments, "--help"], terminal_width=80)
    assert result.exit_code == 0
    return result.output


def test_commands_are_listed_in_order_of_use():
    listed = help_of().split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in listed] == [
        "split", "train", "predict", "stream", "tune", "plan", "info", "inspect", "check", "cat",
        "columns", "report", "export", "expire", "precompile",
    ]  # fmt: skip
    for line in listed:
        name, sentence = line.split(maxsplit=1)
        first = " ".join(cli.commands[name].help.split("\n\n")[0].split())
        assert first == sentence, "the first paragraph does not fit in a line"
    assert sorted(cli.commands) == [n for n in sbm.__all__ if callable(getattr(sbm, n)) and
                                    n.islower()]  # fmt: skip


@EVERY_COMMAND
def test_help_is_complete(name):
    """Every option is described, no line is too wide, and the example works."""
    command, shown = cli.commands[name], help_of(name)
    assert help_of(name) == CliRunner().invoke(cli, [name, "-h"], terminal_width=80).output
    assert not [line for line in shown.splitlines() if len(line) > 80]
    assert not re.search(r"^  [\[A-Z]\S* *$", shown, re.M)  # arguments are in the text above
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.opts
            assert option.hidden or max(option.opts, key=len) in shown
            if option.opts[0] in THEIRS:
                assert shown.count(THEIRS[option.opts[0]]) == 1  # in a table of its own
    *_, title, example = shown.splitlines()
    assert (title, example) == ("Example:", f"  {command.example}")
    words = shlex.split(example.rsplit("|")[-1])  # behind a pipe
    assert words[:2] == ["sbm", name]
    command.make_context(name, words[2:])  # refuses unknown options and bad values
    if any(option.name == "loss" for option in command.params):
        for loss in LOSSES.values():
            assert " ".join(f"{loss.name} {loss.problem}".split()) in " ".join(shown.split())
    else:
        assert "minimised" not in shown


def test_defaults_in_help_are_the_defaults():
    """Each one, given as it is shown, is what is set without it."""
    assert set(SETTINGS) <= set(TRAINING)
    for name, row in SETTINGS.items():
        found = re.search(r"\[default: (.*)\]$", TRAINING[name].help)
        shown = found[1] if found else ""
        assert shown == row.default_text
        if not isinstance(row.default, bool | None):
            value = type(row.default)(shown)
            assert getattr(Settings(**{name: value}), name) == getattr(Settings(), name)


def test_choices_are_the_tables():
    assert tuple(POLICIES) == TRAINING["policy"].type.choices
    assert [*TRAINING["loss"].type.choices] == [*LOSSES]
    for name in ("split", "predict"):
        (option,) = [o for o in cli.commands[name].params if o.name == "format"]
        assert sorted(option.type.choices) == sorted(FORMATS)

    (metric,) = [o for o in cli.commands["tune"].params if o.name == "metric"]
    assert [*metric.type.choices] == [*SETTINGS["metric"].rule.choices] == [*METRICS]


@pytest.mark.parametrize(
    ("line", "kind", "values"),
    [("split", "file", ""), ("split a.svm", "file", ""), ("train", "file", ""),
     ("predict a.model", "file", ""), ("stream", "file", ""), ("info", "file", ""),
     ("report a.model", "file", ""), ("tune --metric", "plain", "mae macro_f1 mse"),
     ("train --loss", "plain", "log_loss")],
)  # fmt: skip
def test_shells_complete_files_and_choices(line, kind, values):
    completion = ShellComplete(cli, {}, "sbm", "_SBM_COMPLETE")
    start = "" if kind == "file" else values[0]
    found = completion.get_completions(line.split(), start)
    assert {item.type for item in found} == {kind}
    assert {item.value for item in found} == set(values.split() or [""])


def test_unreadable_files_are_no_wrong_usage():
    for command in cli.commands.values():
        for option in command.params:
            assert not getattr(option.type, "readable", False), (command.name, option.name)


def test_options_of_train_are_grouped():
    titles = re.findall(r"^([A-Z].*):$", help_of("train"), re.M)
    assert titles[:4] == ["Options", "Memory and speed", "Classes and rows", "Validation"]
    assert set(GROUPS) <= set(TRAINING)
    assert "Several processes" not in help_of("tune")
    assert re.findall(r"^([A-Z].*):$", help_of("split"), re.M) == ["Options", "Example"]


def test_tables_in_the_docs_are_current(tmp_path):
    pages = {page.name: page.read_text("utf-8") for page in docs_tables.PAGES}
    for name, text in pages.items():
        stale = text.replace("| 2GB |", "| 1GB |").replace("| 0.38 |", "| 0.12 |")
        (tmp_path / name).write_text(stale, "utf-8")
        is_stale = stale != text
        assert docs_tables.update([tmp_path / name], check=True) == is_stale
    docs_tables.update(tmp_path.iterdir())
    assert {page.name: page.read_text("utf-8") for page in tmp_path.iterdir()} == pages
