"""The kernels as plain Python: run as a program, this does its work without a compiler.

``python uncompiled.py FOLDER`` does in the folder what `work` says and writes what it found to
``found.json``, with the kernels as numba reads them, not as it compiles them: each of their lines
is run by the interpreter, which checks every access and can count it.
"""

import importlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import sbm
from sbm import compiled
from sbm.losses import LOSSES
from sbm.solver.online import ONLINE

Array = np.ndarray[Any, Any]

FILES = sorted(Path(sbm.__file__).parent.glob("*/kernels/[a-z]*.py"))
TEXTS = {
    "binary": "".join(f"{s}1 {k}:0.5 {k + 7}:2.25\n" for k in range(1, 20) for s in "+-"),
    "ones": "".join(f"{s}1 {k}:1 {k + 7}:1\n" for k in range(1, 20) for s in "+-"),
    "many": "".join(f"{k % 4} {k % 4 + 1}:1.5 {k % 7 + 6}:{k / 8}\n" for k in range(40)),
    "targets": "".join(f"{k / 4} {k % 5 + 1}:1.5 {k % 7 + 6}:{k / 8}\n" for k in range(40)),
    "long": "".join(
        f"{k % 2} " + " ".join(f"{k + 3 * i}:{i / 8 + 1}" for i in range(1, 40)) + "\n"
        for k in range(6)
    ),
}
# Text, settings of its training.
TRAININGS: list[tuple[str, dict[str, Any]]] = [
    ("binary", {}), ("binary", {"cache_frac": 0.3, "bias": 1.0}), ("ones", {}), ("long", {}),
    ("ones", {"loss": "squared_hinge", "weights": True}), ("binary", {"loss": "log_loss"}),
    ("many", {"loss": "log_loss", "bias": 1.0}), ("many", {"loss": "squared_hinge"}),
    ("targets", {"loss": "epsilon_insensitive"}), ("targets", {"loss": "squared_error"}),
    ("targets", {"loss": "squared_epsilon_insensitive", "weights": True}),
    ("ones", {"loss": "one_class", "nu": 0.3}), ("many", {"loss": "crammer_singer"}),
    ("many", {"loss": "weston_watkins", "bias": 1.0}),
    ("many", {"loss": "crammer_singer", "weights": True, "policy": "mixed"}),
    ("many", {"loss": "weston_watkins", "schedule": "pairs", "weights": True}),
    ("many", {"loss": "weston_watkins", "schedule": "pairs", "bias": 1.0}),
    ("many", {"loss": "weston_watkins", "class_blocks": 2}),
]  # fmt: skip
_HERE = {LOSSES[settings.get("loss", "hinge")].kernel for _, settings in TRAININGS}
TRAININGS += [
    ("binary" if "classification" in loss.tasks else "targets", {"loss": loss.name})
    for loss in LOSSES.values()
    if loss.kernel not in _HERE
]


def work(folder: Path) -> dict[str, Any]:
    """Split, train, tune, stream and predict; what came of it, by what it was."""
    found: dict[str, Any] = {}
    for name, text in TEXTS.items():
        (folder / f"{name}.svm").write_text(text)
        weights = "".join(f"{k % 3 + 0.5}\n" for k in range(text.count("\n")))
        (folder / f"{name}.weights").write_text(weights)
        for count in (2, 1):
            found[f"split {name}, {count}"] = sbm.split(
                [folder / f"{name}.svm"], folder / f"{name}.sbm", blocks=2, min_count=count,
                force=True,
            )["rows"]  # fmt: skip
    for k, (name, settings) in enumerate(TRAININGS):
        told = settings | {"tol": 1e-3, "max_passes": 3, "mem": "400MB", "seed": 1}
        if "weights" in told:
            told["weights"] = str(folder / f"{name}.weights")
        model, report = sbm.train(folder / f"{name}.sbm", folder / f"{k}.model", told)
        found[f"train {name} {settings}"] = [model.W.tolist(), report["primal"], report["dual"]]
        predicted = sbm.predict(model, folder / f"{name}.svm", top=2 if name == "many" else 1)
        found[f"predict {name} {settings}"] = predicted["rows"]
    _, report = sbm.tune(folder / "binary.sbm", folder / "t.model", {"tol": 0.1}, Cs=[0.1, 1])
    found["tune"] = report["best"]
    for learner, name in itertools.product(["sbm", *ONLINE], ("ones", "binary", "many")):
        model, _ = sbm.stream(
            folder / f"{name}.svm",
            folder / "s.model",
            {"mem": "400MB"},
            options={"learner": learner},
        )
        found[f"stream {learner} {name}"] = model.W.tolist()
    (folder / "a.vw").write_text("1 |user age:33 city=Oslo b\n-1 |user age:3 city=Rome\n" * 9)
    sbm.split([folder / "a.vw"], folder / "vw.sbm", format="vw", hash_bits=12)
    found["names"] = sbm.info(folder / "vw.sbm")["rows"]
    return found


# ---------------------------------------------------- what numba makes of words of the processor


def _load_word(array: Array, position: int) -> np.uint64:
    return np.uint64(int.from_bytes(array[int(position) : int(position) + 8].tobytes(), "little"))


def _store_word(array: Array, position: int, word: np.uint64) -> None:
    array[int(position) : int(position) + 8] = np.frombuffer(np.uint64(word).tobytes(), np.uint8)


def _leading_zeros(number: np.uint64) -> int:
    return 64 - int(number).bit_length()


def _trailing_zeros(number: np.uint64) -> np.uint64:
    n = int(number)
    return np.uint64((n & -n).bit_length() - 1 if n else 64)


def _are_below(array: Array, index: int, number: int) -> int:
    return _bits(array[int(index) : int(index) + 16] < number)


def _find_ends(array: Array, position: int) -> np.uint64:
    return np.uint64(_bits(array[int(position) : int(position) + 64] <= 32))


def _bits(flags: Array) -> int:
    return sum(1 << k for k, flag in enumerate(flags.tolist()) if flag)


def _count_ones(bits: int) -> int:
    return int(bits).bit_count()


def _prefetch(array: Array, *place: int) -> None:
    pass


_WORDS = {f.__name__.lstrip("_"): f for f in (
    _load_word, _store_word, _leading_zeros, _trailing_zeros, _are_below, _find_ends, _count_ones,
    _prefetch,
)}  # fmt: skip


def _replace_words() -> None:
    for file in FILES:
        module = importlib.import_module(f"sbm.{file.parts[-3]}.kernels.{file.stem}")
        for name in [name for name in vars(module) if name.lstrip("_") in _WORDS]:
            setattr(module, name, _WORDS[name.lstrip("_")])


def _call(kernel: compiled.Kernel, *values: Any) -> Any:
    with np.errstate(all="ignore"):
        found = getattr(sys.modules[kernel.module], kernel.name)(*values)
    if found is None:
        return None
    return tuple(map(int, found)) if isinstance(found, tuple) else int(found)


if __name__ == "__main__":
    assert os.environ["NUMBA_DISABLE_JIT"] == "1"
    _replace_words()
    compiled.Kernel.__call__ = _call  # type: ignore[method-assign]
    here = Path(sys.argv[1])
    (here / "found.json").write_text(json.dumps(work(here)))
