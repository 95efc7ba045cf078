"""scripts/mutations.py: its table applies, and random changes are valid Python."""

import ast

import pytest
from helpers import SCRIPTS, load_script

mutations = load_script("mutations")


def changed(mutation, tmp_path):
    """Return a mutation's file before and after."""
    before = (SCRIPTS.parent / mutation.file).read_text("utf-8")
    copy = tmp_path / mutation.file
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(before, "utf-8")
    mutation.apply(tmp_path)
    return before, copy.read_text("utf-8")


@pytest.mark.slow
def test_every_important_line_is_there_once_and_changes(tmp_path):
    for line in mutations.LINES:
        before, after = changed(line.mutation(), tmp_path)
        assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    names = [line.name for line in mutations.LINES]
    assert len(set(names)) == len(names)


def test_line_is_found_wherever_its_function_is(tmp_path):
    line = mutations.Line("sign", "make.solve", "f(a,\n  b)", "f(b)")
    file = tmp_path / "sbm" / "deep" / "file.py"
    file.parent.mkdir(parents=True)
    file.write_text("def solve():\n    f(a, b)\ndef make():\n  def solve():\n    'é'; f( a,b )\n")
    line.mutation(tmp_path).apply(tmp_path)
    assert file.read_text() == (
        "def solve():\n    f(a, b)\ndef make():\n  def solve():\n    'é'; f(b)\n"
    )
    with pytest.raises(ValueError, match="0 times"):
        line.mutation(tmp_path)


def test_random_mutations_compile_and_differ_once(tmp_path):
    drawn = mutations.draw(60, 1, ["sbm/distributed", "sbm/engine/sync.py"])
    assert len(drawn) == 60
    for mutation in drawn:
        before, after = changed(mutation, tmp_path)
        compile(after, mutation.file, "exec")
        old, new = before.splitlines(), after.splitlines()
        assert old[: mutation.line - 1] == new[: mutation.line - 1]
        assert old[mutation.line - 1] != new[mutation.line - 1]
