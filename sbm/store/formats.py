"""What inputs are made of, and who reads it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sbm.store.chunks import read_chunks
from sbm.store.libsvm import ParsedText
from sbm.store.pieces import convert_pieces
from sbm.store.text import Source, convert_sources

__all__ = ["convert_inputs"]

T = TypeVar("T")
_BYTES_A_NONZERO = 8  # of a line of text, about


def convert_inputs(
    sources: Sequence[Source],
    pool: ThreadPoolExecutor,
    convert: Callable[[ParsedText], T],
    *,
    ahead: int,
    dtype: str = "float32",
    skip: bool = False,
    largest_line: int = 1 << 30,
) -> Iterator[tuple[Source, T]]:
    """Read sources of any format, convert their pieces in threads, and yield them in order.

    Parameters and errors are those of `convert_sources`.
    """
    for is_text, group in itertools.groupby(sources, lambda source: source.chunks is None):
        if is_text:
            yield from convert_sources(
                list(group), pool, convert, ahead=ahead, dtype=dtype, skip=skip,
                largest_line=largest_line,
            )  # fmt: skip
            continue
        for source in group:
            pieces = read_chunks(source, dtype=dtype, largest_row=largest_line // _BYTES_A_NONZERO)
            yield from convert_pieces(source, pieces, pool, convert, ahead=ahead, skip=skip)
