"""The arrows of the house, read from the source, and what an import must not do."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import im3f_jax

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "im3f_jax"

# From the ground up: a layer may import itself and those below it.
LAYERS = [
    "errors",
    "numerics",
    "data",
    "model",
    "gibbs",
    "inference",
    "posterior",
    "api",
    "demo",
    "cli",
]

# gibbs/: one file a block, and blocks never import one another. These are no blocks:
# the first may be imported by every block, the second put the blocks together.
SHARED_BY_BLOCKS = {"state"}
ABOVE_BLOCKS = {
    "__init__",
    "crf",
    "init",
    "new_rows",
    "reciprocal",
    "response",
    "sweep",
    "sweep_info",
    "topic_weights",
}

# A broken release of one of these must not stop the sampler. The two modules that are
# about them may import them, and are themselves imported only inside functions.
FRAGILE = {"numpyro", "arviz"}
ABOUT_FRAGILE = {"im3f_jax.model.generative", "im3f_jax.posterior.arviz"}


def modules():
    """Yield (dotted name, parsed source) of every module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        yield ".".join(parts), ast.parse(path.read_text(encoding="utf-8"))


every_module = pytest.mark.parametrize(
    "name, tree", [pytest.param(*module, id=module[0]) for module in modules()]
)


def is_type_checking(node):
    """Tell whether a node is ``if TYPE_CHECKING:``, which runs no import."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(tree, *, top_level_only=False):
    """List the dotted names a module imports, relative imports refused.

    ``from a.b import c`` gives ``a.b`` and ``a.b.c``: c may be a module.
    """
    found, queue = [], [tree]
    while queue:
        node = queue.pop()
        if is_type_checking(node):
            continue
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if function and top_level_only:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        queue += ast.iter_child_nodes(node)
    return found


def layer(name):
    """Return the layer of a dotted name, None for those outside and the face."""
    parts = name.split(".")
    return parts[1] if parts[0] == "im3f_jax" and len(parts) > 1 else None


def breaches_of_layers(name, names):
    """List the imported names that lie above the importing module."""
    if layer(name) is None:
        return []
    own = LAYERS.index(layer(name))
    known = [n for n in names if layer(n) in LAYERS]
    return [n for n in known if LAYERS.index(layer(n)) > own]


def breaches_of_blocks(name, names):
    """List the blocks that a block of gibbs/ imports."""
    own = name.removeprefix("im3f_jax.gibbs.")
    if layer(name) != "gibbs" or own in ABOVE_BLOCKS or name == "im3f_jax.gibbs":
        return []
    others = {n.split(".")[2] for n in names if n.startswith("im3f_jax.gibbs.")}
    return sorted(others - SHARED_BY_BLOCKS - {own})


@every_module
def test_arrows_go_down(name, tree):
    if layer(name) is not None:
        assert layer(name) in LAYERS, f"give {layer(name)!r} its place in LAYERS"
    assert breaches_of_layers(name, imports(tree)) == []
    assert breaches_of_blocks(name, imports(tree)) == []


@every_module
def test_fragile_packages_are_imported_late(name, tree):
    names = imports(tree, top_level_only=True)
    if name not in ABOUT_FRAGILE:
        assert {n.split(".")[0] for n in names} & FRAGILE == set()
    assert set(names) & ABOUT_FRAGILE == set()


@every_module
def test_data_knows_no_jax(name, tree):
    # The layout registers its dataclasses as pytrees, and computes in numpy.
    if layer(name) == "data" and name != "im3f_jax.data.layout":
        assert {n.split(".")[0] for n in imports(tree)} & {"jax", "jaxlib"} == set()


def touches_global_config(tree):
    """List the lines that change JAX's configuration for the whole process."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith("config.update"):
                lines.append(node.lineno)
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(re.match(r"(jax\.)?config\.", ast.unparse(t)) for t in targets):
            lines.append(node.lineno)
        if isinstance(node, ast.Subscript) and "environ" in ast.unparse(node.value):
            if isinstance(node.ctx, ast.Store):
                lines.append(node.lineno)
    return lines


@every_module
def test_global_configuration_is_left_alone(name, tree):
    # But by a command that was asked to, for the time that it runs.
    asked = {"_compilation_cache"} if name == "im3f_jax.cli" else set()
    body = [node for node in tree.body if getattr(node, "name", None) not in asked]
    assert touches_global_config(ast.Module(body, [])) == []


