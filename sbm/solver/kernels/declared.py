"""The types that the solver's kernels are compiled for; `sbm.compiled.declared` explains them.

Variants: `summed`, the steps of several processes are added up; `joint`, all classes of a row share
one loss; `packed`, columns are kept in few bytes.
"""

__all__ = ["TYPES"]

_ROWS = "starts:int64[1] lengths:int32[1] indices:int32[1] values:{values}"
_SEEN = "begins:int64[1] ends:int64[1] indices:int32[1] values:{values}"
_STEPS = "damping:float64[1]?summed damping_extra:float64 code:uint8[1]?summed"
_STEPS += " worsts:float64[1]"


def _one_variable(
    y: str, x_sum: str = "none", screened: str = "", searched: bool = True
) -> dict[str, str]:
    """Return the types of a loss with one variable per row; those of `y` that rest are screened."""

    def rows(y: str) -> str:
        return (
            f"starts:int64[1] lengths:int32[1] y:{y} weight:float64[1] indices:int32[1] "
            "values:{values} alpha:float64[1] w:float64[1] extra:float64[1] bias:float64 "
            "scale:float64 positive:int64 classify:bool cost_positive:float64 "
            "cost_negative:float64 squared:bool epsilon:float64 ahead:int64"
        )

    types = {
        "solve": f"""
            {rows(y)} home:int32[1] score:float32[1] rest:uint8[1] {_STEPS} turn:int64 rounds:int64
            chunk:int64 inner_tol:float64 stop:float64 dual_sum:float64 at:int32[1] state:uint64[1]
            awake:int32[1] order:int32[1] stats:float64[1]
        """,
        "certify": f"{rows(y)} w_alpha:float64[1] x_sum:{x_sum} sums:float64[1]",
    }
    if searched:
        types["search"] = f"{rows(y)} before:float64[1] w_before:float64[1] sums:float64[1]"
    if screened:
        types["screen"] = f"{rows(screened)} moving:bool[1]"
    return types


_CLASSES = """
    kind:int64?joint first:int64 costs:float64[1] cost_rest:float64 bias:float64 squared:bool
"""
_LISTED = "starts:int64[1] lengths:int32[1] y:int32[1] weight:float64[1]"
_COLUMNS = """
    starts:int64[1] rows:uint8[1]?packed|int32[1] places:int64[1]?packed values:{values}
    dense:int64 bias:float64
"""
_LOSS = "y:float64[1] weights:float64[1] kind:int64 positive:int64 cost:float64 other:float64"
_CODED = "W:float64[2] base:float64[2]"
_TABLES = """
    begin:int64[1] lines:int64[1] used:int64[1] head:{cell}[2] cells:{cell}[1]
    tags:uint64[1] top:int64[1]
"""
_SIZES = "begin:int64[1] lines:int64[1] head:{cell}[2] cells:{cell}[1]"
_READ = f"{_SIZES} tags:uint64[1] top:int64[1]"
_NONZEROS = "starts:int64[1] lengths:int32[1] indices:int32[1] values:{values}"
_LISTS = "offsets:int64[1] listed:int32[1]"
_BATCH = "ptr:int64[1] mid:int64[1] ranks:int32[1] parts:float64[1] first:int64[1] cls:int32[1]"

