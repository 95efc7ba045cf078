"""The run directory: alphas on disk, eviction, checkpoints and locks."""

import contextlib
import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import lists_of, plain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inside import AlphaPlace, Dense, Run, encode_record
from inside import store_container_module as container
from inside import store_run_module as module

from sbm.errors import StoreError

C = 0.1
AT_ONCE = {"unwritten_bytes": 0}  # encoded alphas are written at once
K = 70_000  # more outputs than 16 bits can number
SHARES_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "a.model.run"
    path.mkdir()
    return path


def names_in(folder: Path) -> set[str]:
    return set(os.listdir(folder)) - {"lock", "log.jsonl"}


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def alpha_of(seed: int, n: int) -> Dense:
    """A mixture of 0, C and free values."""
    random = np.random.default_rng(seed)
    free = random.random(n) * C
    return Dense(np.choose(random.integers(0, 3, n), [np.zeros_like(free), C, free]))


def evicted(home, row, alpha):
    return np.array(home, np.int32), np.array(row, np.int32), Dense(np.array(alpha, float))


def state_of(value: float) -> dict[str, np.ndarray]:
    return {"W": np.full((3, 1), value), "home": np.arange(2, dtype=np.int32)}


# -------------------------------------------------------------------------------------- alphas

VALUES = st.sampled_from([C, 3 * C, C / 3, 5e-324]) | st.floats(0, 1e300, exclude_min=True)
DENSE = st.sampled_from([0.0, -0.5]) | VALUES


def lists_strategy(n_rows: int, n_outputs: int):
    """Lists of (output, variable) of each row, by output."""
    row = st.dictionaries(st.integers(0, n_outputs - 1), VALUES, max_size=5)
    return st.lists(row.map(lambda d: sorted(d.items())), min_size=n_rows, max_size=n_rows)


@SHARES_FOLDER
@given(st.data(), st.sampled_from([None, 1, 3, 65_535, 65_536, K]), st.integers(0, 30))
def test_alphas_round_trip_exactly(tmp_path, data, n_outputs, n_rows):
    run = Run(tmp_path, [7, n_rows], n_outputs, data.draw(st.sampled_from([(), (C,), (C, 3 * C)])))
    resting = {0.0, *run._resting}
    if n_outputs is None:
        rows = data.draw(hnp.arrays(np.float64, n_rows, elements=DENSE)).tolist()
        alpha, empty = Dense(np.array(rows, float)), [0.0] * 7
        free = [value not in resting for value in rows]
    else:
        rows = data.draw(lists_strategy(n_rows, n_outputs))
        alpha, empty = lists_of(rows), [[]] * 7
        free = [any(v not in resting for _, v in row) for row in rows]
    assert run.store(1, alpha) == sum(free)
    found = run.load(1)
    assert type(found) is type(alpha)
    assert found.values.dtype == np.float64
    assert plain(found) == rows
    assert plain(run.load(0)) == empty


@SHARES_FOLDER
@given(st.data(), st.sampled_from([None, K]))
def test_any_sequence_of_operations_matches_lists(tmp_path, data, n_outputs):
    rows = [3, 1, 4]
    for path in tmp_path.iterdir():  # from an earlier example
        path.unlink()
    limits = st.sampled_from([0, 30, 500, 10**6])
    run = Run(tmp_path, rows, n_outputs, [C], data.draw(limits), data.draw(limits))

    def some(n):
        if n_outputs is None:
            return data.draw(st.lists(st.sampled_from([0.0, C]) | DENSE, min_size=n, max_size=n))
        return data.draw(lists_strategy(n, K))

    def alphas(values):
        return Dense(np.array(values, float)) if n_outputs is None else lists_of(values)

    def kept(run):
        return [plain(run.load(block)) for block in range(3)]

    expected = [[0.0] * n if n_outputs is None else [[] for _ in range(n)] for n in rows]
    committed = None
    for _ in range(data.draw(st.integers(0, 12))):
        verb = data.draw(st.sampled_from(["store", "evict", "flush", "commit"]))
        if verb == "store":
            block = data.draw(st.integers(0, 2))
            expected[block] = some(rows[block])
            run.store(block, alphas(expected[block]))
        elif verb == "evict":  # the last one of a row counts
            home = data.draw(st.lists(st.integers(0, 2), max_size=6))
            row = [data.draw(st.integers(0, rows[h] - 1)) for h in home]
            values = some(len(home))
            run.add_evicted(np.array(home, np.int32), np.array(row, np.int32), alphas(values))
            for h, r, value in zip(home, row, values, strict=True):
                expected[h][r] = value
        elif verb == "flush":
            run.flush()
        else:
            run.commit({}, {"W": np.zeros((2, 1))})
            committed, record = [list(values) for values in expected], Run.read(tmp_path)
            named = {"run.json", record["state"], *record["files"]}
            assert names_in(tmp_path) == named
        assert kept(run) == expected
        if committed is not None:  # as a new process would see it
            assert kept(Run.reopen(tmp_path, rows, n_outputs)[0]) == committed


