"""The types that the store's kernels are compiled for; `sbm.compiled.declared` explains them."""

__all__ = ["TYPES"]

TYPES = {
    "rows": {
        "encode_rows": "lengths:int32[1] indices:int32[1] symbols:uint8[1] bits:uint8[1]",
        "encode_numbers": "numbers:int32[1] symbols:uint8[1] bits:uint8[1]",
        "decode_rows": """
            symbols:uint8[1] bits:uint8[1] lengths:int32[1] n_features:int64 out:int32[1]
        """,
        "decode_numbers": "symbols:uint8[1] bits:uint8[1] limit:int64 out:int32[1]",
        "gather_rows": """
            starts:int64[1] indices:int32[1] values:{values} rows:int64[1] lengths:int32[1]
            out_indices:int32[1] out_values:{values} words:uint64[1] counts:int64[1]
        """,
    },
    "values": {
        "find_codes": "words:{words} table:{words} slots:int32[1] codes:uint8[1]",
        "look_up": "codes:uint8[1] table:{words} n_distinct:int64 words:{words}",
        "split_planes": "words:{words} planes:uint8[2]",
        "join_planes": "planes:uint8[2] exponent:int64 words:{words}",
    },
    "alphas": {
        "count_free": "alpha:float64[1] resting:float64[1]",
        "pack": "alpha:float64[1] resting:float64[1] codes:uint8[1] free:float64[1]",
        "unpack": "codes:uint8[1] free:float64[1] resting:float64[1] alpha:float64[1]",
    },
    "sorting": {"sort_rows": "indptr:int64[1] ids:int64[1] values:float64[1]"},
}
