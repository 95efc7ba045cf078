"""The run directory: alphas on disk, strays, commits and locks."""

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import lists_of, plain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sbm.alphas import Dense, Lists
from sbm.errors import StoreError
from sbm.store import arrays as container
from sbm.store import files
from sbm.store import run as module
from sbm.store.records import encode_record
from sbm.store.run import Run

C = 0.1
AT_ONCE = {"unwritten_bytes": 0}  # encoded alphas are not held back
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "a.model.run"
    path.mkdir()
    return path


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) - {"lock", "log.jsonl"}


def _alpha(seed: int, n: int) -> Dense:
    """A mixture of 0, C and free values."""
    random = np.random.default_rng(seed)
    free = random.random(n) * C
    return Dense(np.choose(random.integers(0, 3, n), [np.zeros_like(free), C, free]))


def _assert_same(ours, expected) -> None:
    """Fail unless two sets of variables are the same to the bit."""
    assert type(ours) is type(expected)
    assert plain(ours) == plain(expected)


def _committed(folder: Path, rows: list[int], **options) -> tuple[Run, dict]:
    """The last commit, as a program that starts now would see it."""
    record = Run.read(folder)
    run = Run(folder, rows, **options)
    run._files = {int(block): name for block, name in record["alphas"].items()}
    return run, record


# -------------------------------------------------------------------------------------- alphas


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(
    hnp.arrays(
        np.float64,
        st.integers(0, 50),
        elements=st.sampled_from([0.0, C, 3 * C, C / 3, 5e-324])
        | st.floats(0, 1e300)
        | st.floats(-10, 10),
    ),
    st.sampled_from([(), (C,), (C, 3 * C)]),
)
def test_alphas_come_back_exactly(tmp_path, alpha, resting):
    run = Run(tmp_path, [7, len(alpha)], None, resting)
    run.store(1, Dense(alpha))
    assert run.load(1).values.dtype == np.float64
    _assert_same(run.load(1), Dense(alpha))
    _assert_same(run.load(0), Dense(np.zeros(7)))


def test_resting_alphas_take_next_to_nothing(folder):
    n = 100_000
    run = Run(folder, [n], None, [C], **AT_ONCE)
    run.store(0, Dense(np.where(np.arange(n) % 1000, 0.0, C)))
    (path,) = folder.glob("*.sba")
    assert path.stat().st_size < n / 40
    free = np.random.default_rng(0).random(n) * C
    run.store(0, Dense(free))
    (path,) = folder.glob("*.sba")
    assert n * 6 < path.stat().st_size < n * 9


def test_a_loaded_array_may_be_changed(folder):
    run = Run(folder, [3])
    run.store(0, _alpha(0, 3))
    before = run.load(0)
    run.load(0).values[:] = 77
    _assert_same(run.load(0), before)


def test_encoded_alphas_are_held_back_up_to_the_limit(folder):
    run = Run(folder, [1000] * 8, unwritten_bytes=30_000)
    for block in range(8):  # 7 to 8 kB each, all of them free
        run.store(block, Dense(np.random.default_rng(block).random(1000)))
        assert sum(len(data) for data in run._unwritten.values()) <= 30_000
        assert block > 2 or _names(folder) == set()
    assert len(_names(folder)) >= 4
    for block in range(8):
        expected = Dense(np.random.default_rng(block).random(1000))
        _assert_same(run.load(block), expected)


def test_only_the_newest_alphas_of_a_block_are_kept(folder):
    run = Run(folder, [5, 5], **AT_ONCE)
    for k in range(4):
        run.store(0, _alpha(k, 5))
        run.store(1, _alpha(10 + k, 5))
    assert len(_names(folder)) == 2
    _assert_same(run.load(0), _alpha(3, 5))
    _assert_same(run.load(1), _alpha(13, 5))


def test_alphas_of_another_block_are_refused(folder):
    run = Run(folder, [5, 6], **AT_ONCE)
    run.store(0, _alpha(0, 5))
    run._files[1] = run._files[0]
    name = run._files[0]
    expected = f"{folder / name} does not belong to its block; train again"
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"):
        run.load(1)


