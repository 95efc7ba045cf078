"""The methods of a training: what its passes do with the rows."""

from importlib import import_module
from typing import Any

__all__ = ["METHODS", "SOLVERS", "method_named"]

# By name: the class, imported when a training uses it. It follows the protocol `Method` of
# `sbm.programs.training.training`.
METHODS = {
    "dual": "sbm.programs.training.dual.Dual",
    "newton": "sbm.programs.training.second_order.SecondOrder",
    "columns": "sbm.programs.training.columns.Columns",
    "classes": "sbm.programs.training.classes.Classes",
}
# Those that the setting `solver` names. Sparse models have a method of their own, and so have joint
# losses of many classes.
SOLVERS = ("dual", "newton")


def method_named(name: str) -> Any:
    """Return the class of a method."""
    module, _, name = METHODS[name].rpartition(".")
    return getattr(import_module(module), name)
