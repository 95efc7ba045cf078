"""Compiled dual coordinate descent, one file per dual problem."""