def test_resting_alphas_take_little_space(folder):
    n = 100_000
    run = Run(folder, [n], None, [C], **AT_ONCE)
    run.store(0, Dense(np.where(np.arange(n) % 1000, 0.0, C)))
    (path,) = folder.glob("*.sba")
    assert path.stat().st_size < n / 40
    run.store(0, Dense(np.random.default_rng(0).random(n) * C))
    (path,) = folder.glob("*.sba")
    assert n * 6 < path.stat().st_size < n * 9


def test_alphas_stay_in_memory_up_to_limit(folder):
    run = Run(folder, [1000] * 8, unwritten_bytes=50_000)
    for block in range(8):  # 8 to 9 kB each, all of them free
        run.store(block, Dense(np.random.default_rng(block).random(1000)))
        assert block > 2 or names_in(folder) == set()
    (first,) = names_in(folder)  # of the first parts
    for k in range(4):
        run.store(0, alpha_of(k, 1000))
    run.flush()
    run._write()
    assert len(names_in(folder)) == 2
    for block in range(8):
        expected = alpha_of(3, 1000) if block == 0 else None
        expected = expected or Dense(np.random.default_rng(block).random(1000))
        assert plain(run.load(block)) == plain(expected)
    for block in range(1, 8):
        assert first in names_in(folder) or block > 3
        run.store(block, run.load(block))
    assert first not in names_in(folder)  # all that it had is written again


def test_held_alphas_are_written_at_checkpoints(folder):
    values = np.array([0.0, 1.0, 0.25])
    with Run.create(folder, [3, 1], resting_values=[1.0]) as run:
        assert run.hold(0, Dense(values)) == 1
        run.commit({"pass": 1}, {})
        values[0] = 0.5  # after the checkpoint
        assert run.hold(0, Dense(values)) == 2
        np.testing.assert_array_equal(run.load(0).values, [0.5, 1.0, 0.25])
        written, _ = Run.reopen(folder, [3, 1])
        np.testing.assert_array_equal(written.load(0).values, [0.0, 1.0, 0.25])
        run.commit({"pass": 2}, {})
        written, _ = Run.reopen(folder, [3, 1])
        np.testing.assert_array_equal(written.load(0).values, [0.5, 1.0, 0.25])
        run.store(0, Dense(np.ones(3)))  # from now on not in the array
        values[:] = 7.0
        np.testing.assert_array_equal(run.load(0).values, np.ones(3))


def test_evicted_alphas_above_limit_are_written(folder):
    run = Run(folder, [100, 100], None, [], 10 * 12, **AT_ONCE)
    rows = np.arange(8)
    for _ in range(5):  # those that went to their block no longer count
        run.add_evicted(*evicted(np.zeros(8), rows, np.ones(8)))
        run.store(0, run.load(0))
    run.add_evicted(*evicted([], [], []))
    run.add_evicted(*evicted(np.zeros(8), rows, rows + 1.0))
    assert [name[:11] for name in names_in(folder)] == ["alpha-00000"]
    run.add_evicted(*evicted(np.ones(8), rows, rows + 2.0))
    assert {"evicted-00000.sbt", "evicted-00001.sbt"} < names_in(folder)
    assert run.load(0).values[:8].tolist() == (rows + 1.0).tolist()
    assert run.load(1).values[:8].tolist() == (rows + 2.0).tolist()
    run.store(0, Dense(np.zeros(100)))  # the caller saw the evicted in load() and cached their rows
    assert not run.load(0).values.any()
    assert "evicted-00000.sbt" not in names_in(folder)
    (folder / "evicted-00001.sbt").unlink()
    with pytest.raises(StoreError, match=r"evicted-00001\.sbt does not exist"):
        run.load(1)


