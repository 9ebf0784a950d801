"""The arrows of docs/design.md, by syntax tree and by what an import really loads; and a few rules of hygiene."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOTS = {
    "proteus_kernels": ROOT / "kernels" / "proteus_kernels",
    "proteus_tasks": ROOT / "tasks" / "proteus_tasks",
    "proteus_models": ROOT / "models" / "proteus_models",
    "proteus_bench": ROOT / "proteus_bench",
}
PATHS = [str(ROOT), *(str(path.parent) for name, path in ROOTS.items() if name != "proteus_bench")]
LIGHT = ("schedules", "score", "stats", "store", "compare", "leaderboard", "errors", "grammar", "registry", "spec")
ALLOWED = {
    "proteus_kernels": {"torch"},
    "proteus_tasks": {"numpy"},
    "proteus_models": {
        "torch",
        "numpy",
        "safetensors",
        "tokenizers",
        "accelerate",
        "proteus_kernels",
        "proteus_bench.schedules",
        "proteus_bench.errors",
        "proteus_bench.grammar",
        "proteus_bench.registry",
        "proteus_bench.store.canonical",
    },
}
# Only when the function is called: a sub-command of the CLI, a tokenizer that the user names, and data sets from a hub.
LAZY = {"proteus_tasks": {"typer", "tokenizers", "datasets", "huggingface_hub", "lm_eval"}, "proteus_models": {"datasets"}}
# Training reads the texts and templates of the tasks; nothing else in models may.
TRAINS = re.compile(r"(train\w*|build_tokenizer)\.py")
# The optional extra `hf`: these files and no other.
TRANSFORMERS = re.compile(r"hf\w*\.py")
# Imported by vLLM alone, through its entry point.
VLLM = re.compile(r"vllm_\w+\.py")
# The optional extra `gpu`: this folder and no other; nothing outside imports it but by a name made at run time.
TRITON = ROOTS["proteus_kernels"] / "triton"


def python_files(package: str) -> list[Path]:
    files = sorted(ROOTS[package].rglob("*.py"))
    assert files, f"{package} has no files: this test looks in the wrong place"
    return files


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(absolute module, inside a function) of every import; relative ones stay in the package and are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # 'from package import module' names a module of it as well as an attribute.
            own = node.module == "proteus_bench"
            yield from ((f"{node.module}.{a.name}" if own else node.module, id(node) in lazy) for a in node.names)


def permitted(module: str, allowed: set[str]) -> bool:
    top = module.split(".")[0]
    within = any(module == name or module.startswith(name + ".") for name in allowed)
    return within or top in sys.stdlib_module_names


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_along_the_arrows(package):
    wrong = []
    for path in python_files(package):
        allowed = ALLOWED[package] | {package}
        if package == "proteus_models" and TRAINS.fullmatch(path.name):
            allowed = allowed | {"proteus_tasks"}
        if package == "proteus_models" and TRANSFORMERS.fullmatch(path.name):
            allowed = allowed | {"transformers"}
        if package == "proteus_models" and VLLM.fullmatch(path.name):
            allowed = allowed | {"transformers", "vllm"}
        if TRITON in path.parents:
            allowed = allowed | {"triton"}
        for module, lazy in imports(path):
            if TRITON not in path.parents and module.startswith("proteus_kernels.triton"):
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
            if not permitted(module, allowed | (LAZY.get(package, set()) if lazy else set())):
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_the_reader_of_imports_sees_lazy_and_nested_ones(tmp_path):
    source = "import a.b\nfrom c import d\nfrom . import e\nfrom proteus_bench import cli\ndef f():\n    import torch\n"
    (tmp_path / "x.py").write_text(source)
    found = set(imports(tmp_path / "x.py"))
    assert found == {("a.b", False), ("c", False), ("proteus_bench.cli", False), ("torch", True)}
    assert permitted("proteus_bench.schedules.base", ALLOWED["proteus_models"])
    assert not permitted("proteus_bench.cli", ALLOWED["proteus_models"])


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_never_load_torch(module):
    """Every file of the module is imported in a fresh interpreter, so that what others import does not hide it."""
    code = f"""
import importlib, pkgutil, sys
sys.path[:0] = {PATHS!r}
module = importlib.import_module("proteus_bench.{module}")
for info in pkgutil.walk_packages(getattr(module, "__path__", []), "proteus_bench.{module}."):
    if not info.name.endswith("__main__"):
        importlib.import_module(info.name)
heavy = sorted({{"torch", "transformers", "proteus_models", "proteus_kernels"}} & set(sys.modules))
print(",".join(heavy + [name for name in ("scipy",) if name in sys.modules]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""


def tracked() -> list[Path]:
    """Files under version control; in an unpacked source archive, all files."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=False, cwd=ROOT)
    if listed.returncode == 0 and listed.stdout:
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and ".git" not in path.parts]


def test_no_file_names_a_path_of_one_machine():
    places = "|".join(("home", "root", "work", "farm", "Users", "mnt", "scratch"))
    pattern = re.compile(rf"(?<![\w.:/~$}}-])/(?:{places})/[\w.]")
    wrong = []
    for path in tracked():
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
            if pattern.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}")
    assert wrong == []


def test_no_python_file_is_longer_than_350_lines():
    python = [path for path in tracked() if path.suffix == ".py"]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in python}
    assert python and {name: lines for name, lines in lengths.items() if lines > 350} == {}