def test_damaged_and_missing_alphas_are_refused(folder):
    run = Run(folder, [50], **AT_ONCE)
    run.store(0, _alpha(0, 50))
    path = folder / run._files[0]
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"^{re.escape(str(path))} is damaged"):
        run.load(0)
    path.unlink()
    with pytest.raises(StoreError, match=f"^{re.escape(str(path))} does not exist; see"):
        run.load(0)


# --------------------------------------------------------------------------------------- lists

K = 70_000  # more outputs than 16 bits tell apart
value_of = st.sampled_from([C, 3 * C, 5e-324]) | st.floats(0, 1e300, exclude_min=True)


def rows_of_lists(n_rows: int, n_outputs: int):
    """Lists of (output, variable) of so many rows, by output, as plain Python."""
    row = st.dictionaries(st.integers(0, n_outputs - 1), value_of, max_size=5)
    return st.lists(row.map(lambda d: sorted(d.items())), min_size=n_rows, max_size=n_rows)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(st.data(), st.sampled_from([1, 3, 65_535, 65_536, K]), st.integers(0, 30))
def test_lists_come_back_exactly(tmp_path, data, n_outputs, n_rows):
    rows = data.draw(rows_of_lists(n_rows, n_outputs))
    run = Run(tmp_path, [7, n_rows], n_outputs, data.draw(st.sampled_from([(), (C,), (C, 3 * C)])))
    resting = {0.0, *run._resting}
    assert run.store(1, lists_of(rows)) == sum(any(v not in resting for _, v in r) for r in rows)
    assert isinstance(run.load(1), Lists)
    assert plain(run.load(1)) == rows
    assert plain(run.load(0)) == [[]] * 7


def test_the_last_outputs_of_very_many_classes_come_back(folder):
    rows = [[(0, C), (65_535, 0.5), (65_536, 0.25), (K - 1, C)], [], [(K - 1, 1e-9)]]
    run = Run(folder, [3, 3], K, [C], **AT_ONCE)
    run.store(0, lists_of(rows))
    assert plain(run.load(0)) == rows


def test_lists_are_loaded_into_those_given_and_replace_what_was_there(folder):
    run = Run(folder, [2, 2], 5, [C])
    out = lists_of([[(1, 0.5)], [(2, 0.5), (3, C)]])
    assert run.load(0, out) is out
    assert plain(out) == [[], []]
    run.store(1, lists_of([[], [(4, C)]]))
    assert plain(run.load(1, out)) == [[], [(4, C)]]


def _write_list_file(run, name, **changes):
    """A file of two rows with the lists [(0, C)] and [(2, 0.5)], some arrays replaced."""
    arrays = {
        "counts": np.array([1, 1], np.int32), "outputs": np.array([0, 2], np.uint16),
        "codes": np.array([1, 255], np.uint8), "free": np.array([0.5]),
    } | changes  # fmt: skip
    container.write(run.folder / name, "alpha", arrays, {"resting": [0.0, C]})


@pytest.mark.parametrize(
    "changes",
    [
        {"outputs": np.array([0, 3], np.uint16)},  # one output too far
        {"outputs": np.array([0, -1], np.int32)},
        {"outputs": np.array([0], np.uint16)},
        {"outputs": np.array([0, 2, 2], np.uint16)},
        {"counts": np.array([1, 2], np.int32)},
        {"counts": np.array([3, -1], np.int32)},
        {"counts": np.array([1, 1, 0], np.int32)},
        {"counts": np.array([2], np.int32)},
        {"codes": np.array([1, 255, 0], np.uint8)},
        {"codes": np.array([1, 7], np.uint8)},
        {"codes": np.array([1, 255], np.int32)},
        {"free": np.array([0.5, 0.5])},
        {"free": np.array([], np.float64)},
        {"free": np.array([1])},
    ],
)
def test_lists_that_do_not_fit_their_block_are_refused(folder, changes):
    run = Run(folder, [2], 3, [C])
    run._files[0] = "alpha-00000.000001.sba"
    _write_list_file(run, run._files[0])
    assert plain(run.load(0)) == [[(0, C)], [(2, 0.5)]]
    _write_list_file(run, run._files[0], **changes)
    expected = f"{folder / run._files[0]} does not belong to its block; train again"
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"):
        run.load(0)