@pytest.mark.parametrize("unwritten", [0, 2_000, 10**9])
def test_threads_may_store_at_once(folder, unwritten):
    n, threads = 400, 8
    run = Run(folder, [5] * n, unwritten_bytes=unwritten)
    values = np.random.default_rng(0).random((n, 5))

    def keep(first):
        for block in range(first, n, threads):
            run.store(block, Dense(values[block].copy()))
            assert np.array_equal(run.load(block).values, values[block])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(keep, range(threads)))
    assert all(np.array_equal(run.load(block).values, values[block]) for block in range(n))


# ------------------------------------------------------------------------------ hostile files


def test_alphas_of_another_block_are_refused(folder):
    run = Run(folder, [50, 50], None, [C], **AT_ONCE)
    for block in (0, 1):
        run.store(block, alpha_of(block, 50))
    paths = [folder / run._places[block].file for block in (0, 1)]
    paths[1].write_bytes(paths[0].read_bytes() + bytes(999))
    with pytest.raises(StoreError, match=f"{paths[1]} at byte 0: checksum mismatch"):
        run.load(1)
    run._rows, run._places[1] = [50, 49], run._places[0]
    with pytest.raises(StoreError, match=f"{paths[0]} at byte 0 does not match"):
        run.load(1)


LISTS = {
    "counts": np.array([1, 1], np.int32), "outputs": np.array([0, 2], np.uint16),
    "codes": np.array([1, 255], np.uint8), "free": np.array([0.5]),
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"outputs": np.array([0, 3], np.uint16)},  # output out of range
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
        *({name: wrong} for name in LISTS for wrong in (None, np.zeros((2, 2)), np.array(3.5))),
    ],
    ids=str,
)
def test_invalid_lists_are_refused(folder, changes):
    run = Run(folder, [2], 3, [C])
    path = folder / "alpha-000001.sba"

    def write(arrays):
        container.write(path, "alpha", arrays, {"resting": [0.0, C]})
        data = path.read_bytes()
        run._places[0] = AlphaPlace(path.name, 0, len(data), container.header_crc(data))

    write(LISTS)
    assert plain(run.load(0)) == [[(0, C)], [(2, 0.5)]]
    arrays = {name: array for name, array in {**LISTS, **changes}.items() if array is not None}
    write(arrays)
    with pytest.raises(StoreError, match=f"{path} at byte 0 does not match"):
        run.load(0)


