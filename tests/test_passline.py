"""Moves of W and all alphas between passes over blocks."""

import itertools

import numpy as np
import pytest
from families import make_store
from inside import LOSSES, Bend, Dense, PassLine, Problem, Reach, Rows, Run, patch

import sbm

N, D, C, EPSILON = 60, 9, 2.0, 0.1
TARGETS = ("epsilon_insensitive", "squared_epsilon_insensitive")
ALL = ("hinge", "squared_hinge", "log_loss", *TARGETS)


def dual_of(loss, alpha, y, w):
    """The dual value, by its definition; quadratic beyond the bounds."""
    if loss == "log_loss":
        p = np.clip(alpha / C, 1e-300, 1 - 1e-16)
        return -C * (p * np.log(p) + (1 - p) * np.log1p(-p)).sum() - 0.5 * w @ w
    d = y * alpha - EPSILON * abs(alpha) if loss in TARGETS else alpha
    return (d - (0.25 * alpha**2 / C if LOSSES[loss].squared else 0)).sum() - 0.5 * w @ w


class Line:
    """A line through two points with variables inside their bounds.

    It follows the gradient, but not as far as is best.
    """

    def __init__(self, loss, seed):
        random = np.random.default_rng(seed)
        X = (3 * random.normal(size=(N, D))).astype(np.float32)
        self.y = random.normal(size=N) if loss in TARGETS else random.integers(2, size=N)
        self.y = self.y.astype(float if loss in TARGETS else np.int32)
        epsilon = EPSILON if loss in TARGETS else 0.0
        self.loss = loss
        self.problem = Problem(LOSSES[loss], C, C, 1, 0.0, epsilon, loss not in TARGETS)
        self.signed = X * (1.0 if loss in TARGETS else np.where(self.y == 1, 1, -1)[:, None])
        self.before = C * random.uniform(0.4, 0.6, N)
        small = 1e-6 * np.eye(N)
        slope = np.array([self.dual(self.before + e) - self.dual(self.before - e) for e in small])
        steps = np.linspace(0, 0.7, 2001) / abs(slope).max()
        best = steps[np.argmax([self.dual(self.before + step * slope) for step in steps])]
        self.alpha = self.before + best / 1.15 * slope
        indices = np.tile(np.arange(D, dtype=np.int32), N + 8)
        values = np.append(X, np.zeros(8 * D, np.float32))
        lengths = np.full(N, D, np.int32)
        self.rows = Rows(np.arange(0, N * D, D), lengths, indices, values, self.y)
        self.W = self.w(self.before).reshape(-1, 1).copy()
        self.line = PassLine(self.problem, self.W)

    def w(self, alpha):
        return self.signed.T.astype(float) @ alpha

    def dual(self, alpha):
        return dual_of(self.loss, alpha, self.y, self.w(alpha))

    def sums(self, alpha, way):
        """Bend, reach, and Σ d."""
        bend, reach = Bend(), Reach(self.problem)
        bend.add(self.problem, alpha, way)
        reach.add(alpha, way)
        return self.dual(alpha) + 0.5 * self.w(alpha) @ self.w(alpha), bend, reach

    def note(self):
        """Note the first point, go to the second one, and return the best length there."""
        while self.line.left:
            assert self.line.length(*self.sums(self.before, np.zeros(N))) == 0.0
        self.line.move(0.0)
        self.W[:, 0] = self.w(self.alpha)
        return self.line.length(*self.sums(self.alpha, self.alpha - self.before))


@pytest.mark.parametrize("loss", ALL)
def test_length_is_best_without_bounds(loss):
    for seed in range(4):
        case = Line(loss, seed)
        way, t = case.alpha - case.before, case.note()
        assert 0.05 < t < 1.5
        near = [case.dual(case.alpha + s * way) for s in (0.9 * t, t, 1.1 * t)]
        assert near[1] >= max(near) - 1e-3 * (near[1] - case.dual(case.alpha))


@pytest.mark.parametrize("loss", ALL)
def test_move_and_clip_keep_weights_and_dual(loss):
    for seed in range(4):
        case = Line(loss, seed)
        way, line = case.alpha - case.before, case.line
        assert case.note() > 0.0
        to_bounds = np.where(way > 0, C - case.alpha, -case.alpha) / way
        line.move(t := float(np.median(to_bounds)))  # half of the variables leave [0, C]
        assert line.before[:, 0] == pytest.approx(case.w(case.alpha), abs=1e-9)
        far, after = case.alpha + t * way, Bend()
        after.add(case.problem, far, t * way)
        total, moving, alpha = line.dual_sum(t, after), np.zeros(N, np.bool_), Dense(far.copy())
        total += line.clip(case.rows, alpha, moving)
        high = np.inf if LOSSES[loss].squared else C
        expected = far.clip(-high if loss in TARGETS else 0.0, high)
        assert np.array_equal(alpha.values, expected)
        assert np.array_equal(moving, expected != far)
        assert 0 < np.count_nonzero(moving) < N or high == np.inf
        assert case.W[:, 0] == pytest.approx(case.w(expected), abs=1e-9)
        whole = case.dual(expected) + 0.5 * case.W[:, 0] @ case.W[:, 0]
        assert total == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("loss", ALL)
