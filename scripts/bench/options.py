"""Options of the benchmarks, in groups that several share."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbm.losses import LOSSES as ALL_LOSSES
from sbm.settings import Settings
from scripts.bench.evaluate import LOSSES
from scripts.bench.family import LOSSES as FAMILY
from scripts.bench.learners import learner_options


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Type of an option that takes values separated by commas."""

    def read(text: str) -> list[Any]:
        return [kind(word) for word in text.split(",")]

    read.__name__ = f"list of {kind.__name__.lstrip('_')}"  # for the message of argparse
    return read


def _or_auto(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Type of an option that takes a number or ``auto``."""

    def read(text: str) -> Any:
        return text if text == "auto" else kind(text)

    read.__name__ = f"{getattr(kind, '__name__', 'number')} or auto"
    return read


def _rate(text: str) -> float | None:
    return None if text == "none" else float(text)


def cost_option(parser: argparse.ArgumentParser) -> None:
    """C."""
    parser.add_argument("-C", dest="C", type=float, default=0.1)


def splitting_options(parser: argparse.ArgumentParser) -> None:
    """Of ``sbm split``."""
    parser.add_argument("--blocks", type=int, default=12, metavar="M")
    parser.add_argument("--mem", default="400MB", metavar="SIZE", help="of each of our processes")


def training_options(parser: argparse.ArgumentParser) -> None:
    """Of split and training."""
    cost_option(parser)
    limit_options(parser)


def limit_options(parser: argparse.ArgumentParser) -> None:
    """Of split and training, but for C."""
    splitting_options(parser)
    parser.add_argument("--split-mem", metavar="SIZE", help="of sbm split alone; default: --mem")
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--max-passes", type=int, default=500, metavar="N")


def rounds_option(parser: argparse.ArgumentParser) -> None:
    """Of a training: one choice of rounds."""
    parser.add_argument(
        "--rounds", type=_or_auto(int), default=Settings().rounds, metavar="N",
        help="of sbm train; default: its own",
    )  # fmt: skip


def cache_option(parser: argparse.ArgumentParser) -> None:
    """Of a training: one size of the cache."""
    parser.add_argument(
        "--cache-frac", type=_or_auto(float), default=Settings().cache_frac, metavar="F",
        help="of sbm train; default: its own",
    )  # fmt: skip


def liblinear_option(parser: argparse.ArgumentParser) -> None:
    """LIBLINEAR's program."""
    parser.add_argument(
        "--liblinear-train", metavar="PROGRAM",
        help="LIBLINEAR's own program, or none for the library; default: liblinear-train on PATH",
    )  # fmt: skip


def parse_options(parser: argparse.ArgumentParser) -> None:
    """Of `parse`."""
    parser.add_argument(
        "--peer-bytes", type=float, default=64e6, metavar="N", help="text that the peers read"
    )


def split_options(parser: argparse.ArgumentParser) -> None:
    """Of `split`."""
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of sbm split")


def kernel_options(parser: argparse.ArgumentParser) -> None:
    """Of `kernel`."""
    parser.add_argument(
        "--more-iterations", type=int, default=2, metavar="N",
        help="least difference of the two runs of LIBLINEAR",
    )  # fmt: skip
    parser.add_argument(
        "--epochs", type=_list_of(int), default=[1, 2, 4, 8], metavar="K,K,...",
        help="after which the gap is computed",
    )  # fmt: skip
    parser.add_argument("--long", type=Path, metavar="FILE", help="text with long rows")
    parser.add_argument("--long-rows", type=int, default=60_000, metavar="N", help="if it is made")
    parser.add_argument("--long-features", type=int, default=100_000, metavar="N")
    parser.add_argument("--long-nnz", type=int, default=500, metavar="N")


def gap_options(parser: argparse.ArgumentParser) -> None:
    """Of `text-to-gap`."""
    parser.add_argument("--liblinear-e", type=float, default=0.1, metavar="E")
    parser.add_argument(
        "--bound-tol", type=float, default=1e-5, metavar="T", help="of the training for a bound"
    )
    parser.add_argument(
        "--curve-passes", type=int, default=30, metavar="N", help="most passes of a curve's point"
    )


def one_pass_options(parser: argparse.ArgumentParser) -> None:
    """Of `one-pass`."""
    parser.add_argument("--stream-mem", metavar="SIZE", help="of sbm stream; default: --mem")
    parser.add_argument(
        "--stream-rounds", type=_or_auto(int), default="auto", metavar="N",
        help="of sbm stream; default: its own",
    )  # fmt: skip
    learner_options(parser)


def stream_memory_options(parser: argparse.ArgumentParser) -> None:
    """Of `stream-memory`."""
    cost_option(parser)
    parser.add_argument("--mem", default="256MB", metavar="SIZE", help="default: %(default)s")
    parser.add_argument(
        "--size", default="10GB", metavar="SIZE", help="of text; default: %(default)s"
    )
    parser.add_argument(
        "--base", default="64MB", metavar="SIZE",
        help="of the text that is written again and again; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--features", type=int, default=700_000, metavar="N")
    parser.add_argument(
        "--grow", type=int, default=0, metavar="N",
        help="new features over the whole text; default: none",
    )  # fmt: skip
    parser.add_argument("--sample-seconds", type=float, default=0.5, metavar="T")


def scaling_options(parser: argparse.ArgumentParser) -> None:
    """Of `scaling`."""
    parser.add_argument(
        "--parts", type=_list_of(int), default=[8, 4, 2, 1], metavar="N,N,...",
        help="1/N of the lines each",
    )  # fmt: skip


def overlap_options(parser: argparse.ArgumentParser) -> None:
    """Of `overlap`."""
    parser.add_argument(
        "--bmd-max-passes", type=int, default=100, metavar="N", help="without a cache"
    )


def rounds_options(parser: argparse.ArgumentParser) -> None:
    """Of `rounds`."""
    parser.add_argument(
        "--rounds", type=_list_of(_or_auto(int)), default=[1, 2, 3, 5, 10, "auto"],
        metavar="N,N,...",
    )  # fmt: skip
    parser.add_argument(
        "--read-rates", type=_list_of(_rate), default=[None, 1e8], metavar="R,R,...",
        help="bytes a second, or none; default: none,1e8",
    )  # fmt: skip


def cache_options(parser: argparse.ArgumentParser) -> None:
    """Of `cache`."""
    parser.add_argument(
        "--cache-frac", type=_list_of(_or_auto(float)), default=[0.0, 0.25, 0.5, 0.75, "auto"],
        metavar="F,F,...",
    )  # fmt: skip
    also_option(parser)


def also_option(parser: argparse.ArgumentParser) -> None:
    """Further texts."""
    parser.add_argument(
        "--also", type=Path, action="append", default=[], metavar="FILE", help="more data"
    )


def screening_options(parser: argparse.ArgumentParser) -> None:
    """Of `screening`."""
    parser.add_argument(
        "--gaps", type=_list_of(float), default=[1e-2, 1e-3, 1e-4, 1e-5, 1e-6], metavar="G,G,...",
        help="relative gaps at which safe rows are counted",
    )  # fmt: skip


def _family_loss(text: str) -> str:
    if text not in FAMILY:
        raise ValueError
    return text


def family_options(parser: argparse.ArgumentParser) -> None:
    """Of `family`."""
    parser.add_argument(
        "--losses", type=_list_of(_family_loss), default=list(FAMILY), metavar="LOSS,...",
        help=f"of {', '.join(FAMILY)}",
    )  # fmt: skip
    also_option(parser)


def tune_options(parser: argparse.ArgumentParser) -> None:
    """Of `tune`."""
    parser.add_argument(
        "--grid", default="0.001:10000:x10", metavar="GRID",
        help="values of C, of sbm tune; -C is that of the one training; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--folds", type=int, default=5, metavar="K")
    known = [loss for loss in ALL_LOSSES if loss != "one_class"]
    parser.add_argument("--loss", choices=known, default="hinge", help="default: %(default)s")
    parser.add_argument(
        "--alone", action="store_true", help="also train each model of each fold by itself"
    )


def plan_options(parser: argparse.ArgumentParser) -> None:
    """Of `plan`."""
    _costs(parser, [0.1])
    parser.add_argument(
        "--losses", type=_list_of(_any_loss), default=["hinge"], metavar="LOSS,...",
        help=f"of {', '.join(ALL_LOSSES)}",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=_positive(float), default=5.0, metavar="S", help="of sbm plan"
    )


def nightly_options(parser: argparse.ArgumentParser) -> None:
    """Of `nightly`."""
    parser.add_argument(
        "--mems", type=_list_of(str), default=["400MB"], metavar="SIZE,SIZE,...",
        help="of sbm train; nights have the first one; default: 400MB",
    )  # fmt: skip
    parser.add_argument(
        "--costs", type=_list_of(float), default=[], metavar="C,C,...", help="other values of C"
    )
    parser.add_argument("--nights", type=int, default=10, metavar="N")
    also_option(parser)


# ---------------------------------------------------------------------------------- several classes


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Type of an option that takes numbers above 0."""

    def read(text: str) -> Any:
        number = kind(text)
        if not number > 0:
            raise ValueError
        return number

    read.__name__ = f"{kind.__name__} above 0"
    return read


def _costs(parser: argparse.ArgumentParser, default: list[float]) -> None:
    parser.add_argument(
        "-C", dest="C", type=_list_of(_positive(float)), default=default, metavar="C,C,..."
    )


def _some_losses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--losses", type=_list_of(_loss), default=list(LOSSES), metavar="LOSS,...",
        help=f"of {', '.join(LOSSES)} (one against the rest)",
    )  # fmt: skip


def _any_loss(text: str) -> str:
    if text not in ALL_LOSSES:
        raise ValueError
    return text


def _loss(text: str) -> str:
    if text not in LOSSES:
        raise ValueError
    return text


def multiclass_options(parser: argparse.ArgumentParser) -> None:
    """Of `multiclass`."""
    _costs(parser, [0.1, 1.0])
    _some_losses(parser)
    parser.add_argument(
        "--e", type=_list_of(float), default=[0.1, 0.01, 0.001], metavar="E,E,...",
        help="LIBLINEAR's tolerances",
    )  # fmt: skip


def bmd_options(parser: argparse.ArgumentParser) -> None:
    """Of `bmd`."""
    _one_loss(parser, "crammer_singer")
    parser.add_argument(
        "--rounds", type=_list_of(_or_auto(int)), default=[10, "auto"], metavar="N,N,...",
        help="the first ones are also those of a single pass",
    )  # fmt: skip
    parser.add_argument(
        "--optimum", type=float, metavar="F", help="a lower bound of the optimum, if one is known"
    )


def _one_loss(parser: argparse.ArgumentParser, default: str) -> None:
    known = [*LOSSES, "squared_hinge"]
    parser.add_argument("--loss", choices=known, default=default, help="default: %(default)s")


def classes_options(parser: argparse.ArgumentParser) -> None:
    """Of `classes`."""
    _some_losses(parser)
    parser.add_argument(
        "--classes", type=_list_of(int), default=[10, 100, 1000, 3000], metavar="K,K,..."
    )
    for name, default, what in (
        ("--made-rows", 100_000, "rows of each text"),
        ("--features", 30_000, "features of each text"),
        ("--nnz", 20, "nonzeros of a row"),
        ("--passes", 2, "passes of each training"),
    ):
        parser.add_argument(name, type=_positive(int), default=default, metavar="N", help=what)
    also_option(parser)


def error_options(parser: argparse.ArgumentParser) -> None:
    """Of `multiclass-error`."""
    _costs(parser, [0.1, 1.0, 10.0])
    _some_losses(parser)