@pytest.mark.parametrize(
    "source, name, found",
    [
        ("import im3f_jax.cli", "im3f_jax.gibbs.sweep", "layers"),
        ("def f():\n from im3f_jax import api", "im3f_jax.posterior.x", "layers"),
        ("from im3f_jax.gibbs import topics", "im3f_jax.gibbs.biases", "blocks"),
        ("from im3f_jax.gibbs.topics import x", "im3f_jax.gibbs.biases", "blocks"),
        ("from im3f_jax.gibbs.state import x", "im3f_jax.gibbs.biases", None),
        ("from im3f_jax.gibbs import topics", "im3f_jax.gibbs.sweep", None),
        ("from im3f_jax.numerics import random", "im3f_jax.gibbs.biases", None),
    ],
)
def test_the_readers_above_find_what_they_look_for(source, name, found):
    names = imports(ast.parse(source))
    assert bool(breaches_of_layers(name, names)) == (found == "layers")
    assert bool(breaches_of_blocks(name, names)) == (found == "blocks")


def test_a_top_level_import_is_told_from_a_late_one():
    tree = ast.parse("try:\n import arviz\nexcept ImportError: pass\n")
    assert imports(tree, top_level_only=True) == ["arviz"]
    tree = ast.parse("def f():\n import arviz\n")
    assert imports(tree, top_level_only=True) == []
    assert touches_global_config(ast.parse("jax.config.update('x', 1)")) == [1]
    assert touches_global_config(ast.parse("jax.config.x64 = True")) == [1]


def test_import_starts_nothing():
    # PYTHONPATH etc. stay: what is measured is the import, not the environment.
    code = """
import sys, time
start = time.perf_counter()
import im3f_jax
seconds = time.perf_counter() - start
heavy = sorted({"jax", "jaxlib", "pandas", "numpyro", "arviz"} & set(sys.modules))
print(seconds, heavy)
"""
    shown = run_python(code).split(maxsplit=1)
    assert shown[1].strip() == "[]"
    assert float(shown[0]) < 2.0


def test_using_the_names_starts_no_backend():
    code = """
import warnings
warnings.simplefilter("ignore")
import jax
before = jax.config.jax_enable_x64
import im3f_jax
for name in im3f_jax.__all__:
    getattr(im3f_jax, name)
from jax._src import xla_bridge
print(before, jax.config.jax_enable_x64, xla_bridge.backends_are_initialized())
"""
    assert run_python(code).split() == ["False", "False", "False"]


def run_python(code):
    """Run a few lines in a fresh process and return what they print."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_there():
    assert set(im3f_jax.__all__) <= set(dir(im3f_jax))
    for name in im3f_jax.__all__:
        value = getattr(im3f_jax, name)
        if name != "__version__":
            assert value.__doc__, f"{name} has no doc-string"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = im3f_jax.no_such_name


# --- what must not be in the repository -------------------------------------------


def tracked_files():
    """List the files git knows or would add, or skip outside a checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    names = {name for name in shown.stdout.decode().split("\0") if name}
    return [ROOT / name for name in sorted(names) if (ROOT / name).is_file()]


def registry_host():
    """Return the host of a package index of this machine's own, or None."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    shown = subprocess.run(command, capture_output=True, text=True)
    found = re.match(r"\w+://(?:[^/@]*@)?([^/:\s]+)", shown.stdout)
    return found.group(1) if found else None


def test_no_machine_path_or_registry_host_is_in_the_tree():
    places = "home|root|Users|work|opt|mnt|workspace"
    machine_path = re.compile(rf"(?<![\w.:/}})*-])/(?:{places})/\w[\w.-]*")
    host = registry_host()
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # binary: a figure
        for number, line in enumerate(text.splitlines(), start=1):
            if machine_path.search(line) or (host and host in line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_constraints_name_versions_and_no_address():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]
    pattern = r'[a-z0-9-]+==[\w.]+( ; python_version [<=>]{2} "3\.\d+"( and .*)?)?'
    assert packages == [p for p in packages if re.fullmatch(pattern, p)]
    assert not re.search(r"jaxlib==0\.(10\.2|11\.0)\b", "\n".join(packages))


def test_no_large_file_is_in_the_tree():
    megabyte = 2**20
    large = [path.name for path in tracked_files() if path.stat().st_size > megabyte]
    assert large == []
