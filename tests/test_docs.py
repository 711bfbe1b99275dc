"""The doc-strings of what is public say all that a caller must know.

Read from the source, without importing it: a summary, every parameter by its name and
no other, what is returned, and `InputError` where it is raised.
"""

import ast
import re
from pathlib import Path

import pytest

import im3f_jax

ROOT = Path(__file__).resolve().parent.parent


def source(module):
    """Parse a module of the package."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def every_name(module):
    """List what a module has in `__all__`."""
    for node in source(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{module} has no __all__")


def definitions(tree):
    """Return the functions and classes that a block of source defines, by name."""
    kinds = ast.FunctionDef | ast.ClassDef
    return {n.name: n for n in ast.iter_child_nodes(tree) if isinstance(n, kinds)}


def public():
    """Yield (dotted name, node, the definitions about it) of what is public."""
    wanted = list(im3f_jax._PUBLIC.items())
    for name, module in im3f_jax._MODULES.items():
        inner = [n for n in every_name(module) if not n.isupper()]  # no constants
        wanted += [(f"{name}.{n}", module) for n in inner]
    for name, module in wanted:
        around = definitions(source(module))
        node = around[name.split(".")[-1]]
        yield name, node, around
        if isinstance(node, ast.ClassDef):
            around = around | definitions(node)
            for method, inner in definitions(node).items():
                if not method.startswith("_"):
                    yield f"{name}.{method}", inner, around


def sections(node):
    """Split a doc-string: what stands before the sections, and {title: body}."""
    doc = ast.get_docstring(node) or ""
    head, *rest = re.split(r"^(\w[\w ]*)\n-{3,}$", doc, flags=re.MULTILINE)
    titles, bodies = rest[::2], rest[1::2]
    assert len(set(titles)) == len(titles), f"a section stands twice: {titles}"
    return head.strip(), dict(zip(titles, bodies, strict=True))


def entries(body):
    """List the names that a section describes: its lines without indentation."""
    lines = [line for line in body.splitlines() if line and not line[0].isspace()]
    names = [line.split(" : ")[0] for line in lines]
    return [name.strip().lstrip("*") for line in names for name in line.split(",")]


def parameters(node):
    """List what a caller may give: arguments, or the fields of a dataclass."""
    if isinstance(node, ast.ClassDef):
        fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
        fields = [n for n in fields if "ClassVar" not in ast.unparse(n.annotation)]
        return [n.target.id for n in fields if not n.target.id.startswith("_")]
    given = node.args
    every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs]
    names = [argument.arg for argument in [*every, given.kwarg] if argument]
    return [name for name in names if name not in ("self", "cls")]


def described(node):
    """List the names under Parameters and Attributes."""
    _, found = sections(node)
    titles = ["Parameters", "Attributes"]
    if not isinstance(node, ast.ClassDef):
        titles.pop()
    return [name for title in titles for name in entries(found.get(title, ""))]


def described_elsewhere(node, around):
    """List the names to whose description a doc-string refers, or that are inherited.

    ``The (other) parameters are those of `M3F` and `IM3F`.`` refers to both.
    """
    head, _ = sections(node)
    told = re.search(r"parameters are those\s+of ((?:`\w+`(?: and )?)+)", head)
    names = re.findall(r"`(\w+)`", told[1]) if told else []
    bases = [ast.unparse(b) for b in getattr(node, "bases", [])]
    inherited = [p for b in bases if b in around for p in parameters(around[b])]
    return inherited + [name for n in names for name in described(around[n])]


def raises_input_error(node):
    """Tell whether a definition says ``raise InputError`` itself."""
    raised = [n.exc for n in ast.walk(node) if isinstance(n, ast.Raise) and n.exc]
    return any(ast.unparse(exc).startswith("InputError") for exc in raised)


def faults(node, around):
    """List what a doc-string lacks, or says too much."""
    head, found = sections(node)
    said = []
    if not re.fullmatch(r"\S.*[.:]", head.split("\n\n")[0], flags=re.DOTALL):
        said.append("no summary that ends with a full stop")
    told, taken = described(node), parameters(node)
    elsewhere = described_elsewhere(node, around)
    said += [f"{name} twice" for name in set(told) if told.count(name) > 1]
    said += [f"no {name}" for name in taken if name not in [*told, *elsewhere]]
    said += [f"{name} is none" for name in told if name not in [*taken, *elsewhere]]
    if isinstance(node, ast.ClassDef):
        return said
    is_property = any("property" in ast.unparse(d) for d in node.decorator_list)
    returns = node.returns is None or ast.unparse(node.returns) != "None"
    if returns and not is_property and not {"Returns", "Yields"} & set(found):
        said.append("no Returns")
    raised = entries(found.get("Raises", ""))
    if raises_input_error(node) and "InputError" not in raised:
        said.append("no InputError under Raises")
    return said


@pytest.mark.parametrize(
    "node, around", [pytest.param(*found[1:], id=found[0]) for found in public()]
)
def test_doc_string_says_all(node, around):
    assert faults(node, around) == []


GOOD = '''
def plus(first, *others, sign=1) -> int:
    """Add.

    Parameters
    ----------
    first, others
        Numbers.
    sign : int
        1 or -1.

    Returns
    -------
    int

    Raises
    ------
    InputError
        For another sign.
    """
    raise InputError("sign")


def minus(first, other) -> None:
    """Subtract. The other parameters are those of `plus`.

    Parameters
    ----------
    other
        A number.
    """
'''


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("Add.", "Add", ["no summary that ends with a full stop"]),
        ("sign : int", "sing : int", ["no sign", "sing is none"]),
        ("first, others", "first", ["no others"]),
        ("first, others", "first, others, first", ["first twice"]),
        ("Returns\n    -------", "Gives\n    -----", ["no Returns"]),
        ("    InputError\n", "    ValueError\n", ["no InputError under Raises"]),
        ("of `plus`", "of plus", ["no first"]),
    ],
)
def test_what_a_doc_string_lacks_is_told(old, new, said):
    for source, expected in ((GOOD, []), (GOOD.replace(old, new, 1), said)):
        around = definitions(ast.parse(source))
        assert [f for n in around.values() for f in faults(n, around)] == expected
