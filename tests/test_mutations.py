"""scripts/mutations.py: its lines are still there, and a broken one is noticed."""

from pathlib import Path

import pytest
from helpers import load_script

mutations = load_script("mutations")
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda m: m.name)
def test_every_line_stands_there_once_and_its_tests_exist(mutation):
    assert (ROOT / mutation.file).read_text("utf-8").count(mutation.old) == 1
    assert mutation.new != mutation.old
    assert all((ROOT / name).is_file() for name in mutation.tests if name.startswith("tests/"))


def test_names_are_told_apart():
    names = [mutation.name for mutation in mutations.MUTATIONS]
    assert len(set(names)) == len(names)


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "sbm").mkdir()
    (tmp_path / "sbm" / "__init__.py").touch()  # else the installed one is found
    (tmp_path / "sbm" / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sums.py").write_text(
        "from sbm.sums import add\n\n\ndef test_adds():\n    assert add(2, 3) == 5\n"
    )
    return tmp_path


@pytest.mark.parametrize(("new", "test"), [("a - b", "test_sums.py, test_adds"), ("b + a", "")])
def test_who_notices_is_told_and_the_tree_stays_as_it_is(tree, new, test):
    broken = mutations.Mutation("sum", "sbm/sums.py", "a + b", new, ("tests/test_sums.py",))
    before = (tree / "sbm" / "sums.py").read_text()
    (found,) = mutations.run([broken], tree)
    assert (found.mutation, found.test) == (broken, test)
    assert (tree / "sbm" / "sums.py").read_text() == before
    row = mutations.report_of([found]).splitlines()[-1]
    assert row.startswith("| sum | `sbm/sums.py` |")
    assert ("**nobody**" in row) == (test == "")


def test_a_line_that_is_gone_and_tests_that_cannot_run_are_told(tree):
    gone = mutations.Mutation("gone", "sbm/sums.py", "a * b", "", ("tests/test_sums.py",))
    with pytest.raises(ValueError, match=r"sbm/sums.py has 'a \* b' 0 times, not once"):
        mutations.run([gone], tree)
    lost = mutations.Mutation("lost", "sbm/sums.py", "a + b", "a - b", ("tests/test_lost.py",))
    with pytest.raises(RuntimeError, match=r"tests/test_lost.py: "):
        mutations.run([lost], tree)