def test_sums_do_not_depend_on_pieces(monkeypatch, loss):
    case = Line(loss, 0)
    way = 3.0 * (case.alpha - case.before)
    _, whole, far = case.sums(case.alpha, way)
    patch(monkeypatch, "rows._FEW", 7)
    _, bend, reach = case.sums(case.alpha, way)
    assert vars(bend) == pytest.approx(vars(whole), rel=1e-12)
    assert reach.most == far.most
    assert reach._length == pytest.approx(far._length, rel=1e-12)
    assert reach._outside == pytest.approx(far._outside, rel=1e-12)


def test_moves_outside_the_bounds_become_shorter():
    problem = Problem(LOSSES["hinge"], 1.0, 1.0, 1)
    for alpha, most in ((0.5, 1.0), (0.1, 2.0), (0.9, 0.25), (1.0, 0.0)):
        reach = Reach(problem)
        reach.add(np.array([alpha, 0.5]), np.array([0.6, 0.0]))
        assert reach.most == most


def test_lines_wait_twice_as_long_after_each_loss():
    case = Line("hinge", 0)
    assert case.note() > 0.0
    waits = []
    for _ in range(3):
        sums = list(case.sums(case.alpha, case.alpha - case.before))
        sums[0] -= 100.0 * (1 + len(waits))  # a loss
        assert case.line.length(*sums) == 0.0
        waits.append(case.line.left)
        case.line.left = 0
        case.line.before[:] = case.w(case.before).reshape(-1, 1)
        case.line._linear -= 1.0
        assert case.line.length(*case.sums(case.alpha, case.alpha - case.before)) > 0.0
    assert waits == [1, 3, 7]


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    """Sparse rows with frequent features, of two classes that overlap."""
    random = np.random.default_rng(0)
    X = np.zeros((3000, 400), np.float32)
    for row in X:
        row[random.zipf(1.3, 10) % 400] = 1
    scores = X @ random.normal(size=400) + 2 * random.normal(size=3000)
    return make_store(tmp_path_factory.mktemp("hard"), X, np.sign(scores), blocks=12)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
def test_moves_halve_the_passes(hard, tmp_path, monkeypatch, loss):
    how = {"loss": loss, "C": 10.0, "solver": "dual", "max_passes": 400, "rounds": 1}
    _, report = sbm.train(hard, tmp_path / "a.model", how)
    patch(monkeypatch, "passline._FIRST", 10**6)
    _, slow = sbm.train(hard, tmp_path / "b.model", how)
    assert report["converged"]
    assert slow["converged"]
    assert report["primal"] == pytest.approx(slow["primal"], rel=2e-3)
    assert report["passes"] <= 0.6 * slow["passes"]


def test_every_pass_notes_the_curved_part_of_the_dual(hard, tmp_path, monkeypatch):
    real, noted = PassLine.length, []

    def told(self, dual_sum, bend, reach):
        noted.append((self.left, bend.value))
        return real(self, dual_sum, bend, reach)

    monkeypatch.setattr(PassLine, "length", told)
    how = {"loss": "squared_hinge", "C": 10.0, "solver": "dual", "max_passes": 6, "rounds": 1}
    sbm.train(hard, tmp_path / "a.model", how)
    assert {left > 0 for left, _ in noted} == {True, False}
    assert all(value > 0 for _, value in noted)


@pytest.mark.parametrize("staying", [None, 1])
def test_a_pass_cut_short_leaves_feasible_alphas(hard, tmp_path, monkeypatch, staying):
    """Also if a second model, that of a calibration, stays where it is."""
    length, lines = PassLine.length, []

    def stays(self, *arguments):
        if self not in lines:
            lines.append(self)
        t = length(self, *arguments)
        return 0.0 if lines.index(self) == staying else t

    monkeypatch.setattr(PassLine, "length", stays)
    how = {"C": 10.0, "solver": "dual", "max_passes": 400, "rounds": 1}
    how["calibrate"] = staying is not None
    path, clipped = tmp_path / "m.model", []
    real = PassLine.clip

    def told(self, rows, alpha, moving=None):
        before = alpha.values.copy()
        rise = real(self, rows, alpha, moving)
        clipped.append((moving is None, np.count_nonzero(before != alpha.values)))
        return rise

    with monkeypatch.context() as late:
        looks = itertools.count()
        late.setattr(PassLine, "clip", told)
        limit = 12 * 6 + 5  # steps: in the middle of a pass
        patch(late, "training.seconds_left", lambda *_: limit - next(looks))
        _, report = sbm.train(hard, path, how)
    assert not report["converged"]
    assert any(is_rest and n for is_rest, n in clipped)  # of blocks that the pass did not come to
    record = Run.read(tmp_path / "m.model.run")
    sizes = [sum(piece[-1] for piece in part) for part in record["shape"]["parts"]]
    sizes *= 1 + how["calibrate"]
    run, kept = Run.reopen(tmp_path / "m.model.run", sizes)
    every = [kept["alpha"], *(run.load(part).values for part in range(len(sizes)))]
    assert all((alpha >= 0).all() and (alpha <= 10.0).all() for alpha in every)
    _, whole = sbm.train(hard, path, how)  # goes on; it would fail if W were not that of the alphas
    assert whole["converged"]
    assert whole["passes"] > report["passes"]