def test_damaged_lists_are_refused(folder):
    run = Run(folder, [50], 9, [C], **AT_ONCE)
    run.store(0, lists_of([[(k % 9, k + 0.5)] for k in range(50)]))
    path = folder / run._files[0]
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"^{re.escape(str(path))} is damaged"):
        run.load(0)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(st.data())
def test_any_order_of_verbs_keeps_what_lists_of_lists_keep(tmp_path, data):
    rows = [3, 1, 4]
    limits = st.sampled_from([0, 30, 500, 10**6])
    run = Run(tmp_path, rows, K, [C], data.draw(limits), data.draw(limits))
    expected = [[[] for _ in range(n)] for n in rows]
    for _ in range(data.draw(st.integers(0, 12))):
        verb = data.draw(st.sampled_from(["store", "stray", "flush", "commit"]))
        if verb == "store":
            block = data.draw(st.integers(0, 2))
            expected[block] = data.draw(rows_of_lists(rows[block], K))
            run.store(block, lists_of(expected[block]))
        elif verb == "stray":  # the last one of a row counts
            home = data.draw(st.lists(st.integers(0, 2), max_size=6))
            row = [data.draw(st.integers(0, rows[h] - 1)) for h in home]
            lists = data.draw(rows_of_lists(len(home), K))
            run.add_strays(np.array(home, np.int32), np.array(row, np.int32), lists_of(lists))
            for h, r, mine in zip(home, row, lists, strict=True):
                expected[h][r] = mine
        elif verb == "flush":
            run.flush()
        else:
            run.commit({}, {"W": np.zeros((2, 1))})
            again, _ = _committed(tmp_path, rows, lists_of=K)
            for block in range(3):
                assert plain(again.load(block)) == expected[block]
        for block in range(3):
            assert plain(run.load(block)) == expected[block]


# -------------------------------------------------------------------------------------- strays


def _stray(home, row, alpha):
    return np.array(home, np.int32), np.array(row, np.int32), Dense(np.array(alpha, float))


def test_strays_override_what_is_stored_and_the_last_one_counts(folder):
    run = Run(folder, [4, 4], None, [C], **AT_ONCE)
    run.store(0, Dense(np.full(4, 0.25)))
    run.add_strays(*_stray([1, 0, 1], [3, 2, 0], [0.5, 0.0, C]))
    run.add_strays(*_stray([1], [3], [0.75]))
    run.add_strays(*_stray([], [], []))
    assert run.load(0).values.tolist() == [0.25, 0.25, 0.0, 0.25]
    assert run.load(1).values.tolist() == [C, 0, 0, 0.75]
    assert len(_names(folder)) == 1  # strays are held back


def test_a_stored_block_has_taken_its_strays(folder):
    run = Run(folder, [3, 3])
    run.add_strays(*_stray([0, 1], [1, 2], [0.5, 0.6]))
    run.store(0, Dense(np.zeros(3)))  # the caller saw the stray in load() and cached that row
    assert not run.load(0).values.any()
    assert run.load(1).values.tolist() == [0, 0, 0.6]


def test_strays_above_the_limit_are_written_at_once(folder):
    run = Run(folder, [100, 100], None, [], 10 * 12, **AT_ONCE)
    rows = np.arange(8)
    run.add_strays(*_stray(np.zeros(8), rows, rows + 1.0))
    assert _names(folder) == set()
    run.add_strays(*_stray(np.ones(8), rows, rows + 2.0))
    assert len(_names(folder)) == 2
    assert run._strays == [[], []]
    assert run.load(0).values[:8].tolist() == (rows + 1.0).tolist()
    assert run.load(1).values[:8].tolist() == (rows + 2.0).tolist()