SOUND = {
    "format": "sbm-run", "version": 1, "state": "state-000001.sba", "state_crc32": 0,
    "files": ["alpha-000001.sba"], "alphas": {"0": [0, 0, 1, 2]}, "log_bytes": 0,
    "parts": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("record", "fact"),
    [
        (b"", "damaged"), (b"{", "damaged"), (b"\xff", "damaged"), (b"[]", "damaged"),
        (b"null", "damaged"), (b'"sbm-run"', "damaged"),
        (json.dumps(SOUND).encode(), "damaged"),
        (SOUND | {"version": 99}, "version 99"), (SOUND | {"format": "x"}, "version"),
        (SOUND | {"state": "../state-000001.sba"}, "invalid"),
        (SOUND | {"state": "/tmp/state-000001.sba"}, "invalid"),
        (SOUND | {"state": 7}, "invalid"), (SOUND | {"alphas": None}, "invalid"),
        (SOUND | {"alphas": {"0": "lock"}}, "invalid"), (SOUND | {"files": ["lock"]}, "invalid"),
        (SOUND | {"alphas": {"-1": [0, 0, 1, 2]}}, "invalid"),
        (SOUND | {"alphas": {"0": [1, 0, 1, 2]}}, "invalid"),
        (SOUND | {"alphas": {"0": [0, 0, 1]}}, "invalid"), (SOUND | {"alphas": [0]}, "invalid"),
        (SOUND | {"alphas": {"0": [0, -1, 1, 2]}}, "invalid"),
        (SOUND | {"state_crc32": "1"}, "invalid"), (SOUND | {"state_crc32": -1}, "invalid"),
        (SOUND | {"state_crc32": None}, "invalid"), (SOUND | {"log_bytes": None}, "invalid"),
        (SOUND | {"before": {}}, "invalid"), (SOUND | {"before": 1}, "invalid"),
        (SOUND | {"before": SOUND | {"before": SOUND}}, "invalid"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_records_are_refused(folder, record, fact):
    data = record if isinstance(record, bytes) else encode_record("run", record)
    (folder / "run.json").write_bytes(data)
    with pytest.raises(StoreError, match=f"{folder}/run.json .*{fact}"):
        Run.read(folder)
    (folder / "run.json").write_bytes(encode_record("run", SOUND | {"before": SOUND}))
    assert Run.read(folder)["state"] == SOUND["state"]


def test_alphas_of_more_blocks_are_refused(folder):
    run = Run(folder, [3, 3])
    run.store(1, alpha_of(0, 3))
    run.commit({}, state_of(0))
    with pytest.raises(StoreError, match=f"{folder}/run.json has other blocks"):
        Run.reopen(folder, [3])


# ------------------------------------------------------------------------------------- commits


def test_rank_keeps_previous_checkpoint(folder):
    run = Run(folder, [5], is_one_of_many=True)
    for k in range(3):
        run.store(0, alpha_of(k, 5))
        run.commit({"passes": k}, state_of(k))
        assert Run.read(folder)["commit"] == k + 1
    last = Run.read(folder)
    assert {last["state"], last["before"]["state"]} < names_in(folder)
    assert len(names_in(folder)) == 5
    assert Run.roll_back(folder)["passes"] == 1
    with pytest.raises(StoreError, match=f"{folder} has no earlier checkpoint"):
        Run.roll_back(folder)
    again, state = Run.reopen(folder, [5])
    assert Run.read(folder)["passes"] == 1
    assert plain(again.load(0)) == plain(alpha_of(1, 5))
    assert state["W"][0, 0] == 1
    assert plain(Run.reopen(folder, [5], record=last)[0].load(0)) == plain(alpha_of(2, 5))


@pytest.mark.parametrize("unwritten", [0, 10**6])
@pytest.mark.parametrize("breaks", ["nothing", "state", "sync", "run.json"])
def test_failed_checkpoint_keeps_the_last_one(folder, monkeypatch, breaks, unwritten):
    rows = [20, 20]
    run = Run(folder, rows, None, [C], 100, unwritten)
    run.store(0, alpha_of(0, 20))
    run.commit({"passes": 1}, state_of(1))
    for k in range(1, 4):
        run.store(0, alpha_of(k, 20))
        run.add_evicted(*evicted(np.ones(20), np.arange(20), np.full(20, 0.9)))
    targets = {"state": (Run, "_write_state"), "sync": (module, "_sync")}
    target, name = targets.get(breaks, (module, "write_atomically"))

    def fail(*arguments, **options):
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(target, name, fail)
        if breaks != "nothing":
            with pytest.raises(StoreError, match="disk is full"):
                run.commit({"passes": 2}, state_of(2))
    again, state = Run.reopen(folder, rows)
    assert Run.read(folder)["passes"] == state["W"][0, 0] == 1
    assert plain(again.load(0)) == plain(alpha_of(0, 20))
    assert not again.load(1).values.any()
    run.commit({"passes": 2}, state_of(2))  # there is room again
    assert Run.read(folder)["passes"] == 2
    assert plain(Run.reopen(folder, rows)[0].load(0)) == plain(alpha_of(3, 20))


# --------------------------------------------------------------------- the folder and its lock


def test_earlier_checkpoint_stays_until_the_first_one(folder):
    with Run.create(folder, [3, 3]) as run:
        run.store(0, alpha_of(0, 3))
        run.store(1, alpha_of(1, 3))
        run.log({"event": "pass"})
        run.commit({}, state_of(0))
    (folder / "notes.txt").write_text("mine")
    before = bytes_in(folder)
    with Run.create(folder, [3, 3], None, (), 0, 0) as run:
        assert not run.load(0).values.any()
        run.store(0, alpha_of(2, 3))
        run.add_evicted(*evicted([0], [0], [1]))
        now = bytes_in(folder)
        assert before.items() <= now.items()
        assert len(now) == len(before) + 2
        run.log({"event": "first"})
        run.commit({}, state_of(1))
        run.note(report=3)
    record = Run.read(folder)
    left = {"run.json", "notes.txt", record["state"], *record["files"]}
    assert names_in(folder) == left
    assert not left & {name for name in before if name.startswith(("alpha", "state"))}
    assert (folder / "log.jsonl").read_text() == '{"event": "first"}\n'
    assert record["report"] == 3
    Run.remove(folder)
    assert names_in(folder) == {"notes.txt"}
    assert not (folder / "log.jsonl").exists()


def test_opening_a_run_removes_uncommitted_files(folder):
    with Run.create(folder, [3]) as run:
        run.store(0, alpha_of(0, 3))
        run.log({"event": "kept"})
        run.commit({}, state_of(0))
        run.log({"event": "behind"})
    kept = names_in(folder)
    for name in ("alpha-000077.sba", "state-000078.sba.tmp", "evicted-00000.sbt",
                 "run.json.tmp"):  # fmt: skip
        (folder / name).write_bytes(b"half")
    (folder / "alpha.txt").write_text("mine")
    with Run.resume(folder, [3]) as (run, record):
        assert names_in(folder) == {*kept, "alpha.txt"}
        assert (folder / "log.jsonl").read_text() == '{"event": "kept"}\n'
        assert record == Run.read(folder)
        assert plain(run.load(0)) == plain(alpha_of(0, 3))
        assert run.state_names() == ["W", "home"]
        assert list(run.read_state(["W"])) == ["W"]
        run.store(0, alpha_of(1, 3))
        run.log({"event": "more"})
        run.commit({}, state_of(1))
    assert not names_in(folder) & (kept - {"run.json"})  # new files have new names
    assert (folder / "log.jsonl").read_text() == '{"event": "kept"}\n{"event": "more"}\n'
    assert plain(Run.reopen(folder, [3])[0].load(0)) == plain(alpha_of(1, 3))


def test_second_run_is_refused_while_one_is_open(folder):
    with contextlib.suppress(KeyboardInterrupt), Run.create(folder, [3]) as run:
        run.store(0, alpha_of(0, 3))
        run.commit({"passes": 1}, state_of(0))
        before = bytes_in(folder)
        for again in (Run.create, Run.resume):
            with pytest.raises(StoreError, match=f"{folder} is in use"), again(folder, [3]):
                pytest.fail("two runs at once")
        with pytest.raises(StoreError, match="in use"):
            Run.remove(folder)
        assert bytes_in(folder) == before
        run.store(0, alpha_of(1, 3))
        raise KeyboardInterrupt
    assert plain(Run.reopen(folder, [3])[0].load(0)) == plain(alpha_of(0, 3))
    with Run.create(folder, [3]):
        pass


NOISE = np.random.default_rng(0).random(10_000)


@contextlib.contextmanager
def full_disk():
    """Limit files to 4 kB. Not a fixture, as it would also affect the test report."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("verb", "file"),
    [
        (lambda run: run.store(0, Dense(NOISE)), "alpha-000001"),
        (lambda run: run.commit({}, {"W": np.ones((10_000, 1))}), "state-000001"),
        (lambda run: run.log({"event": "x" * 10_000}), "log.jsonl"),
        (
            lambda run: run.add_evicted(*evicted(np.zeros(999), np.arange(999), NOISE[:999])),
            "evicted-",
        ),
    ],
)
def test_full_disk_is_reported_with_its_file(folder, verb, file):
    run = Run(folder, [10_000], evicted_bytes=0, **AT_ONCE)
    with (
        full_disk(),
        pytest.raises(StoreError, match=f"write {folder}/{file}.*: File too large; free space"),
    ):
        verb(run)
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]
    assert not [name for name in os.listdir(folder) if name.startswith("state-")]
