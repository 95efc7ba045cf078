#!/bin/sh
# All checks: installs the test extras in .venv, then ruff, mypy and pytest.
# Arguments go to pytest: sh scripts/test.sh -k parser
set -e
cd "$(dirname "$0")/.."
EXTRAS='[test]'
. scripts/venv.sh

echo "== ruff"
ruff check .
ruff format --check .
echo "== mypy"
mypy
echo "== pytest"
# As many tests at a time as there are cores.
exec python -m pytest -n auto --dist worksteal "$@"
