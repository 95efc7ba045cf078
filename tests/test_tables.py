"""Wide tables of Parquet, Feather and CSV files, and data frames."""

import datetime
import subprocess
import sys

import numpy as np
import pytest
from helpers import Passes, features_of, store_rows
from inside import Batch, Source, patch, read_rows
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

import sbm
from sbm.errors import DataError, SettingsError

pa = pytest.importorskip("pyarrow", reason="needs the extra arrow")
pq, feather = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.feather")
csv = pytest.importorskip("pyarrow.csv")

RNG = np.random.default_rng(5)
N = 400
COLOURS = np.array(["red", "grün", "blue, dark"])
SETTINGS = {"loss": "log_loss", "tol": 1e-8, "max_passes": 300, "C": 0.5}
OPTIONS = {"dtype": "float64", "categorical": ["zip"], "exclude": ["id"]}


def people(n=N, first=0):
    """A table of numbers, a boolean, strings, a category, missing cells, and words as labels."""
    random = np.random.default_rng(first)
    size = np.round(random.normal(size=n), 3)
    colour = COLOURS[random.integers(0, 3, n)]
    score = size + (colour == "red") + random.normal(size=n) * 0.3
    return pa.table({
        "id": np.arange(first, first + n),
        "size": pa.array(size, mask=random.random(n) < 0.1),
        "old": random.random(n) < 0.5,
        "colour": pa.array(colour).dictionary_encode(),
        "zip": random.integers(0, 5, n) + 90000,
        "city": pa.array(np.array(["Rom", "Bonn"])[random.integers(0, 2, n)]).cast("large_string"),
        "w": random.choice([0.5, 1.0, 2.0], n),
        "label": pa.array(np.where(score > 0.3, "yes", "no")),
    })  # fmt: skip


def in_turn(data, folder, **options):
    """Rows of a store of one block, with the weights."""
    name = folder / "turn.sbm"
    sbm.split(data, name, shuffle=False, blocks=1, force=True, **{**OPTIONS, **options})
    return store_rows(name)


def write_folder(folder, parts=3):
    (folder / "people" / "more").mkdir(parents=True)
    for k in range(parts):
        place = folder / "people" / ("more" if k else "")
        pq.write_table(people(first=k * N), place / f"part-{k}.parquet", row_group_size=90)
    return folder / "people"


def test_formats_give_the_same_rows(tmp_path):
    table = people()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=50)
    feather.write_feather(table, tmp_path / "a.feather")
    plain = table.set_column(3, "colour", table["colour"].cast("string"))
    csv.write_csv(plain.set_column(2, "old", table["old"].cast("int8")), tmp_path / "a.csv")
    expected = in_turn(tmp_path / "a.csv", tmp_path)
    assert len(expected[0]) == N
    assert sum(len(features) for _, features in expected[0]) > 3 * N
    for data in (tmp_path / "a.parquet", tmp_path / "a.feather", table):
        assert in_turn(data, tmp_path) == expected
    with pytest.MonkeyPatch.context() as context:
        patch(context, "matrices.PIECE", 600)
        assert in_turn(tmp_path / "a.parquet", tmp_path) == expected


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_data_frames_train_and_predict(tmp_path, library):
    table = people()
    if library == "pandas":
        pytest.importorskip("pandas", reason="not installed")
        frame = table.to_pandas()
    elif library == "polars":
        frame = pytest.importorskip("polars", reason="not installed").from_arrow(table)
    else:
        frame = table
    if library != "pyarrow":
        assert in_turn(frame, tmp_path) == in_turn(table, tmp_path)
    options = {**OPTIONS, "weight": "w"}
    model, report = sbm.train(frame, tmp_path / "m.model", SETTINGS, **options)
    assert report["converged"]
    pq.write_table(table, tmp_path / "a.parquet")
    sbm.predict(model, tmp_path / "a.parquet", tmp_path / "out")
    labels = model.predict(frame)
    assert labels.tolist() == (tmp_path / "out").read_text().split()
    assert (labels == np.array(table["label"])).mean() > 0.8
    assert model.predict_proba(table.drop_columns(["label", "w"])).shape == (N, 2)
    with pytest.warns(UserWarning, match=r"missing 'colour'; unknown 'Colour'"):
        model.predict(table.rename_columns([n.replace("colo", "Colo") for n in table.column_names]))
    with pytest.warns(UserWarning, match=r"X has no column names, .* on a table.*columns"):
        model.predict(np.ones((2, 3)))
    if library == "pandas":
        with pytest.raises(DataError, match=r"dtype object.*give the data frame"):
            sbm.train((frame, labels), tmp_path / "m.model")


