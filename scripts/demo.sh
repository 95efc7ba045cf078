#!/bin/sh
# From nothing to a certified model: install sbm, make a real data set from the text of this Python
# installation, split, train, predict. Takes about two minutes; writes only to .venv and data/demo.
set -e
cd "$(dirname "$0")/.."
EXTRAS=''
. scripts/venv.sh

mkdir -p data/demo
cd data/demo
if [ ! -s prep.svm ] || [ ! -s prep.t.svm ]; then
    echo "== making data/demo/prep.svm from the Python library: is the missing preposition 'of'?"
    PYTHONPATH=../.. python -m scripts.data.prep -o prep.svm --test-out prep.t.svm
fi

echo "== sbm split prep.svm --blocks 12"
sbm split prep.svm --blocks 12 --force
echo "== sbm train -C 0.1 --cache-frac 0.5 --mem 300MB --fresh"
sbm train -C 0.1 --cache-frac 0.5 --mem 300MB --fresh
echo "== sbm predict prep.model prep.t.svm -o labels.txt"
sbm predict prep.model prep.t.svm -o labels.txt
echo "== done: wrote prep.sbm, prep.model and labels.txt to data/demo"
