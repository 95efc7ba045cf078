"""Every kernel with its bounds checked: lines of text, coded rows and alphas, and trainings.

Children use kernels that are compiled with checks (`scripts/torture/guard.py`), and arrays of the
store's kernels lie between pages that nobody may touch. An access out of bounds ends the child,
which is a failure. First it is shown that the checks are on: an array that is too short must end a
process.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sbm
from sbm.compiled import load
from sbm.inputs.idtable import DIRECT_LIMIT, IdTable, count_codes, drop_unknown
from scripts.torture import text as torture_text
from scripts.torture.guard import GuardedBytes, checked
from scripts.torture.tally import Tally

SOLVERS: dict[str, dict[str, Any]] = {
    "hinge": {"loss": "hinge"},
    "squared_hinge of many classes": {"loss": "squared_hinge"},
    "log_loss": {"loss": "log_loss", "policy": "random"},
    "crammer_singer": {"loss": "crammer_singer"},
    "weston_watkins": {"loss": "weston_watkins"},
    "class blocks": {"loss": "weston_watkins", "class_blocks": 4},
    "epsilon_insensitive": {"loss": "epsilon_insensitive"},
    "squared_error": {"loss": "squared_error"},
    "one_class": {"loss": "one_class"},
    "tuning": {"loss": "squared_hinge"},
    "stream": {},
}
_OF_MANY = ("squared_hinge of many classes", "crammer_singer", "weston_watkins", "class blocks")
_ROWS = 240
_TEXT_OF = 10  # lines of text for each case of the store's kernels


def run(
    cases: int,
    seed: int,
    folder: Path,
    tell: Callable[[str], None],
    solvers: Sequence[str] = tuple(SOLVERS),
) -> Tally:
    """Try all kernels with checks.

    Parameters
    ----------
    cases : int
        Lines of text; of the store's other kernels a tenth of that, of the trainings one each.
    seed : int
    folder : Path
        For machine code and small stores.
    tell : callable
        Is told how far it is.
    solvers : sequence of str
        Which of `SOLVERS`.
    """
    tally, code = Tally("bounds"), folder / "code"
    proof = _child(code, "--proof", "parse")
    if proof.returncode != -signal.SIGABRT:
        tally.failures.append("the parser does not notice an array that is too short")
    lines = torture_text.run(cases, seed, folder, tell, code)
    tally.failures += lines.failures
    tally.tried += lines.tried
    tally.figures["lines"] = lines.figures.get("lines", {})
    for name in ("store", *solvers):
        n = cases // _TEXT_OF if name == "store" else 1
        done = _child(
            code, "--part", name, "--folder", str(folder), "--seed", str(seed), "--cases", str(n)
        )
        if done.returncode != 0:
            tally.failures.append(
                f"seed {seed}, {name}: the process ended with code {done.returncode}: "
                f"{done.stderr[-500:].strip()}"
            )
        for part in STORE if name == "store" else (name,):
            tally.tried += n
            tally.count("store" if name == "store" else "trainings", part, n)
        tell(f"bounds: {name}, {len(tally.failures)} failures")
    return tally


def _child(code: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.torture.bounds", *options],
        env=checked(code), capture_output=True, text=True, check=False,
    )  # fmt: skip


# ------------------------------------------------------------------------- kernels of the store


class _Place:
    """Gives copies of arrays that lie between guarded pages, for one call."""

    def __init__(self) -> None:
        self._free: list[GuardedBytes] = []
        self._used: list[GuardedBytes] = []

    def __call__(
        self, array: npt.ArrayLike, dtype: npt.DTypeLike | None = None
    ) -> npt.NDArray[Any]:
        guard = self._free.pop() if self._free else GuardedBytes(1 << 16)
        self._used.append(guard)
        return guard.hold(np.asarray(array, dtype))

    def room(self, n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Room for n elements, which are anything but 0."""
        return self(np.full(n, 85, dtype))

    def clear(self) -> None:
        """Take all places back."""
        self._free += self._used
        self._used = []


