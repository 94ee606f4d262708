"""Documents that are run and checked: code blocks run, modules they name exist, links lead somewhere, docstring examples hold."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def blocks(path: Path) -> str:
    """The Python blocks of a document, joined: later ones build on earlier ones."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("path", [p for p in DOCS if blocks(p)], ids=lambda p: p.name)
def test_the_code_in_documents_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Without our own `from __future__ import annotations`: readers need not have it.
    exec(compile(blocks(path), str(path), "exec", dont_inherit=True), {"__name__": "__main__"})


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_modules_named_in_documents_exist(path: Path) -> None:
    for name in set(re.findall(r"`(penstock(?:\.[a-z_]+)+)`", path.read_text())):
        if name == "penstock.toml":
            continue  # a file
        assert importlib.util.find_spec(name) is not None, f"{path.name} names {name}, which does not exist"


@pytest.mark.parametrize("path", DOCS, ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}, which does not exist"


def docstring_modules() -> list[str]:
    source = ROOT / "src" / "penstock"
    return [
        "penstock." + ".".join(p.relative_to(source).with_suffix("").parts)
        for p in sorted(source.rglob("*.py"))
        if ">>>" in p.read_text() and p.name != "__init__.py"
    ]


@pytest.mark.parametrize("module", docstring_modules())
def test_docstring_examples_hold(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried > 0
    assert failed == 0
