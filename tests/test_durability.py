"""What is durable before what: the order of syncs and renames of whole commands."""

import pytest

from scripts.torture_scenarios import run_command, write_texts

SPLIT = ("split", "-q", "a.svm", "-o", "s.sbm", "--blocks", "2", "--threads", "1")
TRAIN = ("train", "-q", "s.sbm", "-o", "m.model", "--max-passes", "2", "--mem", "300MB")


@pytest.fixture
def points(tmp_path):
    """The calls that change files, as (kind, name) without folders, of each command."""
    write_texts(tmp_path)
    found = {}
    for line in (SPLIT, TRAIN):
        ended = run_command(line, tmp_path)
        assert ended.code in (0, 3), ended.err
        found[line[0]] = [
            (point.kind, point.name.rsplit("/", 1)[-1]) for point in ended.points if point.changes
        ]
    return found


def last(points, kind, name):
    return max(k for k, point in enumerate(points) if point == (kind, name))


@pytest.mark.parametrize("command", ["split", "train"])
def test_what_is_renamed_over_another_file_is_synced_and_so_is_its_name(points, command):
    renamed = [k for k, (kind, n) in enumerate(points[command]) if kind == "rename" and ".tmp" in n]
    assert renamed
    for k in renamed:
        name = points[command][k][1]
        before = [kind for kind, other in points[command][:k] if other == name]
        assert before[-2:] in (["sync", "close"], ["write", "sync"]), (name, before)
        assert "sync folder" in [kind for kind, _ in points[command][k : k + 3]]


def test_the_manifest_comes_behind_all_it_names(points):
    mine = points["split"]
    named = last(mine, "rename", "manifest.json.tmp")
    files = {name for kind, name in mine if kind == "create" and name.endswith(("sbb", "sba.tmp"))}
    assert len(files) == 4  # two blocks, ids and index
    for name in files:
        written, synced = last(mine, "write", name), last(mine, "sync", name)
        assert written < synced < named


def test_the_record_of_a_commit_comes_behind_its_state_and_its_alphas(points):
    mine = points["train"]
    commits = [k for k, point in enumerate(mine) if point == ("rename", "run.json.tmp")]
    states = [k for k, (kind, n) in enumerate(mine) if kind == "rename" and n.startswith("state-")]
    assert states
    assert states[0] < commits[0]  # a record names nothing that is still to come
    for state in states:
        commit = min(k for k in commits if k > state)
        before = max([k for k in commits if k < state], default=0)
        written = {
            n for kind, n in mine[before:commit] if kind == "write" and n.startswith("alpha")
        }
        for name in written:
            assert last(mine[:commit], "write", name) < last(mine[:commit], "sync", name)


def test_the_manifest_of_a_shard_comes_behind_all_it_names(tmp_path):
    write_texts(tmp_path)
    ended = run_command((*SPLIT, "--shards", "2"), tmp_path)
    assert ended.code == 0, ended.err
    named = 0
    for number in (0, 1):
        folder = f"s.{number}.sbm.partial"
        mine = [p for p in ended.points if p.kind == "create" and p.name.startswith(folder)]
        made = [p.name.rsplit("/", 1)[-1] for p in mine if not p.name.endswith("lock")]
        assert made[-1] == "manifest.json.tmp"
        assert made.count("manifest.json.tmp") == 1
        named += len(made) - 1
    assert named == 6  # ids, index and number of each