def test_bytes_that_a_thread_counts_are_not_lost(monkeypatch):
    """Models of the same CSV file differed in the size of the file."""
    patch(monkeypatch, "matrices.PIECE", 1000)
    source, n = Source("d.csv"), 1000
    made = Batch(np.ones(n), np.arange(n + 1), np.ones(n, np.int64), np.ones(n))
    counted = 0
    for _ in read_rows(lambda *_: (some for some in [made]), source, largest_row=n):
        source.read += 10  # as the thread does that reads ahead
        counted += 10
    assert source.read == counted > 10


def test_missing_header_is_noticed(tmp_path):
    for names, is_noticed in (("5.1,3.5,setosa", True), ("age,2020,kind", False)):
        (tmp_path / "a.csv").write_text(f"{names}\n4.9,3,versicolor\n")
        with pytest.raises(DataError, match=r"a\.csv:1: found no column 'label'") as error:
            sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm")
        assert ("first line" in str(error.value)) == is_noticed


def test_optimum_is_that_of_scikit_learn(tmp_path):
    """One-hot columns for words, no intercept; missing numbers are 0."""
    table = people()
    model, report = sbm.train(table, tmp_path / "m.model", SETTINGS, weight="w", **OPTIONS)
    rows = [
        {
            "size": row["size"] if row["size"] is not None else 0.0, "old": float(row["old"]),
            **{name: str(row[name]) for name in ("colour", "zip", "city")},
            **({} if row["size"] is not None else {"size": "(missing)"}),
        }
        for row in table.to_pylist()
    ]  # fmt: skip
    X = DictVectorizer()
    theirs = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=10_000)
    theirs.fit(X.fit_transform(rows), np.array(table["label"]), sample_weight=np.array(table["w"]))
    ours = dict(zip(list(model.names), model.W[:, 0], strict=True))
    assert {*ours} == {*X.feature_names_}
    expected = dict(zip(X.feature_names_, theirs.coef_[0], strict=True))
    assert ours == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert report["relative_gap"] <= 1e-8
    assert model.classes_.tolist() == theirs.classes_.tolist()


def test_folder_of_parquet_is_read(tmp_path):
    folder = write_folder(tmp_path)
    files = sorted(folder.glob("**/*.parquet"))
    settings = {**SETTINGS, "threads": 1}
    whole, _ = sbm.train(folder, tmp_path / "a.model", settings, **OPTIONS)
    listed, _ = sbm.train(files, tmp_path / "b.model", settings, **OPTIONS)
    globbed, _ = sbm.train(f"{folder}/**/*.parquet", tmp_path / "c.model", settings, **OPTIONS)
    assert whole.info["rows"] == 3 * N
    titles = ["more/part-1.parquet", "more/part-2.parquet", "part-0.parquet"]
    assert [s["name"] for s in whole.info["sources"]] == [f"people/{title}" for title in titles]
    for other in (listed, globbed):
        np.testing.assert_array_equal(whole.W, other.W)
    report = sbm.predict(whole, folder)
    assert (report["rows"], report["warnings"]) == (3 * N, [])
    sbm.split(files[:2], tmp_path / "a.sbm", **OPTIONS)
    assert sbm.split(files[2], tmp_path / "a.sbm", append=True)["rows_in_all"] == 3 * N
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="without Parquet"):
        sbm.split(tmp_path / "empty", tmp_path / "e.sbm")


def test_files_of_the_same_name_are_told_apart(tmp_path):
    for day in (1, 2, 3):
        (tmp_path / f"clicks/day={day}").mkdir(parents=True)
        pq.write_table(people(first=day * N), tmp_path / f"clicks/day={day}/part-0.parquet")
    store, folder = tmp_path / "a.sbm", tmp_path / "clicks"

    def names():
        return [source["name"] for source in sbm.info(store)["sources"]]

    for given, above in (
        (folder, "clicks/"), (f"{folder}/*", ""), (f"{folder}/*/*.parquet", ""),
        ([folder / f"day={day}" for day in (1, 2, 3)], ""),
    ):  # fmt: skip
        sbm.split(given, store, force=True, **OPTIONS)
        assert names() == [f"{above}day={day}/part-0.parquet" for day in (1, 2, 3)]
    sbm.split([folder / "day=1"], store, force=True, **OPTIONS)
    sbm.split([folder / "day=2"], store, append=True)
    sbm.expire(store, sources=folder / "day=1/part-0.parquet")
    assert names() == ["day=2/part-0.parquet"]
    with pytest.raises(DataError, match="already dropped"):
        sbm.expire(store, sources="day=1/part-0.parquet")
    stages = Passes()
    sbm.train(
        folder, tmp_path / "b.model", {**SETTINGS, "max_passes": 1}, progress=stages, **OPTIONS
    )
    assert any(stage.startswith(f"{folder}: {3 * N:,} rows") for stage in stages.stages)


