"""Kernels with their bounds checked, by scripts/torture/bounds.py."""

from pathlib import Path

import pytest

from scripts.torture import bounds as torture_bounds

SOLVERS = ("hinge", "log_loss", "crammer_singer", "epsilon_insensitive", "one_class")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(1200)  # all of these kernels are compiled anew
def test_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    tally = torture_bounds.run(500, 1, tmp_path, lambda text: None, solvers=SOLVERS)
    assert tally.failures == []  # also if an access out of bounds would not be noticed
    assert sum(tally.figures["lines"].values()) == 500
    assert set(tally.figures["store"].values()) == {50}
    assert tally.figures["trainings"] == dict.fromkeys(SOLVERS, 1)
