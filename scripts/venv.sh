# Sourced by demo.sh and test.sh: makes .venv at the top of the checkout and installs sbm there.
# EXTRAS may name extras to install, such as '[test]'; nothing is installed if INSTALLED is set.

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "sbm needs Python 3.11 or newer; python3 here is $(python3 --version 2>&1)" >&2
    exit 1
fi
if [ ! -x .venv/bin/python ]; then
    echo "== making .venv"
    if ! python3 -m venv .venv; then
        echo "python3 cannot make a virtual environment; install its venv module" >&2
        exit 1
    fi
    printf '*\n' > .venv/.gitignore
fi
if [ -z "$INSTALLED" ]; then
    echo "== installing sbm$EXTRAS in .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".$EXTRAS"
fi
PATH="$PWD/.venv/bin:$PATH"
export PATH
# Hundreds of processes start here; without it each compiles our modules anew.
unset PYTHONDONTWRITEBYTECODE
