"""The pictures of the guide are what their code draws, small, and can be read by people and by machines."""

from __future__ import annotations

import ast
import importlib.util
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
GUIDE = FOLDER.parent / "guide"
FILES = sorted(FOLDER.glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", FOLDER / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_pictures_are_what_the_code_draws(draw: ModuleType) -> None:
    drawn = draw.draw()
    assert sorted(drawn) == [file.name for file in FILES]
    stale = [name for name, svg in drawn.items() if (FOLDER / name).read_text() != svg]
    assert stale == [], "draw them again: python docs/pictures/draw.py"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_picture_is_small_and_says_what_it_shows(file: Path) -> None:
    root = ElementTree.parse(file).getroot()
    title = root.find(f"{SVG}title")
    assert file.stat().st_size < 10_000
    assert title is not None
    assert title.text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_all_shapes_are_within_the_picture(file: Path) -> None:
    root = ElementTree.parse(file).getroot()
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for shape in root:
        x = float(shape.get("x", shape.get("x2", shape.get("cx", 0))))
        y = float(shape.get("y", shape.get("y2", shape.get("cy", 0))))
        assert 0 <= x <= x + float(shape.get("width", 0)) <= width, shape.attrib
        assert 0 <= y <= y + float(shape.get("height", 0)) <= height, shape.attrib


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_picture_is_shown_somewhere(file: Path) -> None:
    assert any(f"(../pictures/{file.name})" in page.read_text() for page in GUIDE.glob("*.md"))


def test_pictures_need_nothing_but_python() -> None:
    nodes = ast.walk(ast.parse((FOLDER / "draw.py").read_text()))
    modules = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {module.split(".")[0] for module in modules} <= sys.stdlib_module_names
