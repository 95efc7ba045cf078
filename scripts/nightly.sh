#!/bin/sh
# Nightly job: append new files to a store, drop old ones, and train from last night's run.
#
#   sh scripts/nightly.sh [-n] [-k DAYS] [-t TEST] [-o FILE] [-c CONFIG] [-r OPTIONS] \
#       STORE MODEL FILE|FOLDER...
#
#   -k DAYS    drop sources that were added more than DAYS days ago
#   -t TEST    predict this text with the new model
#   -o FILE    write the predictions of TEST here, one label per line
#   -n         accept files with labels that the store does not have
#   -c CONFIG  settings of sbm train; default: configs/nightly.toml of this checkout
#   -r OPTIONS how to read the files: options of sbm split, such as '--label bought --exclude id'
#
# From a FOLDER, the files *.svm, *.csv, *.tsv and *.vw are used, plain or .gz, .bz2, .xz, .zst, and
# *.parquet and *.feather. Each file becomes one source. Files with content that is in the store, or was expired from it, are skipped. Files must
# be complete: write them to another folder and move them here. The first night makes the store.
#
# Exit codes: 0 done; 1 error, with a message on stderr; 2 invalid usage; 3 --max-passes or
# --time-limit was reached before --tol (the model is written and certified, the next night
# continues); 130 stopped. After any of them, or a crash, the same command can be run again.
#
# SBM is the program; default: .venv/bin/sbm of this checkout if it exists, else sbm on PATH.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
config=$here/configs/nightly.toml
keep='' test='' predictions='' new_labels='' reading=''

usage() {
    echo "usage: nightly.sh [-n] [-k DAYS] [-t TEST] [-o FILE] [-c CONFIG] [-r OPTIONS] STORE MODEL FILE|FOLDER..." >&2
    exit 2
}

while getopts nk:t:o:c:r: option; do
    case $option in
    n) new_labels=--new-labels ;;
    k) keep=$OPTARG ;;
    t) test=$OPTARG ;;
    o) predictions=$OPTARG ;;
    c) config=$OPTARG ;;
    r) reading=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 3 ] || usage
case $keep in *[!0-9]*) usage ;; esac
store=$1 model=$2
shift 2

if [ -z "${SBM:-}" ]; then
    SBM=sbm
    [ ! -x "$here/.venv/bin/sbm" ] || SBM=$here/.venv/bin/sbm
fi

# Print a line with a time stamp. sbm prints the results.
say() {
    echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) $*"
}

say "begin: $store"
trap 'say "end: exit code $?"' EXIT

sum_of() {
    if command -v sha256sum >/dev/null; then
        sha256sum <"$1"
    else
        shasum -a 256 <"$1"
    fi | cut -d ' ' -f 1
}

# Append a file, unless the store has or had it. The first file makes the store.
add() {
    [ -s "$1" ] || return 0 # skip empty files
    sum=$(sum_of "$1")
    [ -n "$sum" ] || exit 1
    case $known in *"$sum"*) return 0 ;; esac
    say "append $1"
    if [ -d "$store" ]; then
        # The options are words of their own.
        # shellcheck disable=SC2086
        "$SBM" split -q --append ${new_labels:+"$new_labels"} $reading "$store" "$1"
    else
        # shellcheck disable=SC2086
        "$SBM" split -q $reading "$1" -o "$store"
    fi
    known="$known $sum"
}

known=''
[ ! -d "$store" ] || known=$("$SBM" info --json "$store")
for input in "$@"; do
    if [ -d "$input" ]; then
        for file in "$input"/*; do
            plain=${file%.gz} && plain=${plain%.bz2} && plain=${plain%.xz} && plain=${plain%.zst}
            case $plain in
            *.svm | *.csv | *.tsv | *.vw | *.parquet | *.feather) [ ! -f "$file" ] || add "$file" ;;
            esac
        done
    elif [ -f "$input" ]; then
        add "$input"
    else
        echo "nightly.sh: $input is neither a file nor a folder" >&2
        exit 1
    fi
done

if [ -n "$keep" ]; then
    say "expire sources older than $keep days"
    "$SBM" expire -q "$store" --before "${keep}d" --if-any
fi

code=0
say "train $model"
"$SBM" train -q "$store" -o "$model" --config "$config" --warm-start || code=$?
case $code in 0 | 3) ;; *) exit "$code" ;; esac

if [ -n "$test" ]; then
    say "predict $test"
    "$SBM" predict -q "$model" "$test" ${predictions:+-o "$predictions"}
fi
exit "$code"
