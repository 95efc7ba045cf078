"""scripts/mutations.py: random changes are valid Python and differ in one place."""

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


def test_random_mutations_compile_and_differ_once(tmp_path):
    drawn = mutations.draw(60, 1, ["sbm/distributed", "sbm/engine/sync.py"])
    assert len(drawn) == 60
    for mutation in drawn:
        before, after = changed(mutation, tmp_path)
        compile(after, mutation.file, "exec")
        old, new = before.splitlines(), after.splitlines()
        assert old[: mutation.line - 1] == new[: mutation.line - 1]
        assert old[mutation.line - 1] != new[mutation.line - 1]


def test_draw_has_all_kinds(tmp_path):
    code = "def f(a, b):\n if a < b and min(a, 1):\n  g()\n  raise a\n return a + b\n"
    (tmp_path / "é.py").write_text(f"# é\n{code}", "utf-8")
    found = {m.name.split(" ", 1)[1] for m in mutations.draw(99, 0, ["é.py"], tmp_path)}
    assert found == {
        "< -> <=", "and -> or", "a < b and min(a, 1) -> (not (a < b and min(a, 1)))", "1 -> 2",
        "min -> max", "g() -> pass", "raise a -> pass", "a + b -> None", "+ -> -",
    }  # fmt: skip
    assert mutations.draw(3, 1, ["é.py"], tmp_path) == mutations.draw(3, 1, ["é.py"], tmp_path)
