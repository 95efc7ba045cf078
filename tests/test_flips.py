"""A thousand damaged files: each is noticed, or changes nothing."""

from scripts.torture_flips import DAMAGES, run

CASES = 1000


def test_damaged_files_are_noticed_or_change_nothing(tmp_path):
    tally = run(CASES, 0, tmp_path, lambda line: None)
    assert tally.failures == []
    assert tally.tried == CASES
    assert set(tally.figures["damage"]) == set(DAMAGES)
    assert set(tally.figures["files"]) == {"store", "run", "stream", "model", "text"}
    # Little of a file matters to nobody: logs, locks, files that no manifest names.
    assert tally.figures["outcome"]["refused"] > 0.6 * CASES
    assert set(tally.figures["outcome"]) == {"refused", "no effect"}


def test_a_case_is_tried_again_alone(tmp_path):
    whole, one = run(30, 7, tmp_path, print), run(30, 7, tmp_path, print, only=29)
    assert whole.tried == 30
    assert one.tried == 1
    assert all(one.figures["damage"][kind] <= n for kind, n in whole.figures["damage"].items()
               if kind in one.figures["damage"])  # fmt: skip
    assert one.failures == whole.failures == []
