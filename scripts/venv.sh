# Sourced by demo.sh and test.sh: make .venv at the top of the checkout and install sbm there.
# EXTRAS may name extras to install, such as '[test]'. If INSTALLED is set, nothing is installed.

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "sbm needs Python 3.11 or newer; found $(python3 --version 2>&1)" >&2
    exit 1
fi
if [ ! -x .venv/bin/python ]; then
    echo "== making .venv"
    if ! python3 -m venv .venv; then
        echo "cannot make a virtual environment; install the venv module of python3" >&2
        exit 1
    fi
    printf '*\n' > .venv/.gitignore
fi
if [ -z "$INSTALLED" ]; then
    echo "== installing sbm$EXTRAS in .venv"
    # Kernels are compiled when they are needed: an editable installation has none.
    SBM_PROCESSOR=none .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".$EXTRAS"
fi
PATH="$PWD/.venv/bin:$PATH"
export PATH
# Hundreds of processes start here; without cached bytecode each would recompile the modules.
unset PYTHONDONTWRITEBYTECODE
