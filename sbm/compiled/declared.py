"""The types of arguments that kernels are compiled for.

Each folder of kernels has a module ``declared`` with a table ``TYPES``: of each module and kernel,
the arguments in order with their types ::

    TYPES = {"svc": {"solve": "starts:int64[1] values:{values} damping:float64[1]?summed ..."}}

``{values}`` stands for each of the types in `VARIABLES`, the same for all arguments of a kernel
that have it. ``float64[1]?summed`` is an array in one variant and None in the other, and
``uint8[1]?packed|int32[1]`` one type or another. Who needs kernels chooses variants by these names,
such as ``values="none", summed=False``; what is left open is compiled in all variants.
"""

import functools
import importlib
import itertools
import re
from collections.abc import Iterable, Mapping

from sbm.compiled.processor import Kinds

__all__ = ["VARIABLES", "Specialization", "all_kernels", "specializations"]

# Module, name, and types of the arguments of a kernel.
Specialization = tuple[str, str, Kinds]

FOLDERS = ("inputs", "solver", "store")
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "values": ("none", "float32[1]", "float64[1]"),  # of nonzeros; none if all are 1
    "numbers": ("float32[1]", "float64[1]"),  # values of nonzeros, in text
    "words": ("uint32[1]", "uint64[1]"),  # values of nonzeros, as bits
    "step": ("float32[1]", "float64[1]"),  # of a row's decision value
    "y": ("int32[1]", "float64[1]"),  # classes or targets
    "columns": ("uint8[1]", "uint16[1]", "int32[1]"),  # of sparse weights
    "cell": ("float32", "float64"),  # of weights by class
    "bits": ("none", "uint32[1]", "uint64[1]"),  # values of nonzeros, as bits; none if all are 1
}
_VARIABLE = re.compile(r"\{(\w+)\}")


@functools.cache
def _types(folder: str) -> Mapping[str, Mapping[str, str]]:
    types: Mapping[str, Mapping[str, str]] = importlib.import_module(
        f"sbm.{folder}.kernels.declared"
    ).TYPES
    return types


def all_kernels() -> list[str]:
    """Return the modules of all kernels, as patterns for `specializations`."""
    return [f"{folder}.{module}.*" for folder in FOLDERS for module in _types(folder)]


def specializations(
    kernels: Iterable[str], **chosen: str | bool | tuple[str, ...]
) -> list[Specialization]:
    """Return the kernels to compile, with the types of their arguments.

    Parameters
    ----------
    kernels : iterable of str
        Folder, module and name, such as ``solver.svc.solve``; ``*`` for all names.
    **chosen : str, tuple of str, or bool
        The types of a variable, or the state of a flag. Default: all.

    Returns
    -------
    list of (str, str, tuple of str)
        Each once.
    """
    result: dict[Specialization, None] = {}
    for kernel in kernels:
        folder, module, name = kernel.split(".")
        declared = _types(folder)[module]
        for each in declared if name == "*" else [name]:
            for kinds in _variants(declared[each], chosen):
                result[f"sbm.{folder}.kernels.{module}", each, kinds] = None
    return list(result)


def _variants(declaration: str, chosen: Mapping[str, str | bool | tuple[str, ...]]) -> list[Kinds]:
    """Return the types of the arguments in each variant."""
    types = [argument.partition(":")[2] for argument in declaration.split()]
    choices: dict[str, tuple[str | bool, ...]] = {}
    for kind in types:
        if variable := _VARIABLE.search(kind):
            choices[variable[1]] = VARIABLES[variable[1]]
        if flag := kind.partition("?")[2].partition("|")[0]:
            choices[flag] = (False, True)
    for name, value in chosen.items():
        if name in choices:
            choices[name] = value if isinstance(value, tuple) else (value,)
    variants = []
    for combination in itertools.product(*choices.values()):
        values = dict(zip(choices, combination, strict=True))
        kinds = []
        for kind in types:
            plain, _, flag = kind.partition("?")
            flag, _, other = flag.partition("|")
            if flag and not values[flag]:
                plain = other or "none"
            kinds.append(_VARIABLE.sub(lambda name: str(values[name[1]]), plain))  # noqa: B023
        variants.append(tuple(kinds))
    return variants
