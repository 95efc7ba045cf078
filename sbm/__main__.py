"""``python -m sbm``."""

from sbm.cli import main

main()
