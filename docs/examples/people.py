"""From a folder of Parquet files with words as labels to a model that runs without sbm.

Run it cell by cell in an editor or a notebook, or as a script in an empty folder.
"""

# %% Two Parquet files: numbers, strings, missing cells, and the label "income"
import json
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import sbm

random = np.random.default_rng(0)


def people(n: int) -> pa.Table:
    """Make a table of n people."""
    age, hours = random.integers(18, 80, n) / 80, random.integers(0, 60, n) / 60
    job = random.choice(["cook", "pilot", "teacher"], n)
    score = age + hours + (job == "pilot") - 1.3 + random.normal(size=n) * 0.2
    income = np.where(score > 0, "high", "low")
    return pa.table({
        "age": age, "hours": pa.array(hours, mask=random.random(n) < 0.05), "job": job,
        "income": income,
    })  # fmt: skip


pathlib.Path("people").mkdir(exist_ok=True)
for day in ("monday", "tuesday"):
    pq.write_table(people(2000), f"people/{day}.parquet")
new = people(500)

# %% Train with a callback. With MLflow installed, passes are logged to mlruns.db.
try:
    import mlflow
except ImportError:
    mlflow = None


class Watch(sbm.Progress):
    """Records the gap of each pass."""

    def __init__(self) -> None:
        self.gaps = []

    def row(self, record: dict) -> None:
        """Receive the figures of a pass."""
        gap = record["estimated_relative_gap"]
        self.gaps.append(gap)
        if mlflow is not None and gap is not None:
            mlflow.log_metric("relative_gap", gap, step=record["pass"])


if mlflow is not None:
    mlflow.set_tracking_uri("sqlite:///mlruns.db")
    mlflow.start_run()
watch = Watch()
settings = sbm.Settings(loss="log_loss", bias=1)
model, report = sbm.train("people", "people.model", settings, label="income", progress=watch)
if mlflow is not None:
    mlflow.log_params({"C": settings.C, "loss": settings.loss})
    mlflow.end_run()
print(model)

# %% What it learned
print(model.classes_, model.top(3), model.top(-3))
facts = sbm.inspect(model, top=3)
print(f"{facts['nonzero_weights']} of {facts['weights']} weights are not 0")

# %% Predict a table in memory
labels = model.predict(new)
accuracy = float((labels == np.array(new["income"])).mean())
print(f"accuracy {accuracy:.3f}")

# %% Score with NumPy alone: the names and weights of the JSON export
sbm.export(model, "people.json", format="json")
exported = json.loads(pathlib.Path("people.json").read_text())
weights = {exported["names"][i]: w for i, w in exported["weights"].items()}
intercept = exported["bias"] * exported["bias_weights"][0]
names = sorted(weights)


def cell(row: dict, name: str) -> float:
    """Return the value of a feature such as age or job=pilot."""
    column, _, word = name.partition("=")
    value = row[column]
    return float(("(missing)" if value is None else value) == word) if word else value or 0.0


rows = new.drop_columns(["income"]).to_pylist()
X = np.array([[cell(row, name) for name in names] for row in rows])
scores = X @ np.array([weights[name] for name in names]) + intercept
assert (np.array(exported["labels"])[(scores > 0).astype(int)] == labels).all()

# %% As a scikit-learn estimator over the columns that have weights, and as ONNX
X = X.astype(np.float32)
small = sbm.Model(
    np.arange(len(names)), np.array([[weights[name]] for name in names]), model.labels, model.bias,
    model.bias_weights, model.info, label_names=model.label_names,
)  # fmt: skip
estimator = small.to_sklearn(len(names))
assert (estimator.predict(X) == labels).all()
try:
    import onnxruntime
    from skl2onnx import to_onnx
except ImportError:
    print("skl2onnx and onnxruntime are not installed; no ONNX file is written")
else:
    graph = to_onnx(estimator, X[:1])
    pathlib.Path("people.onnx").write_bytes(graph.SerializeToString())
    session = onnxruntime.InferenceSession("people.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"X": X})[0].tolist() == labels.tolist()
