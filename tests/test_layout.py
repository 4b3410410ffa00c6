"""The shape of the package: each module imports only from rows above its own."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpt"
ROWS = [  # the way of the data, from the top; a folder is one row
    "__init__", "errors", "status", "files", "seeds", "memory", "device", "cuda_graph",
    "distributed", "config", "text", "model", "runs", "sampling", "evaluation",
    "inspection", "training", "recipe", "export", "serve", "lessons", "api",
    "cli", "__main__",
]  # fmt: skip
MODULES = sorted(PACKAGE.rglob("*.py"))


def row_of(module: str) -> int:
    """`gpt` -> 0, `gpt.text.corpus` -> the row of text."""
    parts = module.split(".")
    return ROWS.index(parts[1] if len(parts) > 1 else "__init__")


def name_of(path: Path) -> str:
    return ".".join(("gpt", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


NAMES = {name_of(path) for path in MODULES}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & NAMES
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_from_rows_above_or_from_its_own_folder(path: Path) -> None:
    here = name_of(path)
    if here == "gpt":
        return  # it finds `load` and `train` in api when they are first asked for
    for module in imports_of(path):
        if module.split(".")[0] == "gpt":
            same_folder = path.parent != PACKAGE and here.split(".")[:2] == module.split(".")[:2]
            assert same_folder or row_of(module) < row_of(here), f"{here} imports {module}"


def test_no_two_modules_import_each_other_in_a_circle() -> None:
    graph = {name_of(path): imports_of(path) for path in MODULES if name_of(path) != "gpt"}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in graph.get(module, ()):
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())
    assert done >= set(graph)


def test_importing_gpt_loads_no_large_library_and_leaves_the_environment_alone() -> None:
    """It once set GOMP_SPINCOUNT, for whatever else the notebook computes."""
    program = (
        "import os, sys; before = dict(os.environ); import gpt\n"
        "assert dict(os.environ) == before\n"
        "print(*{'torch', 'pydantic', 'numpy', 'yaml', 'typer'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def duplicates(places: list[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the names that occur in several places, with these places."""
    found: dict[str, set[str]] = {}
    for name, place in places:
        found.setdefault(name, set()).add(place)
    return {name: where for name, where in found.items() if len(where) > 1}


LIBRARY = [path for path in MODULES if path.parent.name != "cli" and path.stem != "__init__"]
TREES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in LIBRARY}


def test_a_file_name_names_one_module() -> None:
    """Bug: there were three memory.py and two attention.py."""
    assert duplicates([(path.stem, name_of(path)) for path in LIBRARY]) == {}


def test_a_class_name_names_one_class() -> None:
    """Bug: Plan, Pace, Progress and Update each named two classes."""
    classes = [
        (node.name, module)
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    assert duplicates(classes) == {}


def test_a_constant_has_one_value_everywhere() -> None:
    """Bug: MARGIN had three values."""
    values = []
    for tree in TREES.values():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    pairs = [(target, node.value)]
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        pairs = [*zip(target.elts, node.value.elts, strict=True)]
                    values += [
                        (name.id, ast.unparse(value))
                        for name, value in pairs
                        if isinstance(name, ast.Name) and name.id.isupper() and len(name.id) > 1
                    ]
    assert duplicates(values) == {}


@pytest.mark.parametrize(("library", "only"), [("yaml", "gpt.config.yaml"), ("typer", "gpt.cli")])
def test_one_place_knows_each_outside_format(library: str, only: str) -> None:
    users = [
        name_of(path)
        for path in MODULES
        if any(module.split(".")[0] == library for module in imports_of(path))
    ]
    assert users
    assert all(user == only or user.startswith(f"{only}.") for user in users), users


def test_nothing_that_is_read_can_execute() -> None:
    """No pickle, no eval: torch.load always with weights_only, YAML by a safe loader."""
    for path in MODULES:
        source = path.read_text("utf-8")
        if name_of(path) == "gpt.lessons.render":  # runs the cells of the package's own lessons
            source = source.replace("exec(compile(code", "")
        assert not re.search(r"(?<!\.)\b(pickle|eval|exec|shelve|marshal)\b\s*[.(]", source), path
        for call in re.findall(r"torch\.load\((.*?)\)\n", source, re.DOTALL):
            assert "weights_only=True" in call, path
        for call in re.findall(r"np\.load\((.*?)\)", source, re.DOTALL):
            assert "allow_pickle=False" in call, path