def test_strays_that_went_to_their_block_no_longer_count_towards_the_limit(folder):
    run = Run(folder, [100, 100], None, [], 10 * 12, **AT_ONCE)
    for _ in range(5):
        run.add_strays(*_stray(np.zeros(8), np.arange(8), np.ones(8)))
        run.store(0, run.load(0))
    run.add_strays(*_stray(np.ones(8), np.arange(8), np.ones(8)))
    assert 1 not in run._files, "block 1 was written though little was held back"


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
@given(st.data())
def test_any_order_of_verbs_keeps_what_a_dictionary_keeps(tmp_path, data):
    rows = [3, 1, 4]
    limits = st.sampled_from([0, 30, 500, 10**6])
    run = Run(tmp_path, rows, None, [C], data.draw(limits), data.draw(limits))
    expected = [np.zeros(n) for n in rows]
    value = st.sampled_from([0.0, C]) | st.floats(0, C)
    for _ in range(data.draw(st.integers(0, 12))):
        verb = data.draw(st.sampled_from(["store", "stray", "flush", "commit"]))
        if verb == "store":
            block = data.draw(st.integers(0, 2))
            expected[block] = data.draw(hnp.arrays(np.float64, rows[block], elements=value))
            run.store(block, Dense(expected[block].copy()))
        elif verb == "stray":
            home = data.draw(st.lists(st.integers(0, 2), max_size=6))
            row = [data.draw(st.integers(0, rows[h] - 1)) for h in home]
            alpha = [data.draw(value) for _ in home]
            run.add_strays(*_stray(home, row, alpha))
            for h, r, a in zip(home, row, alpha, strict=True):
                expected[h][r] = a
        elif verb == "flush":
            run.flush()
        else:
            run.commit({}, {"W": np.zeros((2, 1))})
            again, _ = _committed(tmp_path, rows)
            for block in range(3):
                _assert_same(again.load(block), Dense(expected[block]))
        for block in range(3):
            _assert_same(run.load(block), Dense(expected[block]))


# ------------------------------------------------------------------------------------- commits


def _state(value: float) -> dict[str, np.ndarray]:
    return {"W": np.full((3, 1), value), "home": np.arange(2, dtype=np.int32)}


def test_a_commit_leaves_only_the_files_it_names(folder):
    run = Run(folder, [5, 5, 5])
    for k in range(3):
        run.store(0, _alpha(k, 5))
        run.store(1, _alpha(9 + k, 5))
        run.add_strays(*_stray([2], [k], [0.5]))
        run.commit({"passes": k + 1}, _state(k))
        record = Run.read(folder)
        assert record["passes"] == k + 1
        assert sorted(record["alphas"]) == ["0", "1", "2"]
        assert _names(folder) == {"run.json", record["state"], *record["alphas"].values()}
        state = container.read(folder / record["state"], "state").arrays
        assert state["W"].tolist() == [[k]] * 3
        assert state["home"].dtype == np.int32
    again, _ = _committed(folder, [5, 5, 5])
    _assert_same(again.load(1), _alpha(11, 5))
    assert again.load(2).values.tolist() == [0.5, 0.5, 0.5, 0, 0]


@pytest.mark.parametrize("unwritten", [0, 10**6])
def test_what_was_written_since_does_not_touch_the_last_commit(folder, unwritten):
    rows = [20, 20]
    run = Run(folder, rows, None, [C], 100, unwritten)
    run.store(0, _alpha(0, 20))
    run.store(1, _alpha(1, 20))
    run.commit({"passes": 1}, _state(1))
    for k in range(2, 6):  # and then the machine stops
        run.store(0, _alpha(k, 20))
        run.add_strays(*_stray(np.ones(20), np.arange(20), np.full(20, 0.9)))
    again, record = _committed(folder, rows)
    assert record["passes"] == 1
    _assert_same(again.load(0), _alpha(0, 20))
    _assert_same(again.load(1), _alpha(1, 20))
    assert container.read(folder / record["state"], "state").arrays["W"][0, 0] == 1
    _assert_same(run.load(0), _alpha(5, 20))


@pytest.mark.parametrize("breaks", ["state", "sync", "run.json"])
def test_a_commit_that_fails_leaves_the_last_one(folder, monkeypatch, breaks):
    rows = [20, 20]
    run = Run(folder, rows, None, [C])
    run.store(0, _alpha(0, 20))
    run.commit({"passes": 1}, _state(1))
    run.store(0, _alpha(1, 20))
    run.store(1, _alpha(2, 20))

    def fail(*arguments, **options):
        raise StoreError("the disk is full")

    where = {"state": (container, "write"), "sync": (module, "_sync")}
    target, name = where.get(breaks, (module, "write_atomically"))
    with monkeypatch.context() as broken:
        broken.setattr(target, name, fail)
        with pytest.raises(StoreError, match=r"^the disk is full$"):
            run.commit({"passes": 2}, _state(2))
    again, record = _committed(folder, rows)
    assert record["passes"] == 1
    _assert_same(again.load(0), _alpha(0, 20))
    assert not again.load(1).values.any()
    run.commit({"passes": 2}, _state(2))  # there is room again
    again, record = _committed(folder, rows)
    assert record["passes"] == 2
    _assert_same(again.load(1), _alpha(2, 20))