def change(table, **columns):
    for name, column in columns.items():
        table = table.drop_columns([name]) if name in table.column_names else table
        table = table if column is None else table.append_column(name, column)
    return table


WORDS = pa.array(["x"] * N)
LISTS = pa.array([[1.0]] * N)
REFUSED = [
    ({"city": None}, {}, r"found no column city, which earlier data have.*exclude city"),
    (
        {"label": pa.array([1] * N)},
        {},
        r"row 1 has the label 1, but the labels of the files before are no, yes",
    ),
    ({"label": None}, {}, r"found no column 'label' for label among 'id'"),
    ({"extra": WORDS}, {"strict": True}, r"columns differ from those of .*: unknown 'extra'"),
    ({}, {"weight": "v"}, r"found no column 'v' for weight among 'id', 'size'"),
    ({}, {"exclude": ["citi"]}, r"no column 'citi' for exclude; did you mean 'city'"),
    ({}, {"categorical": ["v"]}, r"no column 'v' for categorical"),
    ({}, {"weight": "city"}, r"row 1: found '\w+' as the weight, where a number"),
    (
        {"size": pa.array([np.inf] + [1.0] * (N - 1))},
        {},
        r"found inf in column size, but only finite",
    ),
    ({"label": pa.array([None] + ["yes"] * (N - 1))}, {}, r"row 1: found '' where a label"),
    ({}, {"hash_bits": 2}, r"hash_bits is 2, but features of tables are not hashed"),
    ({}, {"column": {"colour": "vector"}}, r"colour cannot be read as vector \(\d distinct words"),
]


@pytest.mark.parametrize("form", ["frame", "csv", "parquet"])
def test_missing_column_is_looked_for(tmp_path, form):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({**{f"feature_{k}": [0, 1] for k in range(60)}, "clicked": [0, 1]})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    rows = table if form == "frame" else tmp_path / f"t.{form}"
    for options, facts in (
        ({"label": "click"}, "no column 'click' for label; did you mean 'clicked'"),
        ({"label": "Feature_7"}, "did you mean 'feature_7'"),
        ({"label": "zzz"}, "61 columns: 'feature_0', .*, ..., .*, 'clicked'$"),
        ({}, "no column 'label' or 'y' or 'target' among 61 columns: .*'clicked'; .* label$"),
        ({"label": "clicked", "weight": "feature_5 "}, "weight; did you mean 'feature_5'"),
        ({"label": "clicked", "exclude": ["feature9"]}, "exclude; did you mean 'feature_9'"),
        ({"label": "clicked", "categorical": ["feature_1, feature9"]}, "mean 'feature_9'"),
        ({"label": "clicked", "column": ["feature_1*=categry"]}, "did you mean 'category'"),
    ):
        with pytest.raises((DataError, SettingsError), match=facts):
            sbm.split(rows, tmp_path / "t.sbm", **options)


@pytest.mark.parametrize(
    ("cells", "facts"),
    [
        ([1, "x"], "column a holds int and str; convert"),
        (["x", 1.5], "column a holds str and float"),
        ([[1], 2], "column a holds list and int"),
        ([True, 2], "column a holds bool and int"),
        ([10**30, 1], r"column a holds int \(.*too large"),
        ([1j, 2j], "column a holds complex"),
        ([datetime.date(2020, 1, 1), "x"], "column a holds date and str"),
    ],
)  # fmt: skip
def test_column_of_mixed_cells_is_named(tmp_path, cells, facts):
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(cells, dtype=object)
    table = pandas.DataFrame({"ok": [1, 2], "a": column, "label": [0, 1]})
    with pytest.raises(DataError, match=facts):
        sbm.split(table, tmp_path / "t.sbm")
    twice = pandas.concat([table[["ok", "label"]], table[["ok"]]], axis=1)
    with pytest.raises(DataError, match="column ok twice"):
        sbm.split(twice, tmp_path / "t.sbm")


