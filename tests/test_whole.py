"""Rows that fit in memory are one part: plain dual coordinate descent that ends at the gap."""

import dataclasses

import numpy as np
import pytest
from families import FAMILY, Case, options_of, text_of

import sbm
from sbm.engine import memory
from sbm.engine.memory import MOST_WHOLE, Shape, plan_training
from sbm.store.blocks import BlockStore


@pytest.fixture(autouse=True)
def joined(monkeypatch):
    monkeypatch.setattr(memory, "MOST_WHOLE", 200_000_000)
