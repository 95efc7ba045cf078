"""Reading: sources parsed in threads and handed on, once or twice."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from sbm.errors import MemoryPlanError, SettingsError
from sbm.jobs.dealing.coding import CodedText
from sbm.jobs.dealing.options import SplitOptions
from sbm.jobs.machine.memory import INTERPRETER
from sbm.jobs.progress import Progress
from sbm.settings import format_size
from sbm.store.buffers import Buffers
from sbm.store.formats import convert_inputs
from sbm.store.idtable import IdTable
from sbm.store.parsing import ParsedText
from sbm.store.text import PIECE, Source

__all__ = ["read_sources", "refuse_once_only", "require_second_reading"]


class Taker(Protocol):
    """A dealer, or what counts before it."""

    ids: IdTable
    n_rows: int

    def add(self, text: CodedText, text_share: float) -> None: ...


def read_sources(
    what: str,
    sources: list[Source],
    taker: Taker,
    options: SplitOptions,
    pool: ThreadPoolExecutor,
    progress: Progress,
    only_known: bool = False,
) -> None:
    """Parse everything and hand it over.

    Parameters
    ----------
    what : str
        What progress calls it.
    sources, options, pool, progress
        Of the split.
    taker : Taker
        Is given the pieces, in order.
    only_known : bool
        Leave out the features that are in no table.
    """
    known = all(s.size for s in sources)
    total = sum(s.size for s in sources)
    progress.start(what, total if known else None)
    buffers = Buffers(PIECE)

    def coded(parsed: ParsedText) -> CodedText:
        text = CodedText.of(parsed, taker.ids, buffers)
        return text.without_unknown(taker.ids, buffers) if only_known else text

    pieces = convert_inputs(
        sources, pool, coded, ahead=options.threads + 1, dtype=options.dtype, skip=options.skip,
        largest_line=max(PIECE, (options.mem - INTERPRETER) // 12),
    )  # fmt: skip
    with contextlib.closing(pieces):
        for _, text in pieces:
            done = sum(s.parsed for s in sources)
            if len(text.labels):
                taker.add(text, done / total if known else 0.0)
            text.give_back(buffers)
            progress.advance(done, rows=taker.n_rows)
    progress.finish()


def refuse_once_only(sources: list[Source]) -> None:
    """Notice what cannot be read twice, before the first reading.

    Raises
    ------
    SettingsError
        There is something.
    """
    for source in sources:
        if source.chunks is not None and not source.comes_again:
            raise SettingsError(
                "an iterator of chunks can be read only once, and min_count reads twice; give a "
                "list, or an object whose __iter__ begins anew"
            )
        if not source.comes_again:
            raise SettingsError(
                f"{source.shown} can be read only once, and --min-count reads twice; "
                "write the text to a file first"
            )


def require_second_reading(sources: list[Source], options: SplitOptions) -> None:
    """Notice that memory ran out when something was gone that is read only once."""
    for source in sources:
        if source.read and not source.comes_again:
            raise MemoryPlanError(
                f"memory ran out while reading {source.name}, with --mem "
                f"{format_size(options.mem)}, and it cannot be read again; give less --mem than "
                "that, or raise the limit on this process",
                options.mem,
            )
