#!/bin/sh
# From nothing to a certified model in about a minute. Writes to .venv and data/demo only.
set -e
cd "$(dirname "$0")/.."
cat <<'TEXT'
This demo
  1. installs sbm into .venv,
  2. makes a data set from the documentation of numpy and scipy: is the missing preposition "of"?
  3. trains with at most 300 MB of memory, and predicts held-out rows.
It takes about a minute. Ten seconds of that are for compiling native code, once.

TEXT
EXTRAS='[compile]'
. scripts/venv.sh

mkdir -p data/demo
cd data/demo
if [ ! -s prep.svm ] || [ ! -s prep.t.svm ]; then
    echo "== making data/demo/prep.svm and prep.t.svm"
    LIBRARY="$(python -c 'import pathlib, numpy; print(pathlib.Path(numpy.__file__).parents[1])')"
    PYTHONPATH=../.. python -m scripts.data.prep "$LIBRARY/numpy" "$LIBRARY/scipy" \
        -o prep.svm --test-out prep.t.svm
fi
echo
echo "== sbm train prep.svm -C 0.1 --mem 300MB"
sbm train prep.svm -C 0.1 --mem 300MB --fresh
echo
echo "== sbm predict prep.model prep.t.svm -o labels.txt"
sbm predict prep.model prep.t.svm -o labels.txt
echo
echo "== done: data/demo has the model prep.model and labels.txt"
