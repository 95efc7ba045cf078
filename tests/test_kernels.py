"""Kernels without a solver: elementary functions, float64 values."""

import math

import numpy as np
import pytest
from families import Case, make_store
from helpers import fit
from inside import kernels_common_module as elementary


@pytest.mark.parametrize("case", [Case("hinge", 2), Case("log_loss", 2)], ids=str)
def test_float64_values_train_like_float32_values(tmp_path, case):
    X, y = case.rows()  # these values are float32
    models = []
    for dtype in ("float32", "float64"):
        store = make_store(tmp_path, X, y, dtype, blocks=3, dtype=dtype)
        model, report, _ = fit(store, **case.at(0.3), tol=1e-6, max_passes=200)
        models.append((model.W.tobytes(), report["primal"], report["dual"]))
    assert models[0] == models[1]


def test_elementary_functions_match_the_library():
    def plain(name):  # as Python: the compiler may fuse a product and a sum, no more
        return getattr(elementary, name).py_func

    random = np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as context:
        for name in ("_polynomial", "_log_around_1"):
            context.setattr(elementary, name, plain(name))
        exp, log1p, log_ratio = map(plain, ("exp", "log1p", "log_ratio"))
        for x in [0.0, -708.0, 708.0, *np.linspace(-700, 700, 301), *random.normal(size=300)]:
            assert exp(np.float64(x)) == pytest.approx(math.exp(x), rel=1e-15)
        assert 0 < exp(np.float64(-1e6)) < 1e-307
        for x in [0.0, 1.0, 1e-300, *random.random(300), *10.0 ** -random.uniform(0, 20, 100)]:
            assert log1p(x) == pytest.approx(math.log1p(x), rel=1e-15, abs=0)
        a = np.exp(random.uniform(-690, 690, 400))
        b = a * np.exp(random.normal(size=400) * np.repeat([1e-9, 1.0, 3.0, 5.0], 100))
        for over, under in [*zip(a, b, strict=True), *zip(a, np.flip(a), strict=True)]:
            expected = float(np.log(np.longdouble(over) / np.longdouble(under)))
            assert log_ratio(over, under) == pytest.approx(expected, rel=1e-15, abs=1e-15)
