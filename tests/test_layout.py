"""The shape of the package: each module imports only from rows above its own."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpt"
ROWS = [  # the way of the data, from the top; a folder is one row
    "__init__", "errors", "terminal", "files", "seeds", "memory", "device",
    "torch_private", "cuda_graph", "distributed", "signals", "config", "text", "reading", "model",
    "runs", "sampling", "evaluation", "inspection", "training", "recipe", "export", "serve", "api",
    "lessons", "cli", "__main__",
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
def test_a_module_imports_only_from_rows_above_or_from_its_own_folder(path):
    here = name_of(path)
    if here == "gpt":
        return  # it finds `load` and `train` in api when they are first asked for
    for module in imports_of(path):
        if module.split(".")[0] == "gpt":
            same_folder = path.parent != PACKAGE and here.split(".")[:2] == module.split(".")[:2]
            assert same_folder or row_of(module) < row_of(here), f"{here} imports {module}"


def test_importing_gpt_loads_no_large_library_and_leaves_the_environment_alone():
    """It once set GOMP_SPINCOUNT, for whatever else the notebook computes."""
    program = (
        "import os, sys; before = dict(os.environ); import gpt\n"
        "assert dict(os.environ) == before\n"
        "print(*{'torch', 'pydantic', 'numpy', 'yaml', 'typer'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def loaded_by(*modules: str) -> set[str]:
    """Return the names of all modules that are loaded after a program has imported `modules`."""
    program = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True).split())


def test_importing_training_does_not_load_matplotlib():
    """Its import takes a second, and only the picture at the end of a run needs it."""
    assert "matplotlib" not in loaded_by("gpt.training.start")


def test_the_reading_order_loads_nothing_around_it():
    """The eleven files that contain the GPT can be read without the folders around them."""
    page = (PACKAGE / "README.md").read_text("utf-8")
    files = re.findall(r"^\| \[(\S+)\.py\]", page.partition("## Where is")[0], re.M)
    assert len(files) == 11
    around = ("reading", "inspection", "recipe", "export", "serve", "lessons")
    loaded = loaded_by(*(f"gpt.{file.replace('/', '.')}" for file in files))
    assert [
        name for name in loaded if name.startswith(tuple(f"gpt.{each}" for each in around))
    ] == []


def duplicates(places: list[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the names that occur in several places, with these places."""
    found: dict[str, set[str]] = {}
    for name, place in places:
        found.setdefault(name, set()).add(place)
    return {name: where for name, where in found.items() if len(where) > 1}


LIBRARY = [path for path in MODULES if path.parent.name != "cli" and path.stem != "__init__"]
TREES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in LIBRARY}


def test_a_file_name_names_one_module():
    """Bug: there were three memory.py and two attention.py."""
    assert duplicates([(path.stem, name_of(path)) for path in LIBRARY]) == {}


# names of a Python function and of what it calls
TWICE = {"evaluate"}


def test_a_public_name_names_one_thing():
    """Bug: `evaluate`, `estimate`, `draw`, Plan and Floats each named two or three things.

    Bug: Plan, Pace, Progress and Update each named two classes.
    """
    names = []
    for module, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.append((node.name, module))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names.append((node.targets[0].id, module))
    public = [
        (name, module)
        for name, module in names
        if not name.startswith("_") and not name.isupper() and name != "log"
        if ".lessons." not in module
    ]
    assert duplicates(public).keys() == TWICE


def test_a_constant_has_one_value_everywhere():
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


def test_nothing_that_is_read_can_execute():
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
