"""Docstrings against signatures: what is documented exists, and what must be documented is.

The rule, for every function, class and method that a module's ``__all__`` names:

* one line is enough for a property, for what takes at most `FEW` arguments, for a method that
  another public class has under the same name (it is told in full once), for what says by whom its
  arguments are explained (``see `encode```), and for a compiled helper, a function that kernels of
  other files call: its file tells once what the arrays are;
* whoever takes more has a section Parameters. It names each argument and nothing else; ``a ... b``
  stands for all from a to b, ``others`` for all that are left. A class documents the arguments of
  its constructor, and a dataclass its fields, as Parameters or Attributes;
* who has Parameters and gives something back has Returns or Yields, or says in words what returns;
* Raises lists exceptions that there are.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sbm.errors

ROOT = Path(__file__).resolve().parent.parent
# What commands say of themselves is their help, which test_help.py reads.
FILES = [p for p in sorted((ROOT / "sbm").rglob("*.py")) if "cli" not in p.parts]
SECTIONS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "See Also", "Notes")
FEW = 4
TELLS = re.compile(r"\b(returns?|yields?|whether|how many)\b", re.IGNORECASE)
REFERS = re.compile(r"\b(see|those of) `\w")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _public() -> Iterator[tuple[Path, str, ast.AST, ast.ClassDef | None]]:
    """Yield (file, name, definition, class it belongs to)."""
    for path in FILES:
        tree = ast.parse(path.read_text("utf-8"))
        names = set(_exported(tree))
        for node in tree.body:
            if isinstance(node, Function | ast.ClassDef) and node.name in names:
                if any(ast.unparse(d) == "overload" for d in node.decorator_list):
                    continue
                yield path, node.name, node, None
                for member in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(member, Function) and not member.name.startswith("_"):
                        yield path, f"{node.name}.{member.name}", member, node


PUBLIC = list(_public())
FUNCTIONS = [one for one in PUBLIC if isinstance(one[2], Function)]
CLASSES = [one for one in PUBLIC if isinstance(one[2], ast.ClassDef)]


def _sections(node: Function | ast.ClassDef) -> dict[str, list[str]]:
    """Lines of each section that stand at its margin, and of the summary under an empty name."""
    lines = (ast.get_docstring(node) or "").split("\n")
    found: dict[str, list[str]] = {"": []}
    at = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line in SECTIONS and set(following) == {"-"}:
            assert len(following) == len(line), f"the line under {line} is not as long as it"
            assert line not in found, f"{line} stands there twice"
            at = line
            found[at] = []
        elif set(line) != {"-"} and line and not line.startswith(" "):
            if found[at] and found[at][-1].endswith(","):  # names that go on
                line = f"{found[at].pop()} {line}"
            found[at].append(line)
    return found


def _arguments(node: Function, is_method: bool) -> list[str]:
    a = node.args
    names = [x.arg for x in [*a.posonlyargs, *a.args]]
    static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
    names = names[1:] if is_method and not static else names
    names += [a.vararg.arg] if a.vararg else []
    return names + [x.arg for x in a.kwonlyargs] + ([a.kwarg.arg] if a.kwarg else [])


def _documented(lines: list[str], arguments: list[str]) -> list[str]:
    """Names in a section, in order; ranges and ``others`` spelled out."""
    names: list[str] = []
    for line in lines:
        for text in line.split(" : ")[0].split(", "):
            name = text.strip().lstrip("*")
            if " ... " in name:
                first, last = name.split(" ... ")
                assert {first, last} <= set(arguments), f"there is no {first} or {last}"
                names += arguments[arguments.index(first) : arguments.index(last) + 1]
            else:
                names.append(name)
    if "others" in names and "others" not in arguments:
        at = names.index("others")
        names[at : at + 1] = [a for a in arguments if a not in names]
    return names


def _is_property(node: Function) -> bool:
    kinds = [ast.unparse(d) for d in node.decorator_list]
    return any(k.endswith(("property", ".setter", "cached_property")) for k in kinds)


def _helpers() -> set[tuple[Path, str]]:
    """Functions of kernel files that other kernel files import, or whose file they import."""
    found = set()
    for path in (ROOT / "sbm").glob("*/kernels/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and "kernels" in (node.module or ""):
                file = ROOT / f"{node.module.replace('.', '/')}.py"
                for alias in node.names:
                    beside = path.with_name(f"{alias.name}.py")
                    found.add((file, alias.name))
                    found |= {(beside, one[1]) for one in FUNCTIONS if one[0] == beside}
    return found


HELPERS = _helpers()
TOLD = {node.name for _, _, node, owner in FUNCTIONS if owner and "Parameters" in _sections(node)}


def parameters_are_those_of_the_signature(one):
    path, name, node, owner = one
    sections = _sections(node)
    arguments = _arguments(node, owner is not None)
    if "Parameters" in sections:
        names = _documented(sections["Parameters"], arguments)
        assert sorted(names) == sorted(arguments)
    elif not (
        _is_property(node)
        or (owner and node.name in TOLD)
        or (path, name) in HELPERS
        or REFERS.search(" ".join(sections[""]))
    ):
        assert len(arguments) <= FEW, f"{arguments} are not documented"


def classes_document_their_constructor_and_their_fields(one):
    _, _, node, _ = one
    sections = _sections(node)
    starts = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"]
    if starts:
        arguments = _arguments(starts[0], True)
        names = _documented(sections.get("Parameters", []), arguments)
        assert sorted(names) == sorted(arguments) or (not names and len(arguments) <= FEW)
    if any("dataclass" in ast.unparse(d) for d in node.decorator_list):
        fields = [m.target.id for m in node.body if isinstance(m, ast.AnnAssign)]
        fields = [f for f in fields if not f.startswith("_")]
        told = [*sections.get("Parameters", []), *sections.get("Attributes", [])]
        documented = _documented(told, fields)
        assert set(fields) <= set(documented) or (not documented and len(fields) <= FEW)


def attributes_are_there(one):
    _, _, node, _ = one
    text = ast.unparse(node)
    for name in _documented(_sections(node).get("Attributes", []), []):
        if name.endswith("_"):
            continue  # of an estimator: scikit-learn's base classes set some
        assert re.search(rf"\b{re.escape(name)}\b\s*[:=(,]", text.replace("self.", "")), name


def _gives_back(node: Function) -> bool:
    if node.returns is not None:
        return ast.unparse(node.returns) not in ("None", "NoReturn", "Never")
    own = [n for n in ast.walk(node) if isinstance(n, ast.Return | ast.Yield)]
    return any(n.value is not None for n in own)


def what_comes_back_is_told(one):
    _, _, node, _ = one
    sections = _sections(node)
    told = {"Returns", "Yields"} & set(sections)
    if not _gives_back(node):
        assert not told
    elif "Parameters" in sections and not told:
        assert TELLS.search(" ".join(sections[""])), "it says nothing of what comes back"


OWN_ERRORS = {
    node.name
    for path in FILES
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if isinstance(node, ast.ClassDef) and any("Error" in ast.unparse(b) for b in node.bases)
}


def what_is_raised_is_an_exception_that_there_is(one):
    _, _, node, _ = one
    for line in _sections(node).get("Raises", []):
        for name in line.split(", "):
            known = getattr(builtins, name, getattr(sbm.errors, name, None))
            if known is None:  # one of a module's own
                assert name in OWN_ERRORS, name
            else:
                assert issubclass(known, BaseException), name


CHECKS = [
    (parameters_are_those_of_the_signature, FUNCTIONS),
    (what_comes_back_is_told, FUNCTIONS),
    (classes_document_their_constructor_and_their_fields, CLASSES),
    (attributes_are_there, CLASSES),
    (what_is_raised_is_an_exception_that_there_is, PUBLIC),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_say_what_the_code_does(path):
    wrong = []
    for check, those in CHECKS:
        for one in those:
            if one[0] == path:
                try:
                    check(one)
                except AssertionError as error:
                    wrong.append(f"{one[1]}: {check.__name__}: {error}")
    assert wrong == []
