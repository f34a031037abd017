"""A recording as a page, opened and driven in a browser: one start of it for all that is looked at."""

from __future__ import annotations

import html
import importlib.util
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputop import cli
from gputop.commands.replay import sample
from gputop.commands.report import price
from gputop.findings.lanes import LANES_OF_CAUSE
from gputop.findings.verdict import page_of
from gputop.model.fields import STEPS, TOKENS, WAITING
from gputop.model.frame import Frame, ProcInfo
from gputop.recording.reader import Recording
from gputop.stream.session import Session
from gputop.tables import export_html, usage, usage_text
from tests.browser import Browser, browser
from tests.recording.made import HEADER, record
from tests.recording.test_report import seconds, week
from tests.require import require
from tests.unit.test_servings import asked

HOSTILE = "</script><script>window.pwned=1</script><img src=http://198.51.100.1/x onerror='window.pwned=1'>"
MOST_BYTES = 3 << 20
OPENS_S = 1.0  # of CPU: whether it is drawn within a second of a busy machine is not the page's doing


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, in which a process beside the training has a name that is a script."""
    path = tmp_path_factory.mktemp("html") / "run.gputop"

    def renamed(info: ProcInfo) -> ProcInfo:
        return (
            replace(info, comm=HOSTILE, cmdline=[HOSTILE]) if info.comm.startswith("log-shipper") or "log-shipper" in info.cmdline else info
        )

    with Recording(sample()) as recording:
        frames = [replace(frame, infos=[renamed(info) for info in frame.infos]) for frame in recording.frames()]
        record(path, frames, replace(recording.header, host=HOSTILE))
    assert any(info.comm == HOSTILE for frame in frames for info in frame.infos)
    return path


@pytest.fixture(scope="module")
def page(recorded: Path) -> Path:
    out = recorded.with_suffix(".html")
    assert cli.main(["export", str(recorded), "--to", "html", "-o", str(out)]) == 0
    assert out.stat().st_mode & 0o77 == 0
    return out


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    require("browser")
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def axe(tab: Browser) -> list[str]:
    """What axe finds wrong."""
    found = importlib.util.find_spec("axe_playwright_python")
    assert found is not None
    assert found.origin is not None
    tab.run(Path(found.origin).with_name("axe.min.js").read_text() + ";0")
    wrong = tab.run("axe.run(document).then((r) => r.violations.map((v) => `${v.id}: ${v.nodes[0].html} ${v.nodes[0].failureSummary}`))")
    return list(wrong)


def complaints(tab: Browser) -> list[dict[str, Any]]:
    """Errors of the script, and what the page's policy had to forbid."""
    return [event for event in tab.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")]


def requests(tab: Browser) -> list[str]:
    return [event["params"]["request"]["url"] for event in tab.events if event["method"] == "Network.requestWillBeSent"]


def text(tab: Browser, of: str) -> str:
    return str(tab.run(f"document.querySelector({of!r}).textContent"))


def test_it_shows_the_recording_and_runs_nothing_from_it(tab: Browser, page: Path, recorded: Path) -> None:
    assert tab.open(page) < OPENS_S
    assert requests(tab) == [page.as_uri()]
    assert complaints(tab) == []
    assert tab.run("window.pwned") is None
    assert text(tab, "#host") == HOSTILE
    assert tab.run("[...document.querySelectorAll('#procs .who')].some((who) => who.textContent.includes('onerror='))")

    with Recording(str(recorded)) as recording:
        session = Session()
        session.ingest(recording.header)
        for frame in recording.frames():
            session.ingest(frame)
    found = session.engine.explain()
    lost, total = found.ledger.gpu_lost_s, found.ledger.gpu_total_s
    assert text(tab, "#ledger-total").startswith(f"{lost:.1f} of {total:.1f} GPU seconds were lost")
    shown = tab.run("[...document.querySelectorAll('#incidents p')].map((one) => one.textContent)")
    assert {one.headline for one in found.incidents} <= set(shown)
    assert tab.run("document.querySelectorAll('#incidents details').length") == len(found.incidents)
    commands = tab.run("[...document.querySelectorAll('#incidents pre')].map((one) => one.textContent)")
    assert commands == [fix.command for one in found.incidents for fix in one.fixes if fix.command]


def test_the_lanes_of_the_cause_stand_below_steps_and_the_gpu_and_are_tall(tab: Browser, page: Path) -> None:
    tab.open(page)
    shown = tab.run("[...document.querySelectorAll('#lanes li')].map((row) => [lanes.find((lane) => lane.row === row).id, row.className])")
    ids = [name for name, _ in shown]
    own = [name for name in LANES_OF_CAUSE["cpu-contention"] if name in ids]
    assert own
    assert ids[: 3 + len(own)] == [STEPS, "gpu.util_pct", "gpu.gr_active_pct", *own]
    assert {name for name, row in shown if "tall" in row.split()} >= {STEPS, "gpu.util_pct", *own}
    tab.run("orderLanes('disk-io', 0, null)")
    third = tab.run("lanes.find((lane) => lane.row === document.querySelectorAll('#lanes li')[3]).id")
    assert third in LANES_OF_CAUSE["disk-io"] or not {*LANES_OF_CAUSE["disk-io"]} & {*ids}


def test_it_goes_to_a_moment_by_key_and_touch(tab: Browser, page: Path, recorded: Path) -> None:
    """And shows what the screen would: the verdict and the readings of then."""
    tab.open(page)
    tab.run("document.getElementById('scrub').focus()")
    tab.press("Home")
    first = text(tab, "#clock")
    tab.press("ArrowRight")
    second = text(tab, "#clock")
    assert ", 0:00 of " in first
    assert second != first
    tab.run("document.activeElement.blur()")
    tab.press("n")
    assert float(tab.run("document.getElementById('scrub').value")) == round(json.loads(data_of(page))["incidents"][0]["start_s"] * 10)
    box = tab.run("(({x, y, width}) => ({x, y, width}))(document.querySelector('#lanes canvas').getBoundingClientRect())")
    tab.tap(box["x"] + 0.75 * box["width"], box["y"] + 5)
    cell = int(tab.run("document.getElementById('scrub').value"))
    assert cell == pytest.approx(tab.run("first + 0.75 * shown"), abs=2)

    with Recording(str(recorded)) as recording:
        session = Session()
        session.ingest(recording.header)
        until_ns = recording.start_ns + (cell + 1) * recording.header.interval_ns
        for frame in recording.frames(end_ns=until_ns):
            session.ingest(frame)
    assert text(tab, "#symptom").split(" ")[1] == session.engine.verdict.symptom
    value = session.history.at(("gpu.power_w", 0), until_ns, 10**9)
    assert (
        abs(float(tab.run("lanes.find((lane) => lane.id === 'gpu.power_w').number.textContent")) - value) <= 0.51
    )
    tab.press(" ")
    assert text(tab, "#play").endswith("pause")
    later = f"if (+document.getElementById('scrub').value > {cell}) {{ clearInterval(due); done(); }}"
    tab.run(f"new Promise((done) => {{ const due = setInterval(() => {{ {later} }}, 20); }})")
    tab.press(" ")
    assert text(tab, "#play").endswith("play")


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
@pytest.mark.soak
def test_anybody_can_read_it(tab: Browser, page: Path, width: int, dark: bool) -> None:
    """By axe's rules: contrast, names, roles; and on a phone nothing is wider than it."""
    tab.open(page, width, 844, dark)
    tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert axe(tab) == []
    assert tab.run("document.documentElement.scrollWidth") <= width


@pytest.mark.soak
def test_anybody_can_read_the_report(tab: Browser, tmp_path: Path) -> None:
    (tmp_path / "week.html").write_text(usage_text.page(usage.bill(week(), None, None, price("3.5/h"))))
    tab.open(tmp_path / "week.html", 390, 844)
    assert complaints(tab) == []
    assert axe(tab) == []
    assert tab.run("document.documentElement.scrollWidth") <= 390


OVERLAPS = """(() => {
  const seen = (node) => { // what of a text is visible: its lines, cut where a box around it hides the rest
    const range = document.createRange();
    range.selectNodeContents(node);
    return [...range.getClientRects()].map((line) => {
      let [left, top, right, bottom] = [line.left, line.top, line.right, line.bottom];
      for (let around = node.parentElement; around; around = around.parentElement) {
        if (getComputedStyle(around).overflowX === "visible") continue;
        const box = around.getBoundingClientRect();
        [left, top] = [Math.max(left, box.left), Math.max(top, box.top)];
        [right, bottom] = [Math.min(right, box.right), Math.min(bottom, box.bottom)];
      }
      return { left, top, right, bottom, text: node.data.trim(), node };
    }).filter((box) => box.right - box.left > 1 && box.bottom - box.top > 1);
  };
  const texts = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const around = node.parentElement;
    if (node.data.trim() && around.checkVisibility() && !around.closest("pre, script, select")) texts.push(...seen(node));
  }
  const wrong = [];
  texts.forEach((one, i) => texts.slice(i + 1).forEach((other) => {
    const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    if (one.node !== other.node && wide > 2 && high > 3) wrong.push(`${one.text} / ${other.text}`);
  }));
  const cursor = document.getElementById("cursor");
  if (cursor) {
    cursor.style.pointerEvents = "auto";
    for (const one of texts.filter((text) => document.getElementById("axis").contains(text.node))) {
      one.node.parentElement.scrollIntoView({ block: "center" });
      const x = cursor.getBoundingClientRect().left, line = seen(one.node)[0];
      if (line && line.left < x && x < line.right && document.elementFromPoint(x, (line.top + line.bottom) / 2) === cursor)
        wrong.push(`${one.text} / the cursor`);
    }
  }
  return wrong;
})()"""
"""Texts that lie over one another, or under the cursor of the time."""


@pytest.mark.parametrize("width", [375, 360, 768, 1280])
def test_no_text_lies_over_another(tab: Browser, page: Path, tmp_path: Path, width: int) -> None:
    (tmp_path / "week.html").write_text(usage_text.page(usage.bill(week(), None, None, price("3.5/h"))))
    for shown in (page, tmp_path / "week.html"):
        tab.open(shown, width, 800)
        assert tab.run(OVERLAPS) == [], shown.name
        assert tab.run("document.documentElement.scrollWidth") <= width, shown.name


def test_a_server_has_the_way_of_a_request_at_each_moment_and_in_each_incident(tab: Browser, page: Path, tmp_path: Path) -> None:
    """As its diagnosis tells it, with a mark where the time goes; a training has none."""
    header, *frames = asked()
    path, session = tmp_path / "served.gputop", Session()
    record(path, frames, header)  # type: ignore[arg-type]
    for item in (header, *frames):
        session.ingest(item)
    assert cli.main(["export", str(path), "--to", "html", "-o", str(tmp_path / "served.html")]) == 0
    tab.open(tmp_path / "served.html")
    assert complaints(tab) == []
    first = tab.run("[...document.querySelectorAll('#lanes li')].map((row) => lanes.find((lane) => lane.row === row).id)")[:2]
    assert first == [TOKENS, WAITING], "what its clients feel"
    tab.run("go(cells - 1)")
    read = "[...document.querySelectorAll('{} li')].map((one) => [one.textContent, one.className === 'warn'])"
    verdict, [incident] = session.engine.verdict, session.engine.explain().incidents
    for place, requests in (("#asks", verdict.requests), ("#incidents .asks", incident.requests)):
        assert requests is not None
        assert tab.run(read.format(place)) == [[one.line(), one.slow] for one in requests.way]
        assert [one.part for one in requests.way if one.slow] == ["tokenizer"]
    tab.open(page)
    assert tab.run("document.getElementById('asks').hidden")


def test_it_opens_with_headline_fix_and_a_button_to_copy_it(tab: Browser, page: Path) -> None:
    """On a phone's first screen: what it is, what to do, and the command; the worst incident is open."""
    tab.open(page, 375, 800)
    told = json.loads(data_of(page))
    whole, [worst] = told["whole"], [one for one in told["incidents"] if one["id"] == told["whole"]["incident"]]
    assert text(tab, "#answer-headline") == whole["headline"] == worst["headline"]
    assert tab.run("document.title") == whole["headline"]
    fix = whole["fix"]
    assert fix in worst["fixes"]
    assert not fix["look"]
    assert fix["text"] in text(tab, "#answer-fix")
    assert text(tab, "#answer-fix pre") == fix["command"]
    assert tab.run("document.querySelector('#answer-fix .copy').getBoundingClientRect().bottom") < 800
    assert tab.run("document.querySelector('#answer-fix a').href") == page_of(whole["cause"])
    tab.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    tab.run("document.querySelector('#answer-fix .copy').click()")
    assert tab.run("window.copied") == fix["command"]
    assert text(tab, "#answer-fix .copy") == "copied"
    tab.run("document.querySelector('#answer-incident button').click()")
    assert float(tab.run("document.getElementById('scrub').value")) == round(worst["start_s"] * 10)
    opened = tab.run("[...document.querySelectorAll('#incidents details[open] summary')].map((one) => one.textContent)")
    assert [worst["cause"] in summary for summary in opened] == [True]


def test_its_title_is_the_headline_before_any_script_runs(page: Path) -> None:
    """As a list of files, or a chat, reads it."""
    assert f"<title>{html.escape(json.loads(data_of(page))['whole']['headline'])}</title>" in page.read_text()
    told = json.loads(data_of(page))
    told["whole"]["headline"] = "</title><script>"
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in export_html.page(told)


def data_of(page: Path) -> str:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.soak
def test_the_largest_page_is_small_and_opens_at_once(tab: Browser, page: Path, tmp_path: Path) -> None:
    """As many GPUs, lanes, processes and moments as a page has at most, with values that never stand still."""
    told, rng = json.loads(data_of(page)), random.Random(4)

    def noise(count: int, most: int) -> list[int | list[int] | None]:
        return export_html.packed([rng.randrange(most) for _ in range(count)])

    told |= {"cells": export_html.MOST_CELLS, "steps": export_html.MOST_STEPS, "step_cells": 5, "cell_s": 0.2}
    gpu = told["gpus"][0] | {name: noise(told["steps"], 800) for name, _ in export_html._GPU_COLUMNS}
    told["gpus"] = [gpu | {"index": i} for i in range(8)]
    lane = told["lanes"][0]
    told["lanes"] = [lane | {"gpu": i % 8, "values": noise(told["cells"], 100)} for i in range(8 * 6 + 11)]
    row = told["procs"][0] | {name: noise(told["steps"], 1000) for name, _ in export_html._PROC_COLUMNS}
    codes = export_html.packed([i // 5 % 9 for i in range(told["cells"])])
    told["procs"] = [row | {"codes": codes, "role": "worker"} for _ in range(export_html.MOST_PROCESSES)]
    told["verdicts"] = [[i * 5, told["verdicts"][i % len(told["verdicts"])][1]] for i in range(told["steps"])]
    path = tmp_path / "large.html"
    path.write_text(export_html.page(told))
    assert path.stat().st_size <= MOST_BYTES
    assert tab.open(path) < OPENS_S
    assert complaints(tab) == []


@pytest.mark.soak
def test_names_can_be_masked(recorded: Path, tmp_path: Path) -> None:
    plain, masked = tmp_path / "a.html", tmp_path / "b.html"
    assert cli.main(["export", str(recorded), "--to", "html", "-o", str(plain), "--last", "50s"]) == 0
    assert cli.main(["export", str(recorded), "--to", "html", "-o", str(masked), "--last", "50s", "--mask-names"]) == 0
    told = [json.loads(data_of(path)) for path in (plain, masked)]
    for word in ("train.py", "ada", "metrics-agent", "pwned", "decode_image"):
        found = [word in json.dumps(one) for one in told]
        assert found[1] is False, word
    assert "train.py" in json.dumps(told[0])
    assert told[0]["whole"]["cause"] == told[1]["whole"]["cause"] == "cpu-contention"
    assert told[0]["ledger"] == told[1]["ledger"]
    assert told[1]["stacks"] == []


def test_the_flag_is_of_pages_alone(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(recorded), "--to", "csv", "-o", str(tmp_path / "a"), "--mask-names"]) == 2
    assert "--mask-names goes with --to html" in capsys.readouterr().err


def test_a_column_is_what_went_in() -> None:
    rng = random.Random(1)
    values = [rng.choice((None, 5, 5, 5, rng.randrange(-9, 9))) for _ in range(400)]
    out: list[int | None] = []
    last = 0
    for item in export_html.packed(values):
        if isinstance(item, list):
            out += [out[-1]] * item[0]
        elif item is None:
            out.append(None)
        else:
            last += item
            out.append(last)
    assert out == values
    assert export_html.packed([]) == []
    assert export_html.packed([7] * 3000) == [7, [2999]]


def test_a_reading_of_a_second_fills_its_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long stretch there is one a second, and more columns than that."""
    monkeypatch.setattr("gputop.stream.judged.LONG_NS", 10 * 10**9)
    path, out = tmp_path / "a.gputop", tmp_path / "a.html"
    record(path, seconds(300, interval_s=0.1, util=50.0))
    assert cli.main(["export", str(path), "--to", "html", "-o", str(out)]) == 0
    told = json.loads(data_of(out))
    (lane,) = [one for one in told["lanes"] if one["id"] == "gpu.mem_used_pct"]
    assert told["read_at"].startswith("read at 1 s")
    assert told["cells"] == 300
    assert None not in lane["values"][1:-1]
    assert None not in told["gpus"][0]["util_pct"][1:-1]


def test_a_recording_without_gpu_or_training_is_a_page(tab: Browser, tmp_path: Path) -> None:
    path, out = tmp_path / "a.gputop", tmp_path / "a.html"
    record(path, [Frame(i, HEADER.t_ns + i * 10**8, key=i == 0) for i in range(30)])
    assert cli.main(["export", str(path), "--to", "html", "-o", str(out)]) == 0
    told = json.loads(data_of(out))
    assert (told["gpus"], told["lanes"], told["procs"], told["ledger"]["gpu_lost_s"]) == ([], [], [], None)
    tab.open(out)
    assert complaints(tab) == []
    assert "No GPU time is counted" in text(tab, "#ledger-total")