def _try_ids(n: int, r: random.Random, place: _Place) -> None:
    """Tables of ids against a dictionary."""
    edges = [0, 1, 1023, 1024, 2**20, DIRECT_LIMIT - 1, DIRECT_LIMIT, 2**31, 2**32, 2**63 - 1, -1]
    for _ in range(max(1, n // 20)):
        table, known = IdTable(), dict[int, int]()
        for _ in range(20):
            bits = r.choice((3, 12, 25, 62))
            keys = [r.choice(edges) if r.random() < 0.1 else r.getrandbits(bits)
                    for _ in range(r.randrange(600))]  # fmt: skip
            array = place(keys, np.int64)
            assert table.find(array).tolist() == [known.get(k, -1) for k in keys]
            codes = place.room(len(keys), np.int32)
            unknown = table.look_up(array, codes).tolist()
            assert all((codes[k] == -1) == (k in {*unknown}) for k in range(len(keys)))
            assert all(codes[k] in (-1, known.get(key)) for k, key in enumerate(keys))
            if r.random() < 0.7:
                for key in keys:
                    known.setdefault(key, len(known))
                assert table.intern(array).tolist() == [known[key] for key in keys]
                counts = place.room(len(known), np.int32)
                counts[:] = 0
                found = table.find(array)
                count_codes(place(found), counts, 3)
                times = np.bincount(found, minlength=len(known))
                assert counts.tolist() == np.minimum(times, 3).tolist()
            if r.random() < 0.1 and known:
                chosen = np.array([r.random() < 0.5 for _ in known])
                table.keep(chosen)
                kept = [key for key, keep in zip(known, chosen, strict=True) if keep]
                known = {key: code for code, key in enumerate(kept)}
            _drop(r, place)
            place.clear()


def _drop(r: random.Random, place: _Place) -> None:
    """Take nonzeros without a code out of random rows."""
    lengths = [r.randrange(6) for _ in range(r.randrange(9))]
    codes = [r.randint(-1, 3) for _ in range(sum(lengths))]
    values = None if r.random() < 0.3 else [r.choice((1.0, 1.0, 1.0, 2.0)) for _ in codes]
    indptr, array = place(np.cumsum([0, *lengths]), np.int64), place(codes, np.int32)
    kept = [code for code in codes if code >= 0]
    kept_values = [v for v, code in zip(values or [], codes, strict=False) if code >= 0]
    n, ones = drop_unknown(indptr, array, None if values is None else place(values, np.float32))
    assert array[:n].tolist() == kept
    assert ones == all(v == 1 for v in kept_values)
    assert indptr[-1] == n


def _try_rows(n: int, r: random.Random, place: _Place) -> None:
    """Rows coded and decoded, also from damaged bytes."""
    kernels = load("sbm.store.kernels.rows")
    for _ in range(n):
        top = r.choice((5, 100, 300, 70000, 2**31 - 1))
        rows = [r.sample(range(top), min(top, r.choice((0, 1, 2, 15, 16, 17, 63, 64, 65, 100))))
                for _ in range(r.randrange(12))]  # fmt: skip
        if r.random() < 0.5:
            rows = [row[: r.randrange(9)] for row in rows]
        flat = [index for row in rows for index in row]
        lengths = place([len(row) for row in rows], np.int32)
        starts = place(np.cumsum([0, *map(len, rows)])[:-1], np.int64)
        chosen = r.sample(range(len(rows)), r.randint(0, len(rows)))
        values = None if r.random() < 0.5 else place([i % 7 for i in flat], np.float32)
        nnz = sum(len(rows[k]) for k in chosen)
        symbols, bits = place.room(nnz, np.uint8), place.room(4 * nnz + 16, np.uint8)
        out_values = None if values is None else place.room(nnz, np.float32)
        ordered = place.room(max((len(row) for row in rows), default=0), np.int32)
        used = kernels.encode_rows(
            starts, lengths, place(flat, np.int32), values, place(chosen, np.int64), ordered,
            symbols, bits, out_values,
        )  # fmt: skip
        coded_lengths = place([len(rows[k]) for k in chosen], np.int32)
        wanted = [index for k in chosen for index in sorted(rows[k])]
        bits = place(bits[:used])
        out = place.room(nnz, np.int32)
        assert kernels.decode_rows(symbols, bits, coded_lengths, top, out)
        assert out.tolist() == wanted
        if out_values is not None:
            assert out_values.tolist() == [index % 7 for index in wanted]
        _try_numbers(kernels, wanted, place)
        for _ in range(4):  # anything may come of damage, but inside of what is allowed
            bad_symbols, bad_bits, bad_lengths = (
                place(_damaged(a, r)) for a in (symbols, bits, coded_lengths)
            )
            bad_bits = place(bad_bits[: r.randint(8, len(bad_bits))])
            if kernels.decode_rows(bad_symbols, bad_bits, bad_lengths, top, out):
                assert not nnz or 0 <= out.min() <= out.max() < top
            kernels.decode_numbers(bad_symbols, bad_bits, top, out)
        place.clear()


def _try_numbers(kernels: Any, numbers: list[int], place: _Place) -> None:
    n = len(numbers)
    symbols, bits = place.room(n, np.uint8), place.room(4 * n + 16, np.uint8)
    used = kernels.encode_numbers(place(numbers, np.int32), symbols, bits)
    out = place.room(n, np.int32)
    assert kernels.decode_numbers(symbols, place(bits[:used]), 2**31, out)
    assert out.tolist() == numbers


def _damaged(array: npt.NDArray[Any], r: random.Random) -> npt.NDArray[Any]:
    """A copy with some of its bits flipped."""
    data = bytearray(array.tobytes())
    for _ in range(r.randrange(4) if data else 0):
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    return np.frombuffer(bytes(data), array.dtype)


def _try_alphas(n: int, r: random.Random, place: _Place) -> None:
    """Alphas to bytes and back, also damaged."""
    kernels = load("sbm.store.kernels.alphas")
    for _ in range(n):
        resting = place([0.0, 1.0, 0.5][: r.randint(0, 3)], np.float64)
        alpha = place([r.choice((0.0, 1.0, 0.5, 0.25, 7.0)) for _ in range(r.randrange(40))], float)
        codes, free = place.room(len(alpha), np.uint8), place.room(len(alpha), np.float64)
        n_free = kernels.pack(alpha, resting, codes, free)
        free, out = place(free[:n_free]), place.room(len(alpha), np.float64)
        assert kernels.unpack(codes, free, resting, out)
        assert out.tolist() == alpha.tolist()
        bad = place(_damaged(codes, r))
        kernels.unpack(bad, place(free[: r.randint(0, n_free)]), resting, out)
        place.clear()


_WORDS = (
    "1", "-1", "0", "2.5", "'tag", "|", "|f", "|f:2", "| ", "a", "a:1", "b:-0.5", ":3", "a:", "77",
    "1e999", "nan", "x" * 70, "\u00e9", "a:1e-400", "a:x",
)  # fmt: skip


def _try_names(n: int, r: random.Random, place: _Place) -> None:
    """Text of names, whole and broken, and their hashes; each parse leaves its text as it was."""
    kernels = load("sbm.inputs.kernels.names")
    for _ in range(n):
        lines = [r.choices(_WORDS, k=r.randrange(9)) for _ in range(r.randrange(4))]
        raw = "".join(r.choice((" ", "\t")).join(words) + "\n" for words in lines).encode()
        text = place(np.frombuffer(raw + b"\n", np.uint8))
        size = len(raw)  # arrays are as long as those of `Room`
        kernels.parse(
            text, size, 3.4e38, 1.79e308, (1 << 22) - 1, r.random() < 0.5,
            place.room(size // 2 + 1, float), place(np.zeros(size // 2 + 2, np.int64)),
            place.room(size // 4 + 1, np.int64), place.room(size // 4 + 1, float),
            place(np.zeros((20, 3), np.int64)), place.room(1, np.uint64),
        )  # fmt: skip
        assert text.tobytes() == raw + b"\n"
        words = [word.encode() for word in r.choices(_WORDS, k=r.randrange(5))]
        ends = np.cumsum([len(word) for word in words], dtype=np.int64)
        out = place.room(len(words), np.int64)
        kernels.hash_names(
            place(np.frombuffer(b"".join(words) + b"\0", np.uint8)), place(ends), 2**22 - 1, out
        )
        assert ((out >= 0) & (out < 2**22)).all()
        place.clear()


STORE = {
    "ids": _try_ids, "rows": _try_rows, "alphas": _try_alphas, "names": _try_names
}  # fmt: skip


# ------------------------------------------------------------------------------------ trainings


def _train(name: str, folder: Path, seed: int) -> None:
    """Trainings of a few rows, with and without weights, and a prediction with the model."""
    source, test, weights = folder / "t.svm", folder / "e.svm", folder / "weights.txt"
    store, model = folder / "t.sbm", folder / "t.model"
    source.write_text("".join(_lines(4 if name in _OF_MANY else 2, random.Random(seed))))
    test.write_text("1 1:1 2:0.5 99:1\n-1\n")
    weights.write_text("1\n0.5\n" * (_ROWS // 2))
    if name == "stream":
        sbm.stream(source, model, {"mem": "400MB"})
    else:
        settings = {"mem": "400MB", "max_passes": 4, **SOLVERS[name]}
        sbm.split([source], store, blocks=4, force=True)
        if name == "tuning":
            sbm.tune(store, model, settings, Cs=[0.1, 1.0], folds=2)
        else:
            sbm.train(store, model, {**settings, "weights": str(weights)})
            sbm.train(store, model, settings)
    sbm.predict(model, test)


def _lines(classes: int, r: random.Random) -> Iterator[str]:
    for k in range(_ROWS):
        label = k % classes if classes > 2 else 2 * (k % 2) - 1
        ids = sorted([*r.sample(range(1, 40), r.randint(0, 9)), 41 + k % classes])
        yield f"{label} " + " ".join(f"{i}:{r.uniform(-1, 1):.3f}" for i in ids) + "\n"


# ----------------------------------------------------------------------------------- as a child


def _prove() -> None:
    """Call the parser with an array that is too short; one that checks does not come back."""
    text, numbers, too_short = np.full(80, 10, np.uint8), np.zeros(4, np.int64), np.empty(0)
    text[0] = ord("1")
    load("sbm.inputs.kernels.text").parse(
        text, 2, 1.0, False, too_short, numbers, numbers.copy(), np.empty(4, np.float32),
        np.empty((1, 3), np.int64), np.empty((1, 4), np.int64), np.empty(1, np.uint64),
    )  # fmt: skip


def main() -> None:
    """Try all, or be a child that tries a part."""
    parser = argparse.ArgumentParser(description="Run all kernels with their bounds checked.")
    parser.add_argument("--cases", type=int, default=100_000, help="lines of text to try")
    parser.add_argument("--seed", type=int, default=0)
    for name, kind in (("proof", str), ("part", str), ("folder", Path)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.proof is not None:
        _prove()
    elif args.part is None:
        with tempfile.TemporaryDirectory() as folder:
            tally = run(args.cases, args.seed, Path(folder), lambda text: print(text))
        print(json.dumps(asdict(tally), indent=1))
        sys.exit(1 if tally.failures else 0)
    elif args.part == "store":
        for name, check in STORE.items():
            print(name, file=sys.stderr)  # to tell in which it ended
            check(args.cases, random.Random(f"{args.seed} {name}"), _Place())
    else:
        _train(args.part, args.folder, args.seed)


if __name__ == "__main__":
    main()
