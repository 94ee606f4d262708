"""The architecture as a test: who imports whom, what is public, what importing costs, and that nothing lies about unused."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "penstock"

LEAVES = {
    "errors",
    "tracebacks",
    "exact",
    "schema",
    "grid",
    "localtime",
    "eventtime",
    "shapes",
    "windows",
    "triggers",
    "row",
    "functions",
    "folding",
    "policy",
    "passing",
}

MAY_IMPORT = {
    # package: what of ours it may import, besides `errors`
    "names": set(),
    "tracebacks": set(),
    "schema": set(),
    "exact": set(),
    "grid": set(),
    "localtime": {"grid"},
    "eventtime": {"grid", "localtime"},
    "shapes": {"grid", "eventtime"},
    "windows": {"grid", "eventtime", "shapes"},
    "triggers": {"eventtime"},
    "row": {"schema"},
    "functions": {"schema", "row", "exact"},
    "folding": {"functions"},
    "policy": {"eventtime"},
    "passing": {"tracebacks"},
    "expr": {"eventtime", "exact", "functions", "schema", "tracebacks"},
    "protocol": set(),
    "processing": {"functions", "schema", "row", "eventtime", "expr", "exact"},
    "state": set(),
    "connectors": {"schema", "eventtime", "names", "exact"},
    "sources": {"connectors"},
    "sinks": {"connectors"},
    "operators": {
        "tracebacks",
        "processing",
        "schema",
        "exact",
        "expr",
        "state",
        "eventtime",
        "functions",
        "folding",
        "connectors",
        "windows",
        "triggers",
    },
    "plan": {
        "connectors",
        "eventtime",
        "exact",
        "expr",
        "folding",
        "functions",
        "processing",
        "schema",
        "state",
        "triggers",
        "windows",
    },
    "checkpoints": {"protocol", "state", "names"},
    "api": {
        "processing",
        "plan",
        "names",
        "expr",
        "connectors",
        "eventtime",
        "schema",
        "functions",
        "folding",
        "policy",
        "windows",
        "triggers",
    },
    "runtime": {"tracebacks", "operators", "plan", "protocol", "state", "connectors", "windows", "triggers"},
    "runners": {
        "tracebacks",
        "runtime",
        "checkpoints",
        "state",
        "connectors",
        "protocol",
        "plan",
        "eventtime",
        "api",
        "names",
        "passing",
    },
    "testing": {
        "runners",
        "runtime",
        "checkpoints",
        "state",
        "connectors",
        "protocol",
        "plan",
        "eventtime",
        "api",
        "sources",
        "sinks",
    },
    "demo": {"api", "runners", "connectors", "expr", "eventtime", "sources", "sinks"},
    "restoreflags": {"runners"},
    "cli": {"api", "runners", "restoreflags", "demo", "checkpoints", "eventtime"},
    "__main__": {"cli"},
}

PURE_BANNED = {"time", "random", "threading", "asyncio", "socket", "os", "logging", "numpy", "pyarrow", "pyspark", "secrets"}


OURS = {p.stem for p in SRC.iterdir() if not p.name.startswith("__")}


def modules() -> dict[str, ast.Module]:
    return {".".join(p.relative_to(SRC).with_suffix("").parts): ast.parse(p.read_text()) for p in sorted(SRC.rglob("*.py"))}


def imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def package(module: str) -> str:
    return module.split(".")[0]


def test_packages_import_only_what_the_table_allows() -> None:
    wrong = []
    for module, tree in modules().items():
        if module == "__init__":
            continue
        allowed = MAY_IMPORT.get(package(module), set()) | {"errors", package(module)}
        for name in imports(tree):
            parts = name.split(".")
            if parts[0] == "penstock" and len(parts) > 1 and parts[1] in OURS and parts[1] not in allowed:
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_the_protocol_knows_neither_time_nor_threads_nor_rows() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if package(module) == "protocol"
        for name in imports(tree)
        if name.split(".")[0] in PURE_BANNED
    ]
    assert wrong == []


def test_pyspark_appears_only_in_the_spark_runners() -> None:
    allowed = ("runners.microbatch", "runners.batch", "runners.spark", "runners.continuous", "demo")
    wrong = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if not module.startswith(allowed)
        for name in imports(tree)
        if name.split(".")[0] in ("pyspark", "py4j")
    ]
    assert wrong == []


def test_only_the_task_calls_operators() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        if package(module) not in ("operators", "runtime")
        for name in imports(tree)
        if name.startswith("penstock.operators")
    ]
    assert wrong == []


def test_nothing_is_pickled_outside_sparks_own_path() -> None:
    wrong = [
        m
        for m, tree in modules().items()
        if {"pickle", "cloudpickle", "marshal", "shelve"} & {n.split(".")[0] for n in imports(tree)}
    ]
    assert wrong == []


def test_every_module_is_imported_by_somebody() -> None:
    trees = modules()
    used = {name.removeprefix("penstock.") for tree in trees.values() for name in imports(tree) if name.startswith("penstock")}
    entries = {"__init__", "__main__", "cli", "sources", "sinks", "testing.explorer", "testing.simulator", "runners.spark.daemon"}
    dead = [m for m in trees if not m.endswith("__init__") and m not in entries and m not in used]
    assert dead == []


def test_every_module_says_what_it_is() -> None:
    silent = [module for module, tree in modules().items() if not ast.get_docstring(tree) and tree.body]
    assert silent == []


def test_files_stay_small() -> None:
    long = {str(p.relative_to(SRC)): n for p in SRC.rglob("*.py") if (n := len(p.read_text().splitlines())) > 700}
    assert long == {}


def test_the_public_names_exist_and_shadow_no_builtin() -> None:
    import penstock

    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
        assert not hasattr(builtins, name), f"{name} shadows a builtin"


@pytest.mark.parametrize("module", ["penstock", "penstock.sources", "penstock.sinks", "penstock.testing", "penstock.cli"])
def test_importing_is_light(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('pyspark', 'py4j', 'sqlglot', 'pandas', 'rocksdict') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


def test_documents_mention_no_machine_paths() -> None:
    root = SRC.parent.parent
    texts = [
        p
        for pattern in ("*.md", "docs/**/*.md", "src/**/*.py", "examples/*.py", "benchmarks/**/*.py")
        for p in root.glob(pattern)
    ]
    bad = [str(p.relative_to(root)) for p in texts if any(f"/{word}/" in p.read_text() for word in ("work", "root", "farm"))]
    assert bad == []
