"""The programs, one a command; start here, with train.py."""
