"""The figures of a training: what the log says of a pass, and the report of the whole."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sbm.jobs.engine.pace import passes_left
from sbm.jobs.machine.process import peak_bytes, resident_bytes
from sbm.solver.step import Totals

if TYPE_CHECKING:
    from sbm.jobs.training.state import Training

__all__ = ["final_report", "pass_record"]

_LEAST = 1e-300  # of what is divided by
_MOST = 1e300  # JSON has no infinity


def pass_record(training: Training, done: Totals, is_whole: bool) -> dict[str, Any]:
    """Return what there is to say of a pass that ended.

    Parameters
    ----------
    training : Training
    done : Totals
        Of the pass.
    is_whole : bool
        Whether every row was seen; only then the gap is known.

    Returns
    -------
    dict
        A line of the log, but for the certificate and the test.
    """
    ledger, store, solvers = training.ledger, training.job.store, training.solvers
    seconds, dual = training.spent(), training.dual
    scale = max(abs(dual), _LEAST)
    per_second = done.visits / max(seconds["solve"], 1e-9)
    return {
        "pass": ledger.passes,
        "rounds": ledger.rounds[-1],
        "elapsed": training.elapsed(),
        "seconds": seconds,
        "rows_per_second": per_second,
        "nnz_per_second": per_second * store.nnz / store.n_rows,
        "dual": dual,
        "estimated_gap": done.gap if is_whole else None,
        "estimated_relative_gap": min(done.gap / scale, _MOST) if is_whole else None,
        "passes_left": passes_left([gap / scale for gap in ledger.gaps], training.settings.tol),
        "visits": done.visits,
        "updates": done.updates,
        "free_rows": ledger.free_rows,
        "cache_rows": sum(s.working.cache_rows for s in solvers),
        "cached_rows": sum(s.working.n_cached for s in solvers),
        "cached_free": sum(s.count_free() for s in solvers),
        "cached_zero": sum(s.working.count_zero() for s in solvers),
        "cached_ages": _count_ages(training),
        "cache_hits": done.cached,
        "rows_at_rest": done.rest,
        "visits_cut_short": done.starved,
        "bytes_read": training.engine.reader.bytes_read,
        "resident_bytes": resident_bytes(),
    }


def _count_ages(training: Training) -> list[int]:
    """Return how many cached rows came in the last pass, the one before it, and so on."""
    counts = [solver.working.count_ages() for solver in training.solvers]
    return [sum(some) for some in itertools.zip_longest(*counts, fillvalue=0)]


def final_report(training: Training) -> dict[str, Any]:
    """Return the figures of a training that has come to its end; see `sbm.train`."""
    ledger, certificate = training.ledger, training.ledger.certificate
    assert certificate is not None
    return {
        "primal": certificate.primal,
        "dual": certificate.dual,
        "gap": certificate.gap,
        "relative_gap": certificate.relative_gap,
        "converged": certificate.relative_gap <= training.settings.tol,
        "passes": ledger.passes,
        "rounds": ledger.rounds,
        "updates": ledger.totals.updates,
        "visits": ledger.totals.visits,
        "visits_cut_short": ledger.cut_short,
        "seconds": {"total": training.elapsed(), **asdict(training.seconds)},
        "bytes_read": training.engine.reader.bytes_read,
        "peak_rss_bytes": peak_bytes(),
        "n_support": certificate.n_support,
        "n_free": certificate.n_free,
        "drift": certificate.drift,
    }
