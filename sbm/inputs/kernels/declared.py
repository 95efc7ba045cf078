"""The types that the kernels of readers are compiled for; see `sbm.compiled.declared`."""

__all__ = ["TYPES"]

TYPES = {
    "text": {
        "parse": """
            text:uint8[1] size:int64 limit:float64 skip:bool need:int64 exact:bool is_plain:bool
            labels:float64[1] indptr:int64[1] ids:int64[1] values:{numbers} errors:int64[2]
            hard:int64[2] notes:int64[1] bits:uint64[1]
        """,
    },
    "names": {
        "parse": """
            text:uint8[1] size:int64 limit:float64 label_limit:float64 mask:int64 skip:bool
            need:int64 exact:bool labels:float64[1] weights:float64[1] indptr:int64[1]
            ids:int64[1] values:float64[1] names:int64[2] named:uint8[1] letters:uint8[1]
            pairs:uint8[2] errors:int64[2] notes:int64[1] bits:uint64[1]
        """,
        "write_names": "text:uint8[1] places:int64[2] ends:int64[1] out:uint8[1]",
        "hash_names": "text:uint8[1] ends:int64[1] mask:int64 out:int64[1]",
    },
    "ids": {
        "intern": """
            keys:int64[1] begin:int64 direct:int32[1] slots:int32[1] slot_keys:int64[1]
            factor:uint64 shift:uint64 seen:int64[1] n_seen:int64 insert:bool out:int32[1]
        """,
        "look_up": "keys:int64[1] direct:int32[1] out:int32[1] unknown:int32[1]",
        "rehash": """
            seen:int64[1] n_seen:int64 slots:int32[1] slot_keys:int64[1] factor:uint64
            shift:uint64
        """,
        "count": "codes:int32[1] counts:int32[1] most:int64",
        "drop_unknown": "indptr:int64[1] codes:int32[1] values:{values}",
    },
    "lines": {
        "write_lines": """
            firsts:float64[1] lengths:int32[1] ids:int64[1] values:float64[1] precision:int64
            others:uint8[1] other_ends:int64[1] next_other:int64 out:uint8[1]
        """,
        "write_words": """
            codes:int32[2] letters:uint8[1] ends:int64[1] between:int64 out:uint8[1]
        """,
    },
    "cells": {
        "find_cells": """
            text:uint8[1] size:int64 separator:int64 quote:int64 width:int64 begins:int32[2]
            ends:int32[2] stops:int64[1] found:int64[1] lines:int64[1]
        """,
        "join_quotes": "text:uint8[1] quote:int64 begins:int32[2] ends:int32[2] n:int64",
        "gather": "text:uint8[1] begins:int32[1] ends:int32[1] offsets:int32[1] out:uint8[1]",
        "read_numbers": """
            text:uint8[1] begins:int32[1] ends:int32[1] point:int64 is_plain:bool out:float64[1]
            rest:int64[1]
        """,
        "read_flags": """
            text:uint8[1] begins:int32[1] ends:int32[1] out:float64[1] rest:int64[1]
        """,
        "read_dates": "text:uint8[1] begins:int32[1] ends:int32[1] out:int64[1] rest:int64[1]",
        "split_dates": "times:int64[1] years:float64[1] parts:int64[2]",
        "are_digits": "text:uint8[1] begins:int32[1] ends:int32[1]",
        "find_words": """
            text:uint8[1] begins:int32[1] ends:int32[1] prefix:uint8[1] seed:uint64 factor:uint64
            slots:uint64[1] names:uint8[1] name_ends:int64[1] missing:int64 digits:bool
            out:int32[1] rest:int64[1] other:int64[1]
        """,
        "join_names": """
            text:uint8[1] begins:int32[1] ends:int32[1] prefix:uint8[1] missing:uint8[1]
            out:uint8[1] offsets:int64[1] n:int64
        """,
    },
    "words": {
        "intern": """
            text:uint8[1] begins:int64[1] ends:int64[1] begin:int64 seed:uint64 factor:uint64
            slots:uint64[1] names:uint8[1] name_ends:int64[1] n_names:int64 insert:bool
            out:int32[1]
        """,
        "rehash": "before:uint64[1] slots:uint64[1]",
        "assemble": """
            numbers:float64[2] number_codes:int32[1] missing_codes:int32[1] codes:int32[2]
            crossed:float64[2] limit:float64 exact:float64 ids:int64[1] indptr:int64[1]
            out_ids:int64[1] out_values:{numbers}
        """,
    },
}
