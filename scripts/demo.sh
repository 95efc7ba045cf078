#!/bin/sh
# From nothing to certified models in about two minutes. Writes to .venv and data/demo only.
set -e
cd "$(dirname "$0")/.."
cat <<'TEXT'
This demo
  1. installs sbm into .venv,
  2. makes a table of people, trains on it, and predicts new rows,
  3. makes LIBSVM text from the documentation of numpy and scipy, trains on it
     in at most 300 MB of memory, and predicts held-out rows.
It takes about two minutes. Half a minute of that is for compiling native code, once.

TEXT
EXTRAS='[arrow,compile]'
. scripts/venv.sh

mkdir -p data/demo
cd data/demo
rm -rf people.model* prep.model*
echo "== making data/demo: people.csv, new.csv, prep.svm, prep.t.svm"
if [ ! -s new.csv ]; then
    PYTHONPATH=../.. python -m scripts.data.people
fi
if [ ! -s prep.svm ] || [ ! -s prep.t.svm ]; then
    LIBRARY="$(python -c 'import pathlib, numpy; print(pathlib.Path(numpy.__file__).parents[1])')"
    PYTHONPATH=../.. python -m scripts.data.prep "$LIBRARY/numpy" "$LIBRARY/scipy" \
        -o prep.svm --test-out prep.t.svm
fi

show() {
    echo
    echo "== sbm $*"
    sbm "$@"
}

show train people.csv --label label --loss log_loss --scale std --intercept
show predict people.model new.csv --probability -o scores.txt
show inspect people.model --top 3
show train prep.svm -C 0.1 --mem 300MB
show predict prep.model prep.t.svm -o labels.txt
echo
echo "== done: data/demo has the models people.model and prep.model"
