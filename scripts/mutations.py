"""Break important lines one by one, and see which test notices: ``python scripts/mutations.py``.

Each mutation is applied to a copy of the tree; the tests that are to notice run there until one
fails. A mutation that no test notices is a test that is missing.

    python scripts/mutations.py -o scripts/results/mutations
    python scripts/mutations.py --only fsync
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MUTATIONS", "Mutation", "Noticed", "main", "report_of", "run"]

ROOT = Path(__file__).resolve().parent.parent
TREE = ("sbm", "tests", "scripts", "configs", "data", "docs", "pyproject.toml", "README.md")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[| - |$)", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """A line that is broken.

    Attributes
    ----------
    name : str
        What it breaks.
    file : str
        Below the top of the tree.
    old, new : str
        What stands there exactly once, and what is put in its place.
    tests : tuple of str
        What is to notice, as pytest's arguments.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Break the line in a tree.

        Raises
        ------
        ValueError
            `old` does not stand in the file exactly once.
        """
        path = root / self.file
        text = path.read_text("utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {self.old!r} {text.count(self.old)} times, not once")
        path.write_text(text.replace(self.old, self.new), "utf-8")


MUTATIONS = (
    Mutation(
        "sign of the step in the hinge's kernel", "sbm/solver/kernels/svc.py",
        "w, sigma * step * s)", "w, -sigma * step * s)",
        ("tests/test_kernels.py", "-k", "visit_solves and Machine"),
    ),
    Mutation(
        "shrinking: which rows later rounds leave out", "sbm/solver/kernels/svc.py",
        "rank < -limit and violation", "rank < limit and violation",
        ("tests/test_kernels.py", "-k", "nearly_move"),
    ),
    Mutation(
        "state of the permutation's generator", "sbm/solver/kernels/visits.py",
        "state[0] = permute(order, chunks, state[0])", "permute(order, chunks, state[0])",
        ("tests/test_kernels.py", "-k", "fresh_order"),
    ),
    Mutation(
        "curvature with σ' of several solvers", "sbm/solver/kernels/svc.py",
        "sigma * a + diagonal)", "a + diagonal)",
        ("tests/test_kernels.py", "-k", "visit_solves and Machine"),
    ),
    Mutation(
        "bound of a margin's rounding in the certificate", "sbm/solver/kernels/sparse.py",
        "(np.float64(n) + 4.0) * _HALF_ULP * size", "0.0 * size",
        ("tests/test_extremes.py", "-k", "without_rounding and hinge and not squared"),
    ),
    Mutation(
        "home rule: a cached row's alpha leaves its block", "sbm/solver/kernels/working_set.py",
        "0.0 if keep[i] else alpha[i]", "alpha[i]", ("tests/test_step.py", "-k", "homes"),
    ),
    Mutation(
        "the cache's copy of a row wins", "sbm/solver/kernels/working_set.py",
        "moving[np.uint32(row[i])] = False", "moving[np.uint32(row[i])] = True",
        ("tests/test_step.py", "-k", "homes"),
    ),
    Mutation(
        "strays are handed back", "sbm/solver/kernels/working_set.py",
        "elif not keep[i] and alpha[i] != 0.0:", "elif not keep[i] and alpha[i] > 1.0:",
        ("tests/test_step.py", "-k", "homes"),
    ),
    Mutation(
        "seed of a solver", "sbm/solver/step.py",
        "SeedSequence([seed, 1])", "SeedSequence([1])", ("tests/test_step.py", "-k", "seed"),
    ),
    Mutation(
        "certificate at fixed W", "sbm/solver/gap.py",
        "certify(rows, alpha, self._W, self.W_alpha)",
        "certify(rows, alpha, self.W_alpha, self.W_alpha)",
        ("tests/test_step.py", "-k", "certificate"),
    ),
    Mutation(
        "gap of W that has drifted", "sbm/solver/problem.py",
        "gap + 0.5 * squared_norm(W, W_alpha)", "gap", ("tests/test_step.py", "-k", "certificate"),
    ),
    Mutation(
        "checksum of an array", "sbm/store/arrays.py",
        'zlib.crc32(data) != entry["crc32"]', "False", ("tests/test_arrays.py", "-k", "bit"),
    ),
    Mutation(
        "checksum of a record", "sbm/store/records.py",
        'or checksum(content) != outer["crc32"]', "", ("tests/test_records.py",),
    ),
    Mutation(
        "fsync before the rename", "sbm/store/files.py",
        "os.fsync(file.fileno())", "file.fileno()", ("tests/test_durability.py",),
    ),
    Mutation(
        "blocks are durable before the manifest names them", "sbm/store/blocks.py",
        "os.fsync(file.fileno())", "file.fileno()", ("tests/test_durability.py",),
    ),
    Mutation(
        "alphas are durable before the record names them", "sbm/store/run.py",
        "_sync(self.folder / file)", "pass", ("tests/test_durability.py",),
    ),
    Mutation(
        "the record of a commit comes last", "sbm/store/run.py",
        'container.write(self.folder / name, "state", state, level=None)',
        'files = {str(block): file for block, file in self._files.items()}\n'
        '        self._write_record({**position, "state": name, "alphas": files, "crc32": {}})\n'
        '        container.write(self.folder / name, "state", state, level=None)',
        ("tests/test_durability.py",),
    ),
    Mutation(
        "links in a store lead nowhere", "sbm/store/files.py",
        "os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_NONBLOCK",
        ("tests/test_hostile.py", "-k", "link or not_opened"),
    ),
    Mutation(
        "machine code that others can write", "sbm/compiled.py",
        "return status.st_uid in (os.geteuid(), 0, package.st_uid) and not others",
        "return True", ("tests/test_compiled.py", "-k", "others_can_write"),
    ),
    Mutation(
        "manifest of a shard last", "sbm/jobs/dealing/destination.py",
        "        shard = Shard(number, len(partials))\n",
        "        shard = Shard(number, len(partials))\n"
        "        files.copy(whole / store_files.MANIFEST, partial)\n",
        ("tests/test_durability.py", "-k", "of_a_shard"),
    ),
    Mutation(
        "two buffers in the memory plan", "sbm/jobs/machine/memory.py",
        "buffers = 2 * (nnz", "buffers = 1 * (nnz", ("tests/test_memory_plan.py",),
    ),
    Mutation(
        "the larger label is the positive one", "sbm/jobs/training/problem.py",
        "int(np.argmax(labels))", "int(np.argmin(labels))",
        ("tests/test_train.py", "-k", "liblinear or scikit"),
    ),
    Mutation(
        "labels of a model ascend", "sbm/jobs/training/problem.py",
        "labels=sorted(labels)", "labels=list(labels)",
        ("tests/test_multiclass_train.py", "-k", "labels_of_a_model_ascend"),
    ),
    Mutation(
        "tolerance is that of the relative gap", "sbm/jobs/train.py",
        "last or certificate.relative_gap <=", "last or certificate.gap <=",
        ("tests/test_train.py", "-k", "first_certificate"),
    ),
    Mutation(
        "no commit of a block that cannot be read ahead", "sbm/jobs/engine/engine.py",
        "if coming is not None and self.reader.failure is not None:", "if False:",
        ("tests/test_resume.py", "-k", "cannot_be_read_once"),
    ),
    Mutation(
        "resume: identity has the data", "sbm/jobs/training/resume.py",
        'checksum([store.manifest["blocks"], generations])', "0",
        ("tests/test_resume.py", "-k", "other_data"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Noticed:
    """What became of a mutation.

    Attributes
    ----------
    mutation : Mutation
    test : str
        The first that failed; empty where none did.
    seconds : float
    """

    mutation: Mutation
    test: str
    seconds: float


def run(mutations: Sequence[Mutation], root: Path = ROOT) -> list[Noticed]:
    """Apply mutations one by one to a copy of a tree, and run their tests."""
    found = []
    with tempfile.TemporaryDirectory(prefix="sbm-mutations-") as folder:
        copy = Path(folder) / "tree"
        _copy(root, copy)
        for mutation in mutations:
            whole = (copy / mutation.file).read_bytes()
            mutation.apply(copy)
            begin = time.perf_counter()
            test = _first_failure(copy, mutation.tests)
            found.append(Noticed(mutation, test, time.perf_counter() - begin))
            print(f"{mutation.name}: {test or 'NOBODY'}", file=sys.stderr, flush=True)
            (copy / mutation.file).write_bytes(whole)
    return found


def _copy(root: Path, target: Path) -> None:
    """Copy what tests need, machine code included: unbroken kernels are not compiled again."""
    target.mkdir()
    skip = shutil.ignore_patterns("*.pyc", "results")
    for name in TREE:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=skip)
        elif source.exists():
            shutil.copy(source, target / name)
    if (root.parent / "shared").exists():  # reference sets that some tests read
        (target.parent / "shared").symlink_to(root.parent / "shared")


def _first_failure(tree: Path, tests: Sequence[str]) -> str:
    """Return the first test that fails, empty where all pass.

    Raises
    ------
    RuntimeError
        The tests could not be run.
    """
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    failed = FAILED.search(done.stdout)
    if done.returncode == 0:
        return ""
    if done.returncode not in (1, 2) or failed is None:
        raise RuntimeError(f"{' '.join(tests)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[1].removeprefix("tests/").replace("::", ", ")


def report_of(found: Sequence[Noticed]) -> str:
    """Return a table of what was broken and who noticed."""
    lines = [
        "# Mutations",
        "",
        "Important lines, broken one by one, and the first test that notices each.",
        "",
        "| broken | file | test that notices | seconds |",
        "|---|---|---|---|",
    ]
    for one in found:
        m, test = one.mutation, f"`{one.test}`" if one.test else "**nobody**"
        lines.append(f"| {m.name} | `{m.file}` | {test} | {one.seconds:.0f} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run mutations; return 1 where nobody noticed one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, help="write OUTPUT.md")
    parser.add_argument("--only", default="", help="mutations whose name has this word")
    args = parser.parse_args(argv)
    found = run([m for m in MUTATIONS if args.only in m.name])
    text = report_of(found)
    print(text, end="")
    if args.output is not None:
        args.output.with_suffix(".md").write_text(text, "utf-8")
    return 0 if all(one.test for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
