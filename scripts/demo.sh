#!/bin/sh
# From nothing to a certified model: installs, makes a real data set from the text of this Python
# installation, splits, trains, predicts. About two minutes; writes to .venv and data/demo only.
set -e
cd "$(dirname "$0")/.."
EXTRAS=''
. scripts/venv.sh

mkdir -p data/demo
cd data/demo
if [ ! -s prep.svm ] || [ ! -s prep.t.svm ]; then
    echo "== making data/demo/prep.svm: is the missing preposition 'of'? (reads the Python library)"
    PYTHONPATH=../.. python -m scripts.data.prep -o prep.svm --test-out prep.t.svm
fi

echo "== sbm split prep.svm --blocks 12"
sbm split prep.svm --blocks 12 --force
echo "== sbm train -C 0.1 --cache-frac 0.5 --mem 300MB --fresh"
sbm train -C 0.1 --cache-frac 0.5 --mem 300MB --fresh
echo "== sbm predict prep.model prep.t.svm -o labels.txt"
sbm predict prep.model prep.t.svm -o labels.txt
echo "== done: data/demo holds prep.sbm, prep.model and labels.txt"
