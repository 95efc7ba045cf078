"""Compiled dual coordinate descent, one file a dual problem."""
