"""scripts/mutations.py: its table applies, and random changes are valid Python."""

from helpers import SCRIPTS, load_script

mutations = load_script("mutations")


def test_every_mutation_applies_once():
    for mutation in mutations.MUTATIONS:
        assert mutation.place(SCRIPTS.parent) > 0
        assert mutation.new != mutation.old
    names = [mutation.name for mutation in mutations.MUTATIONS]
    assert len(set(names)) == len(names)


def test_random_mutations_compile_and_differ_once():
    drawn = mutations.draw(60, 1, ["sbm/distributed", "sbm/engine/sync.py"])
    assert len(drawn) == 60
    for mutation in drawn:
        compile(mutation.new, mutation.file, "exec")
        old, new = mutation.old.splitlines(), mutation.new.splitlines()
        assert old[: mutation.line - 1] == new[: mutation.line - 1]
        assert old[mutation.line - 1] != new[mutation.line - 1]
