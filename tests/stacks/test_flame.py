"""Flame graphs: the tree of frames, the picture as SVG, and the one on the screen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gputop.stacks import flame_svg
from gputop.stacks.flame import FlameFrame, flame_tree, heaviest
from gputop.stacks.flame_svg import to_svg
from gputop.stacks.frames import Weighted
from gputop.tui.app import GputopApp
from gputop.tui.draw.flame import about, layout, lines, moved
from gputop.tui.draw.view import View
from gputop.tui.flame_box import FlameScreen
from gputop.tui.stacks_box import StacksScreen
from tests.stacks.test_command import Start, sleeper  # noqa: F401 - a fixture
from tests.stacks.test_screen import app, ready, shown
from tests.wait import PATIENCE_S

SVG = "{http://www.w3.org/2000/svg}"
MAIN, STEP, LOAD = "<module> (/src/train.py:9)", "step (/src/train.py:41)", "load (/src/data.py:7)"
NEXT = "__next__ (/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py:708)"
WAIT = "futex_wait_[k]"
STACKS: list[Weighted] = [
    (("MainThread 7", MAIN, STEP), 20), (("MainThread 7", MAIN, NEXT, WAIT), 60), (("MainThread 7", MAIN, NEXT, LOAD), 15),
    (("loader 8", LOAD), 5),
]  # fmt: skip


def named(root: FlameFrame, name: str) -> FlameFrame:
    return next(one for one in root.walk() if one.name.startswith(name))


def test_a_frame_weighs_what_all_stacks_with_it_weigh_and_the_heaviest_stands_first() -> None:
    root = flame_tree(STACKS)
    assert (root.weight, root.name) == (100, "all")
    assert [(one.name, one.weight, one.start) for one in root.children] == [("MainThread 7", 95, 0), ("loader 8", 5, 95)]
    main = root.children[0].children[0]
    assert [(one.name, one.weight, one.start, one.kind) for one in main.children] == [
        ("__next__ dataloader.py:708", 75, 0, "library"), ("step train.py:41", 20, 75, "own"),
    ]  # fmt: skip
    assert (named(root, "futex_wait").kind, root.children[0].kind) == ("kernel", "thread")
    for one in root.walk():
        assert sum(child.weight for child in one.children) <= one.weight
    assert [one.name for one in named(root, "futex_wait").way][:2] == ["all", "MainThread 7"]


def test_a_stack_of_any_depth_is_a_tree() -> None:
    deep = tuple(f"f{i} (/a.py:{i})" for i in range(5000))
    assert max(one.depth for one in flame_tree([(deep, 1)]).walk()) <= 512
    assert flame_tree([]).weight == 0


# as SVG


def boxes(svg: str) -> dict[str, tuple[float, float, str]]:
    """First line of a title -> (x, width, kind)."""
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None
        assert rect is not None
        found[(title.text or "").split("\n")[0]] = float(rect.get("x", "")), float(rect.get("width", "")), rect.get("class", "")
    return found


def test_widths_are_shares_and_a_frame_stands_below_what_called_it() -> None:
    found = boxes(to_svg(STACKS, "gputop stacks", "sample"))
    whole = found["all"][1]
    assert found[MAIN][1] == pytest.approx(0.95 * whole, abs=0.1)
    assert found[NEXT][1] == pytest.approx(0.75 * whole, abs=0.1)
    assert found[STEP][0] == pytest.approx(found[NEXT][0] + found[NEXT][1], abs=0.1)
    assert (found[STEP][2], found[NEXT][2], found["futex_wait"][2]) == ("own", "library", "kernel")


HOSTILE = "</text><script>alert(1)</script>&\x00\x1b[2J\ud800\ufffe\"'\u202e (/tmp/<x>&\"y\".py:1)"


def test_names_of_others_are_text_and_bounded_and_nothing_in_the_file_is_loaded() -> None:
    long = f"f{'x' * 190} (/{'y' * 1000}/end.py:3)"
    svg = to_svg([((HOSTILE, HOSTILE), 3), ((long,), 2)], "gputop stacks", "stack")
    document = ElementTree.fromstring(svg)
    known = ("svg", "title", "style", "rect", "text", "g", "script")
    assert not [one.tag for one in document.iter() if one.tag.removeprefix(SVG) not in known]
    [script] = document.iter(f"{SVG}script")
    assert (script.text, script.attrib) == (flame_svg._SCRIPT, {}), "the file's own script, and none from elsewhere"
    assert not re.search(r"(?i)href|url\(|@import|\son\w+=|https?:", svg.replace("http://www.w3.org/2000/svg", ""))
    assert svg.encode().decode() == svg
    told = next(title for title in boxes(svg) if title.startswith("fxxx"))
    assert len(told) <= flame_svg.MOST_NAME + 1
    assert told.endswith("end.py:3)"), "file and line stay"


def test_the_picture_of_very_many_frames_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flame_svg, "MOST_FRAMES", 500)
    stacks = [((f"t{i}", *(f"f{i}_{j} (/a.py:{j})" for j in range(9))), 1 + i % 7) for i in range(900)]
    found = boxes(to_svg(stacks, "gputop stacks", "sample"))
    assert len(found) <= 500
    root = flame_tree(stacks)
    shown_frames = set(map(id, heaviest(root, 500, 0.0)))
    assert all(one.parent is None or id(one.parent) in shown_frames for one in heaviest(root, 500, 0.0)), "none without its caller"


PAGE = """
const frames = JSON.parse(process.argv[1]), at = Number(process.argv[2]);
function element(attributes, parts) {
  return { attributes, parts, textContent: "", getAttribute(name) { return this.attributes[name]; },
    setAttribute(name, value) { this.attributes[name] = String(value); }, querySelector(name) { return this.parts[name]; },
    addEventListener(_, call) { this.click = call; } };
}
const groups = frames.map((one) => element(one, { rect: element({}, {}), text: element({}, {}) }));
globalThis.document = { querySelectorAll: () => groups };
"""


def zoomed(svg: str, name: str) -> dict[str, tuple[float, float, str]]:
    """Name -> (x, width, label) of each frame that is seen after a click on one, by the file's own script in a page of stand-ins."""
    groups = [dict(group.attrib) for group in ElementTree.fromstring(svg).iter(f"{SVG}g")]
    click = next(i for i, one in enumerate(groups) if one["data-name"].startswith(name))
    script = "".join(ElementTree.fromstring(svg).find(f"{SVG}script").itertext())  # type: ignore[union-attr]
    tell = "groups[at].click(); const seen = (one) => [one.attributes, one.parts.rect.attributes, one.parts.text.textContent];"
    tell += "console.log(JSON.stringify(groups.map(seen)))"
    command = ["node", "-e", f"{PAGE}{script}{tell}", json.dumps(groups), str(click)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    seen = [one for one in json.loads(done.stdout) if one[0]["display"] == "inline"]
    return {one["data-name"]: (float(box["x"]), float(box["width"]), label) for one, box, label in seen}


def test_a_click_zooms_into_a_frame_and_one_on_what_is_around_it_goes_back() -> None:
    if not shutil.which("node"):
        pytest.skip("no node, which runs the script")
    svg = to_svg(STACKS, "gputop stacks", "sample")
    seen, whole = zoomed(svg, "__next__"), flame_svg.WIDTH - 2 * flame_svg.LEFT
    assert list(seen) == ["all", "MainThread 7", "<module> train.py:9", "__next__ dataloader.py:708", "futex_wait", "load data.py:7"]
    assert {round(width) for _, width, _ in list(seen.values())[:4]} == {whole}
    assert seen["futex_wait"][1] == pytest.approx(0.8 * whole, abs=0.1)
    x, width, label = seen["load data.py:7"]
    assert (x, width) == (pytest.approx(flame_svg.LEFT + 0.8 * whole, abs=0.1), pytest.approx(0.2 * whole, abs=0.1))
    assert label == "load data.py:7"
    back = zoomed(svg, "all")
    assert len(back) == len(boxes(svg))
    assert back["step train.py:41"][1] == pytest.approx(0.2 * whole, abs=0.1)


def gputop(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gputop", "stacks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=cwd)


def test_the_command_writes_a_picture_of_a_real_process(sleeper: int, tmp_path: Path) -> None:  # noqa: F811 - a fixture
    done = gputop(tmp_path, str(sleeper), "--svg", "one.svg")
    assert (done.returncode, done.stderr) == (0, "")
    assert "one.svg" in done.stdout
    assert any(title.startswith("sleeping (") for title in boxes((tmp_path / "one.svg").read_text()))
    assert (tmp_path / "one.svg").stat().st_mode & 0o777 == 0o600
    again = gputop(tmp_path, str(sleeper), "--svg", "one.svg")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "exists already" in again.stderr


def test_without_a_file_the_picture_gets_a_name_and_a_number_is_a_process(sleeper: int, tmp_path: Path) -> None:  # noqa: F811
    assert gputop(tmp_path, "--duration", "1", "--svg", str(sleeper)).returncode == 0
    (written,) = tmp_path.iterdir()
    assert re.fullmatch(r"gputop-stacks-\d{8}-\d{6}\.svg", written.name)
    assert "samples" in (ElementTree.fromstring(written.read_text()).findtext(f"{SVG}title") or "")
    out = gputop(tmp_path, str(sleeper), "--svg", "-")
    assert any(title.startswith("sleeping (") for title in boxes(out.stdout))
    both = gputop(tmp_path, str(sleeper), "--svg", "a.svg", "-o", "b.svg")
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)


