"""scripts/mutations.py: random changes are valid Python and differ in one place, tests reach it."""

import ast
import builtins

import pytest
from helpers import SCRIPTS, load_script

mutations = load_script("mutations")
reach = load_script("reach")


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
    code = "def f(a, b):\n if a < b and min(a, 1):\n  g()\n  raise a\n return a + 200\n"
    (tmp_path / "é.py").write_text(f"# é\n{code}", "utf-8")
    found = {m.name.split(" ", 1)[1] for m in mutations.draw(99, 0, ["é.py"], tmp_path)}
    assert found == {
        "< -> <=", "and -> or", "a < b and min(a, 1) -> (not (a < b and min(a, 1)))", "1 -> 2",
        "min -> max", "g() -> pass", "raise a -> pass", "a + 200 -> None", "+ -> -", "200 -> 400",
    }  # fmt: skip
    assert mutations.draw(3, 1, ["é.py"], tmp_path) == mutations.draw(3, 1, ["é.py"], tmp_path)


MODULE = """\
A = 3
B = A + 1

def f(x):
    "Text."
    if x:
        y = B
        for _ in ():
            y = 0
        return y
    try:
        return g(
            x)
    except TypeError:
        return lambda: x

class C:
    def m(self):
        return None
    @cache
    def n(self):
        return 1
"""
KERNELS = """\
LEAST = 1

def helper(x):
    return x + LEAST

def one(x):
    return helper(x)

def make(x):
    return x

other = make(helper)
"""


@pytest.mark.parametrize(
    ("x", "ran", "not_reached"), [(1, {4, 6, 7, 8, 10}, {9, 11, 12, 15, 18, 19}),
                                  (0, {4, 6, 11, 12, 13, 15}, {7, 8, 9, 10, 18, 19})],
)  # fmt: skip
def test_marks_tell_which_lines_ran(x, ran, not_reached, tmp_path, monkeypatch):
    (tmp_path / "sbm/a/kernels").mkdir(parents=True)
    (tmp_path / "sbm/m.py").write_text(MODULE)
    (tmp_path / "sbm/a/kernels/k.py").write_text(KERNELS)
    places = reach.Places(tmp_path)
    marks = bytearray(places.n)
    monkeypatch.setattr(builtins, "_sbm_reach", marks, raising=False)
    space = {"g": None, "cache": lambda function: function}
    exec(compile(ast.fix_missing_locations(places.code["sbm.m"]), "m", "exec"), space)
    assert not any(marks)
    assert space["f"].__doc__ == "Text."
    space["f"](x)
    seen = {k for k, mark in enumerate(marks) if mark}

    # What a module sets is used where its name is; of a cached function anybody may be the first.
    found = {line for line in range(1, 23) if places.of("sbm/m.py", line) & seen}
    assert ran | {1, 2, 22} <= found
    assert not not_reached & found
    kernels = {name: mark for (_, name), mark in places.kernels.items()}
    users = {1: "helper one other", 4: "helper one other", 7: "one", 10: "make other", 12: "other"}
    for line, names in users.items():
        assert places.of("sbm/a/kernels/k.py", line) == {kernels[name] for name in names.split()}
