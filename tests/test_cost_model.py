"""scripts/cost_model.py: its bytes are those that are sent, its numbers those of the notes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import SCRIPTS, load_script
from processes import finished

from sbm.distributed.launch import launch_line

ROOT = SCRIPTS.parent
cost_model = load_script("cost_model")
DATA = {data.name: data for data in cost_model.DATA}

# Sums arrays that a seed and a rank decide; tells what was sent, and whether the sum is right.
SUM = """
import json, sys
import numpy as np
from sbm.distributed.comm import MpiComm
n, share, sparse = int(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3])
comm = MpiComm(60.0, sparse=sparse)
arrays = []
for rank in range(comm.size):
    r = np.random.default_rng([5, rank])
    arrays.append(np.where(r.random(n) < share, r.integers(1, 9, n), 0).astype(float))
total = arrays[comm.rank].copy()
comm.add_up(total)
right = bool((total == np.sum(arrays, axis=0)).all())
if comm.rank == 0:
    shares = [float(np.mean([np.mean(a != 0) for a in arrays])), float(np.mean(total != 0))]
    print(json.dumps([comm.sent, right, shares]))
"""


def send(tmp_path: Path, machines: int, n: int, share: float, sparse: bool | None) -> list:
    """Sum an array over processes; bytes sent by the first, and shares of what is not 0."""
    (tmp_path / "sum.py").write_text(SUM)
    launcher = launch_line(machines, "train", [])[0]
    done = finished(
        [launcher, "-n", machines, sys.executable, "-m", "mpi4py", tmp_path / "sum.py",
         n, share, json.dumps(sparse)], cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sent, right, shares = json.loads(done.stdout)
    assert right
    return [sent, *shares]


@pytest.mark.parametrize("machines", [2, 4])
@pytest.mark.parametrize(
    ("share", "sparse"),
    # Told what to do, or by the counts: nothing, the first half or both halves without zeros.
    [(1.0, False), (0.1, True), (0.6, None), (0.25, None), (0.03, None)],
)
def test_processes_send_what_the_formulas_say(
    tmp_path: Path, machines: int, share: float, sparse: bool | None
) -> None:
    n = 700_000  # two slices
    sent, changed, union = send(tmp_path, machines, n, share, sparse)
    expected = {
        False: cost_model.dense_bytes(n, machines),
        True: cost_model.sparse_bytes(n, machines, changed, union),
        None: cost_model.chosen_bytes(n, machines, changed, union),
    }[sparse]
    assert sent == pytest.approx(expected, rel=0.05)


def test_the_choice_is_never_worse_and_dense_where_nothing_is_zero() -> None:
    for changed, union in ((1.0, 1.0), (0.34, 0.5), (0.1, 0.5), (0.01, 0.02)):
        dense, chosen = (
            cost_model.dense_bytes(1e6, 8), cost_model.chosen_bytes(1e6, 8, changed, union)
        )  # fmt: skip
        assert chosen <= dense
        assert (chosen == dense) == (changed > 1 / 3)
    sparse = cost_model.sparse_bytes(1e6, 8, 0.01, 0.02)
    assert cost_model.chosen_bytes(1e6, 8, 0.01, 0.02) == sparse


@pytest.mark.parametrize(
    ("name", "megabytes"), [("webspam", 232), ("kddcup10", 419), ("prep", 1560)]
)
def test_bytes_are_those_of_the_notes(name: str, megabytes: float) -> None:
    data = DATA[name]
    sent = cost_model.dense_bytes(data.features * data.outputs, 8)
    assert sent / 1e6 == pytest.approx(megabytes, rel=5e-3)


def test_bytes_of_classes_are_those_of_the_notes() -> None:
    n, k = 381_581, 12_294
    assert cost_model.class_bytes(n, k) / 1e9 == pytest.approx(37.5, abs=0.05)
    assert cost_model.class_bytes(n, k, 0.02) / 1e9 == pytest.approx(1.1, abs=0.05)
    # P* is about 1.4 nnz / n at 10 Gbit/s and 0.14 nnz / n at 1.
    data = DATA["prep"]
    for gbit, factor in ((10, 1.4), (1, 0.14)):
        most = cost_model.most_machines(data, gbit)
        assert most == pytest.approx(factor * data.nnz / data.features, rel=0.06)


def test_rounds_are_those_measured_and_marked_beyond() -> None:
    assert [cost_model.rounds_of(n) for n in (1, 8, 16)] == [(46, False), (30, False), (36, False)]
    assert cost_model.rounds_of(64) == (52, True)
    with pytest.raises(ValueError, match="no rounds are known for 3 machines"):
        cost_model.rounds_of(3)


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_times_keep_their_order(data) -> None:
    for machines in (8, 64):
        slow, fast = (cost_model.predict(data, machines, gbit) for gbit in (1, 10))
        assert slow.dense == pytest.approx(10 * fast.dense)
        assert (slow.read, slow.solve) == (fast.read, fast.solve)
        assert slow.total > fast.total
        assert slow.sync_every >= fast.sync_every
    few, many = (cost_model.predict(data, machines, 10) for machines in (8, 64))
    assert many.solve == pytest.approx(few.solve / 8)  # shard by shard
    assert few.read > many.read == 0


def test_the_results_are_what_the_command_writes(tmp_path: Path, capsys) -> None:
    cost_model.main(["-o", str(tmp_path / "cost-model")])
    printed = capsys.readouterr().out
    for ending in (".md", ".json"):
        kept = ROOT / "scripts" / "results" / f"cost-model{ending}"
        assert (tmp_path / f"cost-model{ending}").read_text() == kept.read_text()
    assert printed == (tmp_path / "cost-model.md").read_text()
    assert np.isfinite([c["total"] for c in json.loads(kept.read_text())["cases"]]).all()