TYPES = {
    "svc": _one_variable("int32[1]", screened="int32[1]"),
    "logistic": _one_variable("int32[1]")
    | {"bend": "alpha:float64[1] way:float64[1] cost:float64 sums:float64[1]"},
    "svr": _one_variable("{y}", screened="float64[1]"),
    "one_class": _one_variable("none", x_sum="float64[1]", searched=False),
    "multiclass": {
        "solve": f"""
            {_LISTED} home:int32[1] indices:int32[1] values:{{values}} begin:int64[1]
            count:int32[1] outputs:int32[1] betas:float64[1] used:int64[1] held:int64[1]
            few:int32[2] n_few:int32[1] score:float32[1] W:float64[2] {_CLASSES}
            rest_turns:uint8[1] {_STEPS} turn:int64 held_limit:int64 rounds:int64 chunk:int64
            ahead:int64 inner_tol:float64 stop:float64 dual_sum:float64 at:int32[1]
            state:uint64[1] awake:int32[1] order:int32[1] scratch:float64[2]
            scratch_few:float64[2] columns:int32[1] shut:bool[1] shut_few:bool[1]
            stats:float64[1]
        """,
        "screen": f"""
            {_LISTED} indices:int32[1] values:{{values}} offsets:int64[1] outputs:int32[1]
            betas:float64[1] W:float64[2] {_CLASSES} ahead:int64 scratch:float64[2]
            moving:bool[1]
        """,
        "mark_free": """
            rows:int64[1] y:int32[1] weight:float64[1] begin:int64[1] count:int32[1]
            outputs:int32[1] betas:float64[1] kind:int64?joint first:int64 costs:float64[1]
            cost_rest:float64 squared:bool beta:float64[1] out:bool[1]
        """,
        "certify": f"""
            {_LISTED} indices:int32[1] values:{{values}} offsets:int64[1] outputs:int32[1]
            betas:float64[1] W:float64[2] W_alpha:float64[2] {_CLASSES} ahead:int64
            scratch:float64[2] columns:int32[1] sums:float64[1]
        """,
    },
    "lists": {
        "append": """
            first:int64 rows:int32[1] offsets:int64[1] l_outputs:int32[1] l_betas:float64[1]
            begin:int64[1] count:int32[1] outputs:int32[1] betas:float64[1] used:int64[1]
        """,
        "copy_lists": """
            begins:int64[1] counts:int64[1] outputs:int32[1] betas:float64[1] to_begins:int64[1]
            to_outputs:int32[1] to_betas:float64[1]
        """,
        "count_spilled": """
            keep:bool[1] home:int32[1] row:int32[1] at:int32[1] count:int32[1] offsets:int64[1]
            origin:int32[1] new_offsets:int64[1] sizes:int64[1]
        """,
        "spill": """
            keep:bool[1] home:int32[1] row:int32[1] at:int32[1] begin:int64[1] count:int32[1]
            outputs:int32[1] betas:float64[1] offsets:int64[1] l_outputs:int32[1]
            l_betas:float64[1] origin:int32[1] new_offsets:int64[1] new_outputs:int32[1]
            new_betas:float64[1] left_home:int32[1] left_row:int32[1] left_offsets:int64[1]
            left_outputs:int32[1] left_betas:float64[1]
        """,
        "keep_lists": """
            keep:bool[1] numbers:int32[1] begin:int64[1] count:int32[1] outputs:int32[1]
            betas:float64[1] used:int64[1]
        """,
    },
    "working_set": {
        "compact": """
            keep:bool[1] n:int64 decoded:int64 base:int64 starts:int64[1] lengths:int32[1] y:{y}
            weight:float64[1] score:float32[1] home:int32[1] row:int32[1]
            indices:int32[1] values:{values}
        """,
        "merge": """
            at:int32[1] parts:int64[1] firsts:int64[1] b_starts:int64[1] b_lengths:int32[1]
            b_y:{y} b_weight:float64[1] moving:bool[1] n_cached:int64 starts:int64[1]
            lengths:int32[1] y:{y} weight:float64[1] home:int32[1] row:int32[1]
        """,
        "refill": """
            at:int32[1] n_cached:int64 decoded:int64 b_starts:int64[1] b_lengths:int32[1]
            b_y:{y} b_weight:float64[1] starts:int64[1] lengths:int32[1] y:{y}
            weight:float64[1] home:int32[1] row:int32[1] indices:int32[1]
            values:{values}
        """,
        "spill": """
            keep:bool[1] home:int32[1] row:int32[1] at:int32[1] alpha:float64[1]
            b_alpha:float64[1] evicted_home:int32[1] evicted_row:int32[1]
            evicted_alpha:float64[1]
        """,
        "find_threshold": """
            bits:uint32[1] lengths:int32[1] max_rows:int64 max_nnz:int64 rows:int64[1]
            nonzeros:int64[1]
        """,
        "list_ties": "bits:uint32[1] key:int64 out:int64[1]",
        "mark": "bits:uint32[1] key:int64 keep:bool[1]",
    },
    "common": {
        "begin_round": "order:int32[1] chunk:int64 state:uint64[1] rest:uint8[1] awake:int32[1]",
    },
    "changes": {
        "count": "starts:int64[1] lengths:int32[1] indices:int32[1] counts:float64[2]",
        "learn": """
            averages:float64[2] squares:float64[1] own:float64[1] first:int64 last:int64
            rate:float64 spare:float64 damping:float64[1] most:float64
        """,
        "list_changed": """
            updated:int32[1] starts:int64[1] lengths:int32[1] indices:int32[1] code:uint8[1]
            frequent:int64 listed:int32[1] n:int64
        """,
        "take": f"places:int32[1] {_CODED} damping:float64[1] code:uint8[1] changes:float64[2]",
        "take_all": f"{_CODED} damping:float64[1] code:uint8[1] frequent:int64 own:float64[1]",
        "take_frequent": f"""
            places:int32[1] {_CODED} damping:float64[1] code:uint8[1] changes:float64[1]
        """,
        "receive": """
            places:int32[1] changes:float64[2] W:float64[2] code:uint8[1] union:int32[1] n:int64
            own:float64[1]
        """,
        "receive_frequent": f"""
            places:int32[1] {_CODED} code:uint8[1] changes:float64[1] squares:float64[1]
        """,
        "settle": f"union:int32[1] n:int64 {_CODED} code:uint8[1] squares:float64[1]",
        "settle_all": f"{_CODED} code:uint8[1] squares:float64[1]",
        "apply": f"union:int32[1] n:int64 {_CODED} share:float64",
    },
    "decision": {
        "assign": """
            starts:int64[1] lengths:int32[1] indices:int32[1] bits:{bits} n_folds:int64
            seed:int64 block:int64 first:int64 folds:uint8[1]
        """,
        "hold_out": f"{_ROWS} ids:int64[1] below:uint64 folds:uint8[1]",
        "decide": f"{_SEEN} W:float64[2] bias:float64[1] out:float64[2]",
        "decide_sparse": f"""
            {_SEEN} W_ends:int64[1] columns:{{columns}} weights:float64[1] bias:float64[1]
            out:float64[2]
        """,
        "best": "scores:float64[2] out:int32[2]",
    },
    "tables": {
        "lay_out": _TABLES,
        "squeeze": """
            order:int64[1] begin:int64[1] lines:int64[1] used:int64[1] cells:{cell}[1]
            tags:uint64[1] top:int64[1] spare:{cell}[1] spare_tags:uint64[1]
        """,
        "norms": f"{_SIZES} out:float64[1]",
        "add_up": f"{_READ} unit:float64 sums:float64[2]",
        "count": f"{_READ} feature_of:int32[1] counts:int64[1]",
        "take": f"""
            order:int64[1] columns:int32[1] {_READ} feature_of:int32[1] first:int64 end:int64
            ends:int64[1] outs:int32[1] values:float64[1]
        """,
    },
    "batches": {
        "count_features": """
            lengths:int32[1] starts:int64[1] indices:int32[1] counts:int64[1]
        """,
        "sort_nonzeros": f"{_NONZEROS} rank:int32[1] keys:int32[1]",
        "measure": """
            starts:int64[1] lengths:int32[1] values:{values} y:int32[1] weight:float64[1]
            costs:float64[1] bias:float64 squares:float64[1] own_costs:float64[1]
        """,
        "list_rows": """
            n:int64 seed:uint64 skip:uint8[1] squares:float64[1] costs:float64[1]
            order:int32[1] out:int32[1]
        """,
        "gather": f"""
            order:int32[1] most:int64 {_NONZEROS} y:int32[1] rank:int32[1] bias:float64 width:int64
            {_LISTS} rows:int32[1] {_BATCH} at:int64[1]
        """,
        "decide": f"""
            {_TABLES} own:int32[1] n:int64 rows:int32[1] {_BATCH} squares:float64[1] z:float64[1]
            h:float64[1] seen:int64[1] stamp:int64[1] before:int64[1] row_of:int32[1]
            dense:float64[1] gram:float64[1] is_known:int32[1]
        """,
        "solve": """
            n:int64 rows:int32[1] first:int64[1] at:int64[1] z:float64[1] h:float64[1] kind:int64
            squares:float64[1] costs:float64[1] listed:int32[1] betas:float64[1] small:float64
            rest:uint8[1] skip:uint8[1] loss:float64[1] new:float64[1] steps:float64[1]
            stats:float64[1]
        """,
        "apply": f"{_TABLES} own:int32[1] n:int64 done:int64 {_BATCH} steps:float64[1]",
        "visit": f"""
            {_TABLES} own:int32[1] order:int32[1] most:int64 {_NONZEROS} y:int32[1] rank:int32[1]
            bias:float64 {_LISTS} betas:float64[1] kind:int64 squares:float64[1] costs:float64[1]
            small:float64 rest:uint8[1] skip:uint8[1] rows:int32[1] {_BATCH} at:int64[1]
            z:float64[1] h:float64[1] steps:float64[1] seen:int64[1] stamp:int64[1] before:int64[1]
            row_of:int32[1] dense:float64[1] gram:float64[1] is_known:int32[1] loss:float64[1]
            new:float64[1] state:int64[1] stats:float64[1]
        """,
        "add_rows": f"""
            {_TABLES} own:int32[1] done:int64 {_NONZEROS} y:int32[1] rank:int32[1] bias:float64
            {_LISTS} betas:float64[1] factors:float64[1] ranks:int32[1] parts:float64[1]
        """,
        "dot_rows": f"""
            {_NONZEROS} rank:int32[1] bias:float64 weights:float64[1] out:float64[1]
        """,
        "look_at_lists": f"""
            n_classes:int64 {_LISTS} betas:float64[1] y:int32[1] defaults:float64[1]
            is_fixed:bool[1] sums:float64[1]
        """,
        "own_values": f"""
            {_TABLES} own:int32[1] {_NONZEROS} y:int32[1] rank:int32[1] bias:float64 {_LISTS}
            wanted:bool[1] ranks:int32[1] parts:float64[1] z_own:float64[1] z:float64[1]
        """,
        "merge": f"""
            {_LISTS} betas:float64[1] y:int32[1] defaults:float64[1] stays:bool[1]
            losses:float32[1] keep:float64
            found_ends:int64[1] found:int32[1] found_losses:float32[1] new_offsets:int64[1]
            new_listed:int32[1] new_betas:float64[1] new_losses:float32[1] is_new:bool[1]
        """,
        "mark_wanted": """
            kind:int64 offsets:int64[1] losses:float32[1] errors:float64[1] is_wanted:bool[1]
        """,
        "sum_up": f"""
            kind:int64 n_classes:int64 squares:float64[1] costs:float64[1] y:int32[1]
            defaults:float64[1] totals:float64[1] {_LISTS} betas:float64[1] errors:float64[1]
            rounding:float64 z_own:float64[1] is_wanted:bool[1]
            is_new:bool[1] z:float64[1] counts:int32[1] found_ends:int64[1] bounds:float64[1]
            most_found:float32[1] sums:float64[1]
        """,
    },
    "scoring": {
        "prepare": f"""
            {_NONZEROS} rank:int32[1] bias:float64 n_dense:int64 largest:float64
            squares:float64[1] sizes:float64[1] ends:int64[1] mids:int64[1] ranks:int32[1]
            parts:float32[1] errors:float64[1]
        """,
        "fill_tile": f"""
            {_READ} first:int64 last:int64 scale:float64 tile:float32[2] ends:int64[1]
            places:uint8[1] weights:float32[1]
        """,
        "score": f"""
            some:int32[1] offset:int64 first:int64 last:int64 own:int32[1] classes_of:int32[1]
            y:int32[1] scale:float64 tile:float32[2] tile_ends:int64[1] places:uint8[1]
            weights:float32[1] sizes:float64[1] ends:int64[1] mids:int64[1] ranks:int32[1]
            parts:float32[1] errors:float64[1] z_own:float64[1]
            signs:float32[1] least:float64 {_LISTS}
            losses:float32[1] cursor:int64[1] best:int32[2] best_losses:float32[2] counts:int32[1]
            bounds:float64[1] z:float32[1]
        """,
    },
    "newton": {
        "add_rows": f"{_ROWS} bias:float64 r:float64[1] out:float64[1]",
        "multiply": f"{_ROWS} bias:float64 r:float64[1] v:float64[1] out:float64[1]",
        "add_squares": f"{_ROWS} bias:float64 r:float64[1] out:float64[1]",
        "gram_of": (
            f"{_ROWS} bias:float64 r:float64[1] place:int32[1] H:float64[2] own:int32[1] "
            "x:float64[1]"
        ),
        "gram": f"""
            {_ROWS} bias:float64 r:float64[1] H:float64[2] dense:float64[2] weight:float64[1]
        """,
        "factorize": "H:float64[2]",
        "solve": "L:float64[2] x:float64[1]",
    },
    "l1": {
        "visit": f"""
            {_ROWS} bias:float64 {_LOSS} w:float64[1] z:float64[1] g:float64[1]
            rising:float64[1]
        """,
        "center": f"z:float64[1] {_LOSS} sums:float64[1]",
        "dual": f"z:float64[1] {_LOSS} s:float64 up:float64 down:float64 sums:float64[1]",
        "linearize": f"""
            z:float64[1] step:float64[1] length:float64 {_LOSS} theta:float64[1]
            model:float32[1] first:int64 end:int64 sums:float64[1]
        """,
        "count": f"""
            {_ROWS} bias:float64 first:int64 counts:int64[1] squares:float64[1]
            sizes:int64[1] last:int32[1]?packed
        """,
        "collect": f"""
            {_ROWS} first:int64 column:int32[1] ends:int64[1] places:int64[1]?packed
            last:int32[1]?packed rows:uint8[1]?packed|int32[1] kept:{{values}}
        """,
        "differentiate": f"{_COLUMNS} theta:float64[1] g:float64[1] first:int64 end:int64",
        "curvatures": f"{_COLUMNS} some:int32[1] H:float32[1] ridge:float64 h:float64[1]",
        "multiply": f"{_COLUMNS} some:int32[1] d:float64[1] out:float64[1]",
        "products": f"{_COLUMNS} some:int32[1] e:{{step}} by:int64 out:float64[1]",
        "gram": f"""
            {_COLUMNS} some:int32[1] H:float32[1] first:int64 by:int64 column:float64[1]
            G:float64[2]
        """,
        "sweep": f"""
            {_COLUMNS} free:int64 model:float32[1] g:float64[1] w:float64[1] d:float64[1]
            h:float64[1] ridge:float64 lasso:float64 box:float32[1] active:int32[1] m:int64
            limit:float64 gain:float32[1] gains:float32[1] sums:float64[1]
        """,
        "descend": """
            G:float64[2] r:float64[1] w:float64[1] d:float64[1] box:float32[1]
            lasso:float64[1] ridge:float64[1] tol:float64 most:int64 left:float64[1]
        """,
        "movers": """
            starts:int64[1] active:int32[1] m:int64 gain:float32[1] share:float64 room:float64
            grades:float64[2] out:int32[1]
        """,
        "near": """
            g:float64[1] w:float64[1] free:int64 ridge:float64 lasso:float64 share:float64
            active:int32[1] sums:float64[1]
        """,
    },
}
