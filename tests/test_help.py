"""What `sbm --help` and the help of each command say."""

import dataclasses
import re
import shlex
from collections import defaultdict
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sbm.cli import cli
from sbm.losses import LOSSES
from sbm.settings import POLICY_NAMES, Settings
from sbm.solver.cache import POLICIES
from sbm.store.formats import FORMATS

ROOT = Path(__file__).resolve().parent.parent
EVERY_COMMAND = pytest.mark.parametrize("name", list(cli.commands))
OPTIONS = [
    (name, option)
    for name, command in cli.commands.items()
    for option in command.params
    if isinstance(option, click.Option)
]
DEFAULT = re.compile(r"\s*\[default: (.*)\]$")


def help_of(*arguments: str, width: int = 80) -> str:
    result = CliRunner().invoke(cli, [*arguments, "--help"], terminal_width=width)
    assert result.exit_code == 0
    return result.output


def test_commands_are_in_the_order_of_their_use_and_told_whole():
    listed = help_of().split("Commands:\n")[1].splitlines()
    names = [line.split()[0] for line in listed]
    assert names == [
        "split", "train", "predict", "stream", "tune", "plan", "info", "check", "report", "export",
        "expire",
    ]  # fmt: skip
    for name, line in zip(names, listed, strict=True):
        sentence = cli.commands[name].help.split("\n\n")[0]
        assert line.split(maxsplit=1)[1] == " ".join(sentence.split()), "the first line is cut"


@EVERY_COMMAND
def test_the_first_paragraph_is_one_sentence_that_says_what_to_do(name):
    first = cli.commands[name].help.split("\n\n")[0]
    assert re.fullmatch(r"[A-Z][^.]*\.", first)


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=lambda x: getattr(x, "name", x))
def test_every_option_is_described_by_a_sentence(command, option):
    words = DEFAULT.sub("", option.help or "")
    assert option.hidden or re.fullmatch(r"[A-Z].*\.", words), f"sbm {command} {option.opts[0]}"


# An option that several commands have means the same in all of them, but for these.
DIFFERENT = {
    "--output": "what is written differs",
    "--format": "of inputs, and of the file that is exported",
    "--test": "export compares two models",
    "--C": "tune tries several",
    "-C": "tune tries several",
    "--resume": "a training is found by its model, a stream has to be named",
    "--fresh": "as --resume",
    "--checkpoint-every": "a stream counts rows, too",
    "--png": "other pictures",
    "--rounds": "a stream goes once: there is no pass to choose them for",
    "--dtype": "a store may choose for itself",
}


def test_an_option_is_described_by_the_same_words_everywhere():
    said = defaultdict(set)
    for _, option in OPTIONS:
        said[max(option.opts, key=len)].add(DEFAULT.sub("", option.help))
    different = {name for name, words in said.items() if len(words) > 1}
    assert different <= set(DIFFERENT)


TRAINING = {option.name: option for command, option in OPTIONS if command == "train"}
SETTINGS = {f.name: getattr(Settings(), f.name) for f in dataclasses.fields(Settings)}


@pytest.mark.parametrize("name", sorted(set(SETTINGS) & set(TRAINING)))
def test_the_default_that_is_told_is_the_default(name):
    found = DEFAULT.search(TRAINING[name].help)
    if found is None:
        assert not SETTINGS[name], f"{name} has a default that its help does not tell"
        return
    told = found[1]
    if name == "threads":
        assert (told, SETTINGS[name]) == ("all cores", None)
    elif told == "none":
        assert SETTINGS[name] is None
    elif isinstance(SETTINGS[name], bool):
        assert told == (name if SETTINGS[name] else f"no-{name}")
    else:
        kind = {int: int, float: float}.get(type(SETTINGS[name]), str)
        value = told if name in ("mem", "checkpoint_every", "comm_timeout") else kind(told)
        assert getattr(Settings(**{name: value}), name) == SETTINGS[name]


def test_every_setting_is_an_option_of_train():
    assert set(SETTINGS) <= set(TRAINING)


@EVERY_COMMAND
def test_help_ends_with_an_example_that_the_options_allow(name):
    *_, title, example = help_of(name).splitlines()
    assert title == "Example:"
    assert example == f"  {cli.commands[name].example}"
    words = shlex.split(example.rsplit("|")[-1])  # behind a pipe
    assert words[:2] == ["sbm", name]
    cli.commands[name].make_context(name, words[2:])  # refuses unknown options and bad values


@EVERY_COMMAND
def test_no_line_is_wider_than_a_terminal(name):
    long = [line for line in help_of(name).splitlines() if len(line) > 80]
    assert not long


def words_of_the_glossary():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    glossary = text.split("## Glossary\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", glossary, re.MULTILINE)
    return [word for row in rows if row not in ("word", "---") for word in row.split(", ")]


def test_the_glossary_has_each_word_once_and_those_that_are_needed_most():
    words = words_of_the_glossary()
    assert len(words) == len(set(words))
    assert set(words) >= {
        "pass", "round", "step", "block", "chunk", "working set", "cache", "spill", "gap",
        "violation", "free", "bounded",
    }  # fmt: skip


# Other words for what the glossary names.
TWINS = {"epoch", "iteration", "sweep", "example", "instance", "datapoint", "minibatch", "dataset"}


@pytest.mark.parametrize("name", [None, *cli.commands])
def test_help_uses_the_words_of_the_glossary_alone(name):
    command = cli if name is None else cli.commands[name]
    said = [command.help, *(getattr(option, "help", None) or "" for option in command.params)]
    words = {word.removesuffix("s") for text in said for word in re.findall("[a-z]+", text.lower())}
    assert not words & TWINS


@pytest.mark.parametrize("page", ["README.md", "docs/train.md", "docs/stream.md"])
def test_pages_for_users_do_so_too(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
    words = {word.removesuffix("s") for word in re.findall("[a-z]+", text.lower())}
    assert words & TWINS <= {"example"}  # "for example"


def test_the_names_that_are_known_are_the_tables():
    assert tuple(POLICIES) == POLICY_NAMES
    assert [*TRAINING["loss"].type.choices] == [*LOSSES]
    assert TRAINING["policy"].type.choices == POLICY_NAMES


@EVERY_COMMAND
def test_every_loss_is_told_with_its_problem_where_one_is_chosen(name):
    title = "Losses, and what is minimised over w:\n"
    _, found, table = help_of(name).partition(title)
    assert bool(found) == any(option.name == "loss" for option in cli.commands[name].params)
    if found:
        rows = [f"{loss.name} {loss.problem}" for loss in LOSSES.values()]
        assert table.split("\n\n")[0].split() == " ".join(rows).split()


@pytest.mark.parametrize("command", ["split", "predict"])
def test_formats_of_inputs_are_the_table(command):
    (option,) = [o for name, o in OPTIONS if name == command and o.name == "format"]
    assert sorted(option.type.choices) == sorted(FORMATS)