def test_nothing_is_written_where_no_stack_can_be_read(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        done = gputop(tmp_path, str(child.pid), "--svg", "none.svg", "--duration", "1")
        assert done.returncode == 1
        assert done.stderr
        assert list(tmp_path.iterdir()) == []
    finally:
        child.kill()
        child.wait()


# on the screen


@pytest.mark.parametrize("width", [20, 75, 155, 215])
def test_each_row_is_as_wide_as_the_box_and_frames_side_by_side_stay_apart(width: int) -> None:
    root = flame_tree(STACKS)
    rows = layout(root, width)
    drawn = ["".join(text for text, _ in line) for line in lines(rows, root.children[0], width)]
    assert {len(line) for line in drawn} == {width}
    for row, line in zip(rows, drawn, strict=True):
        assert all(line[box.x] in "▏▸" for box in row)
        assert all(box.width >= 1 for box in row)
    assert sum(line.count("▸") for line in drawn) == 1
    shares = {box.frame.name: box.width / width for row in rows for box in row}
    assert shares["__next__ dataloader.py:708"] == pytest.approx(0.75, abs=1 / width)


def test_zoomed_into_a_frame_it_and_those_around_it_are_as_wide_as_the_box() -> None:
    root = flame_tree(STACKS)
    rows = layout(named(root, "__next__"), 100)
    assert [[(box.frame.name.split()[0], box.width) for box in row] for row in rows] == [
        [("all", 100)], [("MainThread", 100)], [("<module>", 100)], [("__next__", 100)], [("futex_wait", 80), ("load", 20)],
    ]  # fmt: skip


def test_the_cursor_goes_to_what_it_called_what_called_it_and_its_neighbours() -> None:
    root = flame_tree(STACKS)
    rows, at = layout(root, 100), root
    way = []
    for across, down in ((0, 1), (0, 1), (0, 1), (0, 1), (0, 1), (1, 0), (1, 0), (0, -1), (1, 0), (0, 1), (-1, 0)):
        at = moved(rows, at, across, down)
        way.append(at.name.split()[0])
    assert way == ["MainThread", "<module>", "__next__", "futex_wait", "futex_wait", "load", "load", "__next__", "step", "step", "__next__"]
    told = about(named(root, "load data.py:7"), root, "sample", 100)
    assert told == ["load (/src/data.py:7)", "", "15.0 % (15 samples), 20.0 % of what its caller takes"]


@pytest.mark.parametrize("width", [30, 75, 155])
def test_the_name_of_the_chosen_frame_is_whole_in_two_lines_or_loses_the_middle_of_its_path(width: int) -> None:
    whole = flame_tree([((NEXT,), 1)]).children[0]
    assert "".join(about(whole, whole, "sample", 75)[:2]) == NEXT
    long = flame_tree([((f"forward_{'x' * 20} (/{'y' * 400}/end.py:3)",), 1)]).children[0]
    first, second, _ = about(long, long, "sample", width)
    assert max(len(first), len(second)) <= width
    assert first.startswith("forward_x")
    assert second.endswith("end.py:3)")


def opened(program: GputopApp) -> FlameScreen:
    assert isinstance(program.screen, FlameScreen)
    return program.screen


async def test_g_draws_the_stacks_of_a_real_process(start: Start) -> None:
    pid = ready(start)
    program = app(view=View(selected=pid))
    async with program.run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        await shown(program, pilot, "none paused")
        await pilot.press("g")
        screen = opened(program)
        assert "sleeping stalled.py" in screen.page.text
        await pilot.press("escape")
        assert isinstance(program.screen, StacksScreen)


@pytest.mark.parametrize("size", [(80, 24), (120, 35), (220, 60)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_keys_and_clicks_choose_zoom_and_come_back(size: tuple[int, int]) -> None:
    program = app()
    async with program.run_test(size=size) as pilot:
        await pilot.press("s")
        stacks = program.screen
        assert isinstance(stacks, StacksScreen)
        await pilot.press("g")
        assert isinstance(program.screen, StacksScreen), "there is nothing to draw"
        stacks.open_over(FlameScreen(stacks.context, STACKS, "by hand", "sample"))
        await pilot.pause()
        screen = opened(program)
        await pilot.press("down", "down")
        assert NEXT in screen.page.text.replace("\n", "")
        assert "75.0 % (75 samples)" in screen.page.text
        await pilot.press("right")
        assert "step (/src/train.py:41)" in screen.page.text
        assert "20.0 % (20 samples)" in screen.page.text
        await pilot.press("left", "enter")
        assert screen.top.name.startswith("__next__")
        await pilot.press("backspace")
        assert screen.top.name.startswith("<module>")
        row = next(y for y in range(screen.page.size.height) if "futex_wait" in screen.page.line_text(y) and y > 3)
        await pilot.click(screen.page, offset=(screen.page.gutter.left + 3, row + screen.page.gutter.top))
        assert screen.chosen.name == "futex_wait"
        await pilot.click(screen.page, offset=(screen.page.gutter.left + 3, row + screen.page.gutter.top))
        assert screen.top.name == "futex_wait"


async def test_a_graph_higher_than_the_box_scrolls_with_the_cursor() -> None:
    program = app()
    async with program.run_test(size=(80, 24)) as pilot:
        await pilot.press("s")
        stacks = program.screen
        assert isinstance(stacks, StacksScreen)
        deep: list[Weighted] = [(tuple(f"f{i} (/a.py:{i})" for i in range(60)), 5)]
        stacks.open_over(FlameScreen(stacks.context, deep, "by hand", "sample"))
        await pilot.pause()
        screen = opened(program)
        await pilot.press(*["down"] * 58)
        await pilot.pause()
        seen = [screen.page.line_text(y) for y in range(screen.page.size.height)]
        assert any(line.startswith("▸f58 ") for line in seen)
        await pilot.press(*["up"] * 58)
        await pilot.pause()
        assert any(screen.page.line_text(y).startswith("▸f0 ") for y in range(screen.page.size.height))