def test_the_alphas_are_durable_before_the_commit_names_them(folder, monkeypatch):
    order = []
    sync, write = module._sync, module.write_atomically
    monkeypatch.setattr(module, "_sync", lambda path: (order.append(path.name), sync(path)))
    monkeypatch.setattr(
        module, "write_atomically", lambda path, data: (order.append(path.name), write(path, data))
    )
    run = Run(folder, [3, 3])
    run.store(0, _alpha(0, 3))
    run.store(1, _alpha(1, 3))
    run.commit({}, _state(0))
    assert set(order[:-1]) == set(Run.read(folder)["alphas"].values())
    assert order[-1] == "run.json"


def test_a_folder_without_a_commit_is_no_run(folder):
    expected = f"{folder} is not a run with a commit (it has no run.json); train the model again"
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"):
        Run.read(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"3", b"null", b'"sbm-run"'])
def test_a_damaged_run_json_is_said_in_a_sentence(folder, content):
    (folder / "run.json").write_bytes(content)
    with pytest.raises(StoreError, match=re.escape(str(folder / "run.json"))):
        Run.read(folder)


@pytest.mark.parametrize(
    "data",
    [
        json.dumps({"format": "sbm-run", "version": 99}).encode(),
        encode_record("run", {"format": "sbm-run", "version": 99, "state": "else"}),
    ],
)
def test_a_run_of_another_version_is_refused(folder, data):
    (folder / "run.json").write_bytes(data)
    expected = (
        f"{folder / 'run.json'} has version 99, this program reads runs of versions 1 and 2; use "
        "the program that wrote it, or a newer one"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"):
        Run.read(folder)


@pytest.mark.parametrize("name", ["counts", "outputs", "codes", "free"])
@pytest.mark.parametrize("wrong", [None, np.zeros((2, 2)), np.array(3.5)], ids=["none", "2d", "0d"])
def test_alphas_that_somebody_made_up_are_refused_in_a_sentence(folder, name, wrong):
    run = Run(folder, [2], 4)
    run.store(0, lists_of([[(1, 0.5)], [(0, 1.0), (3, C)]]))
    run.commit({}, _state(0))
    record = Run.read(folder)
    path = folder / record["alphas"]["0"]
    file = container.read(path, "alpha")
    arrays = {**file.arrays, name: wrong}
    if wrong is None:
        del arrays[name]
    container.write(path, "alpha", arrays, file.meta)
    record["crc32"] = {}  # as its maker would make them right
    (folder / "run.json").write_bytes(encode_record("run", record))
    with pytest.raises(StoreError) as error:
        Run.reopen(folder, [2], 4)[0].load(0)
    assert str(error.value) == f"{path} does not belong to its block; train again"


@pytest.mark.parametrize(
    "names",
    [
        {"state": "../state-000001.sba", "alphas": {}},
        {"state": "/tmp/state-000001.sba", "alphas": {}},
        {"state": "state-000001.sba", "alphas": {"0": "lock"}},
        {"state": "state-000001.sba", "alphas": {"-1": "alpha-00000.000001.sba"}},
        {"state": "state-000001.sba", "alphas": ["alpha-00000.000001.sba"]},
        {"state": 7, "alphas": {}},
        {},
    ],
)
def test_a_record_names_files_of_its_own_folder_alone(folder, names):
    record = {"format": "sbm-run", "version": 2, **names}
    (folder / "run.json").write_bytes(encode_record("run", record))
    expected = f"{folder / 'run.json'} names files that a run cannot have; remove {folder}"
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"):
        Run.read(folder)


def test_alphas_for_more_blocks_than_there_are_are_refused(folder):
    run = Run(folder, [3, 3])
    run.store(1, _alpha(0, 3))
    run.commit({}, _state(0))
    expected = f"{folder / 'run.json'} is of other blocks; train again with --fresh"
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"):
        Run.reopen(folder, [3])


def test_a_run_of_version_1_is_read(folder):
    run = Run(folder, [3])
    run.store(0, _alpha(0, 3))
    run.commit({"passes": 4}, _state(0))
    record = {**Run.read(folder), "version": 1}  # it had no checksum
    (folder / "run.json").write_text(json.dumps(record))
    assert Run.read(folder)["passes"] == 4
    _assert_same(Run.reopen(folder, [3])[0].load(0), _alpha(0, 3))


def test_a_copy_of_another_file_of_the_run_is_noticed(folder):
    run = Run(folder, [3, 3])
    for commit in range(2):
        run.store(0, _alpha(commit, 3))
        run.store(1, _alpha(2 + commit, 3))
        run.commit({}, _state(commit))
    mine, other = (Run.read(folder)["alphas"][block] for block in "01")
    (folder / mine).write_bytes((folder / other).read_bytes())
    expected = (
        f"{folder / mine} holds something else than was written there; put the right file in its "
        "place or make it again"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"):
        Run.reopen(folder, [3, 3])[0].load(0)


# --------------------------------------------------------------------- the folder and its lock


def test_what_an_earlier_run_committed_stays_until_the_first_commit(tmp_path):
    folder = tmp_path / "a.model.run"
    with Run.create(folder, [3, 3]) as run:
        run.store(0, _alpha(0, 3))
        run.store(1, _alpha(1, 3))
        run.log({"event": "pass"})
        run.commit({}, _state(0))
    (folder / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with Run.create(folder, [3, 3], None, (), 0, 0) as run:
        assert not run.load(0).values.any()
        run.store(0, _alpha(2, 3))
        run.add_strays(np.zeros(1, np.int32), np.zeros(1, np.int32), Dense(np.ones(1)))
        now = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert before.items() <= now.items()
        assert len(now) == len(before) + 2
        run.log({"event": "first"})
        run.commit({}, _state(1))
        assert run.note(report=3) is None
    left = _names(folder)
    assert left == {"run.json", "notes.txt", *module._files_of(Run.read(folder))}
    assert not left & {name for name in before if name.startswith(("alpha", "state"))}
    assert (folder / "log.jsonl").read_text() == '{"event": "first"}\n'
    assert Run.read(folder)["report"] == 3


def test_what_no_commit_names_goes_when_a_run_is_opened(tmp_path):
    folder = tmp_path / "a.model.run"
    with Run.create(folder, [3]) as run:
        run.store(0, _alpha(0, 3))
        run.log({"event": "kept"})
        run.commit({}, _state(0))
        run.log({"event": "behind"})
    kept = _names(folder)
    for name in (
        "alpha-00000.000077.sba", "state-000078.sba.tmp", "stray-00000.sbt", "run.json.tmp"
    ):  # fmt: skip
        (folder / name).write_bytes(b"half")
    (folder / "alpha.txt").write_text("mine")
    with Run.take_up(folder, [3]) as (run, record):
        assert _names(folder) == {*kept, "alpha.txt"}
        assert (folder / "log.jsonl").read_text() == '{"event": "kept"}\n'
        assert record == Run.read(folder)
        _assert_same(run.load(0), _alpha(0, 3))
        assert run.state_names() == list(_state(0))
        assert list(run.read_state(list(_state(0))[:1])) == list(_state(0))[:1]
        run.store(0, _alpha(1, 3))
        run.log({"event": "more"})
        run.commit({}, _state(1))
    assert (folder / "log.jsonl").read_text() == '{"event": "kept"}\n{"event": "more"}\n'
    _assert_same(Run.reopen(folder, [3])[0].load(0), _alpha(1, 3))


def test_the_folder_stays_after_an_error_and_is_free_again(tmp_path):
    folder = tmp_path / "a.model.run"

    def train() -> None:
        with Run.create(folder, [3]) as run:
            run.store(0, _alpha(0, 3))
            run.commit({"passes": 1}, _state(0))
            run.store(0, _alpha(1, 3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    again, _ = _committed(folder, [3])
    _assert_same(again.load(0), _alpha(0, 3))
    with Run.create(folder, [3]):
        pass


def test_a_second_run_in_the_same_folder_is_refused_and_changes_nothing(tmp_path):
    folder = tmp_path / "a.model.run"
    with Run.create(folder, [3]) as run:
        run.store(0, _alpha(0, 3))
        run.commit({"passes": 1}, _state(0))
        before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
        expected = (
            f"the run {folder} is in use by another sbm process; wait for it to end or stop it"
        )
        with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"), Run.create(folder, [3]):
            pytest.fail("two runs at once")
        assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before


def test_the_lock_holds_against_another_process_and_goes_with_it(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom sbm.store.files import lock\n"
        "with lock(Path(sys.argv[1]), 'the run'):\n    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        try:
            assert other.stdout.readline() == "held\n"
            with (
                pytest.raises(StoreError, match=r"^the run is in use by another sbm process; "),
                files.lock(path, "the run"),
            ):
                pytest.fail("two processes hold one lock")
        finally:
            other.kill()  # no chance to tidy up
    with files.lock(path, "the run"):
        pass


def test_a_file_in_the_place_of_the_folder_is_said_in_a_sentence(tmp_path):
    path = tmp_path / "a.model.run"
    path.write_text("")
    expected = rf"^cannot write {re.escape(str(path))}: File exists; "
    with pytest.raises(StoreError, match=expected), Run.create(path, [3]):
        pytest.fail("a file is no folder")


def test_the_log_is_one_object_a_line(folder):
    run = Run(folder, [1])
    run.log({"event": "pass", "dual": 0.5})
    run.log({"event": "end"})
    lines = (folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "pass", "dual": 0.5},
        {"event": "end"},
    ]


# ---------------------------------------------------------------------------------- full disks


@contextlib.contextmanager
def full_disk():
    """Files cannot grow above 4 kB; no fixture, or it would hold for the report of the test too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


REASON = "File too large; free space or choose another place with -o$"


def test_a_full_disk_is_said_in_a_sentence_when_alphas_are_stored(folder):
    run = Run(folder, [10_000], **AT_ONCE)
    with (
        full_disk(),
        pytest.raises(StoreError, match=f"^cannot write {folder}/alpha-00000.* {REASON}"),
    ):
        run.store(0, Dense(np.random.default_rng(0).random(10_000)))


def test_a_full_disk_is_said_in_a_sentence_when_a_commit_is_written(folder):
    run = Run(folder, [10])
    with full_disk(), pytest.raises(StoreError, match=f"^cannot write {folder}/state-.* {REASON}"):
        run.commit({}, {"W": np.ones((10_000, 1))})
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]


def test_a_full_disk_is_said_in_a_sentence_when_the_log_is_written(folder):
    run = Run(folder, [10])
    with (
        full_disk(),
        pytest.raises(StoreError, match=f"^cannot write {folder}/log.jsonl: {REASON}"),
    ):
        run.log({"event": "x" * 10_000})


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_the_old_file_and_no_half_one(tmp_path, error):
    path = tmp_path / "a"
    files.write_atomically(path, [b"old"])

    def buffers():
        yield b"new"
        raise error

    with pytest.raises(error):
        files.write_atomically(path, buffers())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("unwritten", [0, 2_000, 10**9])
def test_learners_keep_alphas_at_the_same_time(folder, unwritten):
    n, threads = 800, 8
    run = Run(folder, [5] * n, unwritten_bytes=unwritten)
    values = np.random.default_rng(0).random((n, 5))

    def keep(first):
        for block in range(first, n, threads):
            run.store(block, Dense(values[block].copy()))
            assert np.array_equal(run.load(block).values, values[block])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(keep, range(threads)))
    finally:
        sys.setswitchinterval(before)
    assert run._serial == n
    assert all(np.array_equal(run.load(block).values, values[block]) for block in range(n))


def test_files_are_written_whole(tmp_path):
    path = tmp_path / "a"
    assert files.write_atomically(path, [b"ab", memoryview(b"c")]) == 3
    assert path.read_bytes() == b"abc"
    expected = f"{tmp_path / 'no'} is no folder; make it, or choose another place with -o"
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}"):
        files.write_atomically(tmp_path / "no" / "a", [b""])
