"""The screens of docs/screens: all there, whole, of nowhere else, and showing what they are for."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyte
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 60_000
READABLE = 4.5  # contrast, as WCAG has it for text


@pytest.fixture(scope="module")
def record() -> Iterator[Any]:
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("docs_record", DOCS / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


def words(svg: Path) -> str:
    """What is on the screen, a line each."""
    lines = ET.parse(svg).getroot().iterfind(f"{SVG}text")
    return "\n".join(" ".join(line.itertext()) for line in lines)


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_screen_is_there_whole_and_shows_what_it_is_for(record: Any) -> None:
    names = {path.stem for path in (DOCS / "screens").iterdir()}
    assert names == {screen.name for screen in record.SCREENS}
    for screen in record.SCREENS:
        path = DOCS / "screens" / f"{screen.name}.svg"
        assert path.stat().st_size < MOST_BYTES
        shown = words(path)
        missing = [word for word in screen.words if word not in shown]
        assert not missing, f"{path}: make docs"
        assert ET.parse(path).findtext(f"{SVG}desc") == screen.alt, f"{path}: make docs"


def test_no_screen_refers_to_anything_elsewhere(record: Any) -> None:
    for screen in record.SCREENS:
        text = (DOCS / "screens" / f"{screen.name}.svg").read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[^\"\s]+", text)) == {"http://www.w3.org/2000/svg"}
        assert not re.search(r"href|url\(|@import|<script|<image|data:", text)
        assert "/work" not in text
        assert str(Path.home()) not in text


def test_every_screen_is_shown_somewhere_with_words_for_who_does_not_see_it(record: Any) -> None:
    shown = {}
    for page in (ROOT / "README.md", *DOCS.glob("*.md")):
        for alt, path in re.findall(r"!\[([^\]]*)\]\(([^)]+\.svg)\)", page.read_text()):
            assert (page.parent / path).is_file(), f"{page} shows {path}"
            shown[Path(path).stem] = alt
    assert set(shown) == {screen.name for screen in record.SCREENS}
    assert all(len(alt.split()) > 5 for alt in shown.values())
    first = re.findall(r"screens/([\w-]+)\.svg", (ROOT / "README.md").read_text())
    assert first == ["what-if", "tree"]


def test_every_colour_can_be_read_on_the_ground_it_stands_on(record: Any) -> None:
    svg = record.svg
    for name, ink in svg.COLORS.items():
        assert contrast(ink, svg.BACKGROUND) >= READABLE, name
    assert contrast(svg.TEXT, svg.FRAME) >= READABLE


def test_a_screen_keeps_its_columns_colours_and_letters(record: Any) -> None:
    screen = pyte.Screen(20, 4)
    pyte.Stream(screen).feed("a <b>  \x1b[1;31mred&\x1b[0m\r\n  \x1b[7mbar \x1b[0m 漢字 x\r\n")
    root = ET.fromstring(record.svg.svg(screen, "a <title>", 'with "quotes"'))
    cell, edge = record.svg.CELL, record.svg.EDGE
    _, first, second = root.iterfind(f"{SVG}text")  # and nothing for what is empty
    assert [(span.text, (float(span.attrib["x"]) - edge) / cell) for span in first] == [
        ("a <b>", 0.0),
        ("red&", 7.0),
    ]
    assert first[1].attrib["font-weight"] == "bold"
    assert first[1].attrib["fill"] == record.svg.COLORS["red"]
    bar, wide = second
    assert bar.attrib["fill"] == record.svg.BACKGROUND
    assert (bar.text, wide.text) == ("bar ", "漢字 x")
    assert float(wide.attrib["textLength"]) == 6 * cell
    (paper,) = root.findall(f"{SVG}rect")[2:]
    assert float(paper.attrib["width"]) == 4 * cell
    assert record.svg.color("5fd7ff") == "#5fd7ff"
    assert record.svg.color("brightgreen") == record.svg.COLORS["green"]


@pytest.mark.slow
@pytest.mark.model
def test_a_screen_is_recorded_anew_from_the_real_program(
    record: Any, tmp_path: Path, smollm2: Path
) -> None:
    places = ["--to", str(tmp_path), "--models", str(smollm2.parent)]
    assert record.main(["tree", *places]) == 0
    shown = words(tmp_path / "tree.svg")
    assert "radchat tree --show-cache" in shown
    assert "computed once" in shown
    with pytest.raises(SystemExit):
        record.main(["no-such-screen", "--to", str(tmp_path)])