@pytest.mark.parametrize(("columns", "options", "facts"), REFUSED)
def test_bad_table_is_refused_whole(tmp_path, columns, options, facts):
    """The second file differs from the first."""
    pq.write_table(people(), tmp_path / "a.parquet")
    pq.write_table(change(people(first=1), **columns), tmp_path / "b.parquet")
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    with pytest.raises((DataError, SettingsError), match=facts):
        sbm.split(files, tmp_path / "a.sbm", **{**OPTIONS, **options})
    assert not list(tmp_path.glob("*.sbm*"))


def test_csv_without_a_column_of_the_others_is_refused(tmp_path):
    for name, text in (("a", "x,z,label\n1,2,1\n"), ("b", "x,label\n1,0\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    with pytest.raises(DataError, match=r"b\.csv:1: found no column z, which earlier data have"):
        sbm.split([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "a.sbm")
    assert not list(tmp_path.glob("*.sbm*"))
    sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm")
    sbm.split(tmp_path / "b.csv", tmp_path / "a.sbm", append=True)  # a warning


def test_words_in_a_column_of_numbers_are_missing(tmp_path):
    pq.write_table(people(), tmp_path / "a.parquet")
    pq.write_table(change(people(first=1), size=WORDS), tmp_path / "b.parquet")
    sbm.split(tmp_path / "a.parquet", tmp_path / "a.sbm", **OPTIONS)
    model, _ = sbm.train(tmp_path / "a.sbm", tmp_path / "a.model")
    told = sbm.predict(model, tmp_path / "b.parquet")["warnings"]
    assert "size (400, such as 'x')" in told[0]
    assert told[1] == "no cell of column size has a word or number that the model knows"
    before = sbm.info(tmp_path / "a.sbm")["rows"]
    for call in (
        lambda: sbm.predict(model, tmp_path / "b.parquet", tmp_path / "out.txt", strict=True),
        lambda: sbm.split(tmp_path / "b.parquet", tmp_path / "a.sbm", append=True, strict=True),
    ):
        with pytest.raises(DataError, match=r"no cell of column size .* knows; .*strict"):
            call()
    assert not (tmp_path / "out.txt").exists()
    assert sbm.info(tmp_path / "a.sbm")["rows"] == before


def test_prediction_reads_a_label_column_without_labels(tmp_path):
    kinds = {"words": ["no", "yes"], "numbers": [0, 1]}
    missing = [pa.nulls(2), pa.array([None] * 2, pa.float64()), pa.array([None] * 2, pa.string())]
    for kind, labels in kinds.items():
        model, _ = sbm.train(pa.table({"a": [1, -1], "y": labels}), tmp_path / f"{kind}.model")
        for column in missing:
            pq.write_table(pa.table({"a": [1, 2], "y": column}), tmp_path / "a.parquet")
            assert sbm.predict(model, tmp_path / "a.parquet")["unlabelled_rows"] == 2
        (other,) = (pa.array(kinds[k]) for k in kinds if k != kind)
        pq.write_table(pa.table({"a": [1, 2], "y": other}), tmp_path / "a.parquet")
        if kind == "words":
            told = sbm.predict(model, tmp_path / "a.parquet")["warnings"]
            assert told == ["labels not in the model: 0, 1; their rows count as wrong"]
        else:
            with pytest.raises(DataError, match=r"row 1: found 'no' where .* model are numbers"):
                sbm.predict(model, tmp_path / "a.parquet")


def test_null_and_nan_are_missing(tmp_path):
    table = pa.table({
        "y": [1, 0, 1], "n": pa.array([np.nan, None, 2.0], from_pandas=False), "e": pa.nulls(3),
        "s": pa.array([None, "", " "]), "d": pa.array([None, "a", "b"]).dictionary_encode(),
    })  # fmt: skip
    assert [*features_of(table, tmp_path)] == [
        {"n=(missing)": 1, "s=(missing)": 1, "d=(missing)": 1},
        {"n=(missing)": 1, "s=(missing)": 1, "d=a": 1},
        {"n": 2, "s=(missing)": 1, "d=b": 1},
    ]


def test_model_of_ids_refuses_tables_of_names(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    model, _ = sbm.train(tmp_path / "a.svm", tmp_path / "a.model")
    pq.write_table(people(), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="feature names"):
        sbm.predict(model, tmp_path / "a.parquet")
    with pytest.raises(SettingsError, match="no file name"):
        sbm.split(people())


# ----------------------------------------------------------------------------- damaged buffers

FEW = pa.table({
    "label": [1, -1, 1, -1],
    "word": ["red", "blue", "green", "red"],
    "code": pa.array(["a", "b", "a", "b"]).dictionary_encode(),
    "large": pa.array(["red", "blue", "green", "red"], pa.large_string()),
})  # fmt: skip
LISTS = pa.table({
    "label": [1, -1, 1, -1], "indices": [[1, 2], [3], [], [4, 5]],
    "values": pa.array([[1.0, 2.0], [3.0], [], [4.0, 5.0]], pa.large_list(pa.float64())),
})  # fmt: skip


def write_damaged(table, path, column, buffer, at, value):
    """Write a Feather file in which an integer of a buffer of a column has another value."""
    feather.write_feather(table, path, compression="uncompressed")
    data = bytearray(path.read_bytes())
    kept = pa.py_buffer(bytes(data))
    part = pa.ipc.open_file(kept).get_batch(0).column(column).buffers()[buffer]
    width = 8 if "large" in str(table[column].type) else 4
    place = part.address - kept.address + width * at
    data[place : place + width] = value.to_bytes(width, "little", signed=True)
    path.write_bytes(data)
    return path


class Foreign:
    """A data frame of another library."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    ("table", "column", "buffer", "at", "value"),
    [
        (LISTS, "indices", 1, 4, 1005), (LISTS, "indices", 1, 2, -5), (LISTS, "indices", 1, 1, 4),
        (LISTS, "values", 1, 4, 10**9), (LISTS, "values", 1, 2, -8),
        (FEW, "word", 1, 4, 4000), (FEW, "word", 1, 2, -100), (FEW, "word", 1, 1, 12),
        (FEW, "word", 2, 1, -1), (FEW, "large", 1, 4, 10**9), (FEW, "large", 1, 3, -1),
        (FEW, "code", 1, 2, 2), (FEW, "code", 1, 2, 2**31 - 1), (FEW, "code", 1, 0, -7),
    ],
)  # fmt: skip
def test_damaged_buffers_are_refused(tmp_path, table, column, buffer, at, value):
    path = write_damaged(table, tmp_path / "a.feather", column, buffer, at, value)
    pq.write_table(table, tmp_path / "good.parquet")
    model, _ = sbm.train(tmp_path / "good.parquet", tmp_path / "a.model")
    with pa.memory_map(str(path)) as file:
        frame = pa.ipc.open_file(file).read_all()
        for use in (
            lambda: sbm.split(path, tmp_path / "a.sbm"),
            lambda: sbm.predict(model, path),
            lambda: sbm.train(tmp_path / "good.parquet", settings={"validate": path}),
            lambda: sbm.split(frame, tmp_path / "a.sbm"),
        ):
            with pytest.raises(DataError, match=f"rows 1 to 4: .*damaged .column {column}: "):
                use()
        # The sizes of buffers of words are unknown to the receiver of a C stream.
        if table is LISTS and value > 1:
            with pytest.raises(DataError, match=f"column {column}: "):
                sbm.split(Foreign(frame), tmp_path / "a.sbm")
    assert not (tmp_path / "a.sbm").exists()


def test_damaged_batch_is_reported_with_its_rows(tmp_path):
    offsets, text = pa.py_buffer(np.array([0, -5, 3], np.int32)), pa.py_buffer(b"abc")
    word = pa.Array.from_buffers(pa.string(), 2, [None, offsets, text])
    parts = [[pa.array([1, -1, 1]), pa.array(["a", "b", "c"])], [pa.array([1, -1]), word]]
    batches = [pa.RecordBatch.from_arrays(part, ["label", "word"]) for part in parts]
    with pytest.raises(DataError, match=r"rows 4 to 5: .*damaged"):
        sbm.split(pa.Table.from_batches(batches), tmp_path / "a.sbm")


@pytest.mark.parametrize("place", ["word", "label", "name"])
def test_parquet_with_invalid_utf8_is_refused(tmp_path, place):
    words = pa.array([b"a", b"\xff\xfe", b"b"])
    column = pa.Array.from_buffers(pa.string(), 3, words.buffers())
    plain = pa.array(["a", "b", "c"])
    label, word = (column if place == name else plain for name in ("label", "word"))
    pq.write_table(pa.table({"label": label, "wordy": word}), tmp_path / "a.parquet")
    if place == "name":
        data = (tmp_path / "a.parquet").read_bytes()
        (tmp_path / "a.parquet").write_bytes(data.replace(b"wordy", b"w\xff\xc3dy"))
    with pytest.raises(DataError, match=r"a\.parquet.*(UTF8|utf-8)"):
        sbm.split(tmp_path / "a.parquet", tmp_path / "a.sbm")


def test_damaged_column_metadata_of_parquet_is_refused(tmp_path):
    """pyarrow would end the process."""
    table = pa.table({"label": [1, -1], "word": ["a", "b"]})
    pq.write_table(table, tmp_path / "a.parquet")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    metadata = pq.ParquetFile(tmp_path / "a.parquet").metadata
    footer = len(data) - 8 - metadata.serialized_size
    # A list of 2 counts of definition levels, in the size statistics of the second column.
    at = data.rindex(b"\x19\x26\x00\x04", footer)
    data[at + 1] = 0x16
    del data[at + 2]
    data[-8:-4] = (metadata.serialized_size - 1).to_bytes(4, "little")
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.parquet .*histogram"):
        sbm.split(tmp_path / "a.parquet", tmp_path / "a.sbm")


def test_sliced_tables_give_their_rows(tmp_path):
    kinds = {"exclude": ["id"], "categorical": ["zip"]}
    whole = features_of(people(), tmp_path, **kinds)
    for table in (people().slice(10, 50), Foreign(people().slice(10, 50))):
        assert features_of(table, tmp_path, **kinds) == whole[10:60]
    lists = pa.concat_tables([LISTS, LISTS.slice(1, 2)]).combine_chunks().slice(1)
    rows = in_turn(lists, tmp_path, categorical=[], exclude=[])
    assert [[i for i, _ in features] for _, features in rows[0]] == [[3], [], [4, 5], [3], []]


@pytest.mark.slow
@pytest.mark.process
def test_table_larger_than_memory_keeps_the_bound(tmp_path):
    """Row groups are half of the table, which is larger than --mem when decoded."""
    n, width = 1_200_000, 45
    columns = {f"c{k}": RNG.integers(0, 9, n) / 4 for k in range(width)}
    table = pa.table({**columns, "y": np.where(columns["c0"] > 1, "yes", "no")})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=n // 2)
    assert table.nbytes > 400_000_000
    del table, columns
    for call in (
        "sbm.split(sys.argv[1], sys.argv[2] + '.sbm', mem='400MB', threads=2)",
        "sbm.train(sys.argv[1], sys.argv[2] + '.model', {'mem': '400MB', 'loss': 'log_loss'})",
    ):
        code = f"import sbm, sys; from sbm.engine.machine import peak_bytes; {call};"
        paths = [str(tmp_path / "a.parquet"), str(tmp_path / "a")]
        line = [sys.executable, "-c", f"{code} print(peak_bytes())", *paths]
        done = subprocess.run(line, capture_output=True, check=True)
        assert int(done.stdout) < 400_000_000


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "frame"])
def test_column_of_texts_is_refused(tmp_path, kind):
    random = np.random.default_rng(0)
    words = np.array(
        ["the", "film", "was", "great", "but", "a", "bit", "long", "for", "me", "and", "my", "dog"]
    )
    texts = [" ".join(random.choice(words, 12)) for _ in range(60)]
    columns = {"text": texts, "label": [0, 1] * 30}
    few = {**columns, "text": ["how do I get to number ten", "and how to number nine"] * 30}
    two = {**columns, "n": list(range(60))}
    for k, (table, is_refused) in enumerate([(columns, True), (few, False), (two, False)]):
        frame = pa.table(table)
        path = tmp_path / f"{k}.{kind}"
        if kind == "parquet":
            pq.write_table(frame, path)
        elif kind != "frame":
            lines = [table.keys(), *zip(*table.values(), strict=True)]
            between = "\t" if kind == "tsv" else ","
            path.write_text("".join(between.join(map(str, line)) + "\n" for line in lines))
        data = frame if kind == "frame" else path
        if is_refused:
            with pytest.raises(DataError, match=r"column text.*Raw text is not read"):
                sbm.train(data, tmp_path / "a.model")
        else:
            sbm.train(data, tmp_path / "a.model")
    if kind != "frame":
        assert sbm.predict(tmp_path / "a.model", tmp_path / f"0.{kind}")["rows"] == 60
