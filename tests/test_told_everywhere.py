"""One trouble, told on every surface: each kind of incident is made once, and each surface is asked for its cause, severity and subject.

A cell that stays empty needs a reason in `EMPTY`; one that is not empty any more must lose it.
"""

from __future__ import annotations

import ast
import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

import gputop
from gputop.agents import tools
from gputop.agents.places import Places
from gputop.alerts.alert import Alert
from gputop.alerts.sender import Alerting, Alerts
from gputop.alerts.watching import Watching
from gputop.api.companion import Companion
from gputop.cli import main
from gputop.commands import once
from gputop.commands.watch import STARVED
from gputop.findings.policy import FEED_EVERY_NS
from gputop.findings.sentence import unpack
from gputop.findings.trouble import Trouble, kind_of
from gputop.findings.verdict import GPU_LOST, LINK_ERRORS, SEVERITY_COLOURS, SLOWER
from gputop.fleet import document
from gputop.fleet.jobs import Sight
from gputop.fleet.overview import Overview
from gputop.fleet.summary import Summary, read_summary, summarize, summary_payload
from gputop.metrics.metered import Metered
from gputop.metrics.prometheus import Pages
from gputop.model.frame import Frame, Header
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.stream import kept as findings
from gputop.stream.command import Command
from gputop.stream.following import Following
from gputop.stream.reader import Loop
from gputop.stream.session import Session
from gputop.stream.snapshot import Snapshots
from gputop.stream.stalled import Unwatched
from gputop.tui.draw.fleet_page import Choice, page
from gputop.tui.draw.view import View
from gputop.tui.feed import ScreenSettings, live_context
from gputop.tui.panels import Time, VerdictPanel
from tests.metrics.test_otlp import Receiver
from tests.streams import Given
from tests.tui.conftest import Silence
from tests.unit.diagnosis import test_badlinks, test_incidents, test_slower
from tests.unit.diagnosis.causes import cpu_contention, straggling
from tests.unit.diagnosis.forecast import test_growth
from tests.unit.diagnosis.scene import FUTEX, Scene
from tests.unit.diagnosis.test_hangs import rest, steady, still
from tests.unit.diagnosis.test_lost_gpus import lose, machine, silent
from tests.wait import PATIENCE_S

KEY_EVERY = 20  # frames


def lost() -> Scene:
    return lose(machine()).play(14)


def lost_unused() -> Scene:
    return lose(machine(2), 1).play(14)


def hung() -> Scene:
    return silent(machine(), 16)


def must_be_reset() -> Scene:
    scene = machine()
    scene.gpus[0] |= {"util_pct": 0.0, "power_w": 75.0, "xid": 120, "needs_reset": True}
    return scene.play(14)


def grows() -> Scene:
    scene = test_growth.machine()
    return test_growth.live(scene, 30, test_growth.leaking(scene, 20, 101, 102))


def orphan() -> Scene:
    scene = test_incidents.orphaned(uses_cuda=True)
    scene.gpus[0]["pids"] = [100, 700]
    return scene.play(12)


def bad_link() -> Scene:
    return test_badlinks.trained_again(test_badlinks.machine(), 14, link=3)


class Kind:
    """A trouble: how it is made, and what must arrive."""

    def __init__(self, make: Callable[[], Scene], cause: str, severity: str, subject: str, words: str = "", rank: str = "") -> None:
        """``subject``: its GPU or process, as a text has it, and over hosts its ``rank``. ``words``: what stands for the cause where there
        is no room for it."""
        self.make, self.cause, self.severity, self.subject, self.words, self.rank = make, cause, severity, subject, words, rank


KINDS = {
    "a cause": Kind(lambda: cpu_contention().play(9), "cpu-contention", "medium", "100"),
    "a hang": Kind(lambda: still(rest(steady()), FUTEX, 100, 101, 102).play(16), "hung-worker", "high", "100"),
    "a straggler": Kind(lambda: straggling().play(16), "straggler-rank", "high", "200", "STRAGGLER", rank="rank 1"),
    "memory that grows": Kind(grows, "host-memory-growth", "high", "100", "memory ends in"),
    "an orphan": Kind(orphan, "hung-worker", "low", "700", "outlived"),
    "a lost GPU": Kind(lost, GPU_LOST, "high", "GPU 0"),
    "a lost GPU without a job": Kind(lost_unused, GPU_LOST, "high", "GPU 1"),
    "a hung GPU": Kind(hung, GPU_LOST, "high", "GPU 0"),
    "a slower run": Kind(test_slower.slower, SLOWER, "medium", "100", "% slower"),
    "a bad link": Kind(bad_link, LINK_ERRORS, "medium", "GPU 0", "NVLink 3"),
    "a GPU to be reset": Kind(must_be_reset, GPU_LOST, "high", "GPU 0"),
}


class Stream:
    """The frames of a trouble, and what is made of them once."""

    def __init__(self, kind: Kind, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self.folder = kind, folder
        self.frames: list[Frame] = []
        plain = Scene.next_frame

        def noted(scene: Scene, dt: float) -> Frame:
            frame = replace(plain(scene, dt), key=len(self.frames) % KEY_EVERY == 0, ticks=1)
            self.frames.append(frame)
            return frame

        with monkeypatch.context() as patched:
            patched.setattr(Scene, "next_frame", noted)
            self.header: Header = replace(kind.make().board.header, host="node7", gputop="0", interval_ns=200_000_000)

    @property
    def items(self) -> list[Header | Frame]:
        return [self.header, *self.frames]

    @cached_property
    def following(self) -> Following:
        one = Following()
        for item in self.items:
            one.take(item)
        return one

    @cached_property
    def session(self) -> Session:
        one = Session()
        for item in self.items:
            one.ingest(item)
        one.engine.feed(one.board)
        return one

    @cached_property
    def path(self) -> str:
        """A recording with the recorder's findings."""
        following, path = Following(), self.folder / "run.gputop"
        following.restate(self.header)
        writer = Writer(str(path), self.header, findings.FindingsRecorder(following.engine).tell)
        for frame in self.frames:
            following.take(frame)
            writer.add(frame)
        writer.close()
        return str(path)

    @cached_property
    def summary(self) -> Summary:
        """As it comes over the wire."""
        return read_summary(summary_payload(summarize(self.following.board, self.following.engine)))

    @cached_property
    def fleet(self) -> Overview:
        """Beside a node that is idle."""
        overview = Overview()
        idle = Sight("node8", Summary(host="node8"))
        for _ in range(3):
            overview.take([Sight("node7", self.summary), idle])
        return overview


def joined(lines: Any) -> str:
    """Text, and severities by the colours they have."""
    spans = [span for line in lines for span in line]
    severities = [severity for severity, colour in SEVERITY_COLOURS.items() if any(colour == style for _, style in spans)]
    return " ".join(text for text, _ in spans) + f" {severities}"


class _Sink:
    """Keeps what it gets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.got: list[Alert] = []

    def send(self, alert: Alert) -> None:
        self.got.append(alert)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code, words
    return capsys.readouterr().out


# the surfaces: what each of them says, as text


def screen(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    context = live_context(one.session, View(width=220), None, Silence(), ScreenSettings())  # type: ignore[arg-type]
    panel = VerdictPanel(context, Time(context))
    panel.rows = 3
    return joined(panel.lines())


def once_page(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    return joined(once.page(one.session, View(width=220, height=100)))


def live_json(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    snapshots = Snapshots()
    for item in one.items:
        snapshots.take(item)
    return json.dumps(to_builtins(snapshots.now().incidents))


def explain(one: Stream, capsys: pytest.CaptureFixture[str]) -> str:
    return said(capsys, "explain", one.path, "--fine")


def explain_json(one: Stream, capsys: pytest.CaptureFixture[str]) -> str:
    return said(capsys, "explain", one.path, "--fine", "--json")


def explain_code(one: Stream, capsys: pytest.CaptureFixture[str]) -> str:
    """What it prints where the exit code is 3 for that severity."""
    return said(capsys, "explain", one.path, "--fine", "--fail-on", one.kind.severity, code=3)


def kept_findings(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    with Recording(one.path) as recording:
        payload = recording.findings()
    assert payload is not None
    return str(unpack(payload, findings.FindingsBlock).explanation)


def watched(one: Stream, severity: str) -> tuple[int, list[_Sink]]:
    """What `gputop watch` does with this stream: its exit code, and what two sinks got."""
    sinks = [_Sink("one"), _Sink("other")]
    lines: list[str] = []
    alerts = Alerts(sinks, severity, lines.append, lambda text: print(text))
    judging = Unwatched(None, every_ns=FEED_EVERY_NS)
    watching = Watching(judging, alerts, Command([]), print, severity=severity, for_s=1.0)
    with Loop(Given(one.items), judging, watching, Alerting(alerts, judging, watching.is_about), drain_s=PATIENCE_S) as loop:
        loop.run()
    return STARVED if watching.has_starved else 0, sinks


def watch_text(one: Stream, capsys: pytest.CaptureFixture[str]) -> str:
    watched(one, one.kind.severity)
    return capsys.readouterr().out


def watch_code(one: Stream, capsys: pytest.CaptureFixture[str]) -> str:
    """What it prints where the exit code is 3."""
    code, _ = watched(one, one.kind.severity)
    out = capsys.readouterr().out
    return out if code == STARVED else ""


def alert(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    _, (first, second) = watched(one, one.kind.severity)
    assert first.got == second.got
    return json.dumps(to_builtins(first.got))


def sql(one: Stream, capsys: pytest.CaptureFixture[str]) -> str:
    return said(capsys, "query", one.path, "SELECT * FROM incident", "--json")


def html(one: Stream, capsys: pytest.CaptureFixture[str]) -> str:
    out = one.folder / "out.html"
    said(capsys, "export", one.path, "--to", "html", "-o", str(out))
    return out.read_text()


def perfetto(one: Stream, capsys: pytest.CaptureFixture[str]) -> str:
    out = one.folder / "out.json"
    said(capsys, "export", one.path, "--to", "perfetto", "-o", str(out))
    return json.dumps([event for event in json.loads(out.read_text())["traceEvents"] if "severity" in event.get("args", {})])


def report(one: Stream, capsys: pytest.CaptureFixture[str]) -> str:
    found = json.loads(said(capsys, "report", one.path, "--to", "json"))
    return json.dumps({"by_cause": found["by_cause"], "incidents": found["incidents"]})


def fleet_screen(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    return joined(page(one.fleet, Choice(width=220, height=60), clock="", own="", note=" ", lanes=False).lines)


def fleet_jobs(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    found = document.fleet(one.fleet)
    return f"{[(node.does, node.says) for node in found.nodes]} {found.jobs}"


def fleet_json(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    return str(one.fleet.rows[0].sight.summary.incidents)  # type: ignore[union-attr]


def mcp(tool: str) -> Callable[[Stream, pytest.CaptureFixture[str]], str]:
    return lambda one, _: json.dumps(tools.call(Places([one.path], anywhere=False), tool, {}))


def metered(one: Stream) -> Metered:
    found = Metered()
    with Loop(Given(one.items), found.judging, found) as loop:
        loop.run()
    return found


def metrics(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    lines = Pages(metered(one)).page()[0].decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("gputop_incidents{"))


def otlp(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    from gputop.metrics.otlp import Otlp

    receiver = Receiver()
    serving = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        Otlp(f"http://127.0.0.1:{receiver.server_port}", metered(one), "n1").push()
        return str(receiver.logs)
    finally:
        receiver.shutdown()
        serving.join()
        receiver.server_close()


def python_file(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    with gputop.open(one.path) as recording:
        return str(recording.explain().incidents)


def python_live(one: Stream, _: pytest.CaptureFixture[str]) -> str:
    """What the companion of `gputop.watch` says."""
    told: list[dict[str, Any]] = []

    questions, asks = os.pipe()
    companion = Companion(questions, 1, os.getppid())
    companion._say = lambda **words: told.append(words)  # type: ignore[method-assign]
    with Loop(Given(one.items), companion, drain_s=0.0) as loop:
        loop.run()
    os.close(questions)
    os.close(asks)
    return str([words["incidents"] for words in told])


CAUSE, SEVERITY, SUBJECT = "cause", "severity", "subject"
ALL = (CAUSE, SEVERITY, SUBJECT)
SURFACES: dict[str, tuple[Callable[[Stream, pytest.CaptureFixture[str]], str], tuple[str, ...]]] = {
    "screen": (screen, ALL),
    "--once": (once_page, ALL),
    "--json": (live_json, ALL),
    "explain": (explain, ALL),
    "explain --json": (explain_json, ALL),
    "explain --fail-on": (explain_code, ALL),
    "findings in a recording": (kept_findings, ALL),
    "watch": (watch_text, ALL),
    "watch --fail-on": (watch_code, ALL),
    "alert": (alert, ALL),
    "query": (sql, ALL),
    "html": (html, ALL),
    "perfetto": (perfetto, ALL),
    "report": (report, ALL),
    "screen over hosts": (fleet_screen, (CAUSE, SUBJECT)),  # its colour is of the row that is worst
    "jobs over hosts": (fleet_jobs, (CAUSE, SUBJECT)),  # a node's own trouble is in its summary, with its severity
    "summary of a node": (fleet_json, ALL),
    "MCP diagnose": (mcp("diagnose"), ALL),
    "MCP incidents": (mcp("incidents"), ALL),
    "MCP overview": (mcp("overview"), ALL),
    "metrics": (metrics, (CAUSE, SEVERITY)),  # a label holds no pid; what it is about has series of its own
    "OpenTelemetry": (otlp, ALL),
    "Python, a file": (python_file, ALL),
    "Python, live": (python_live, ALL),
}
_NO_COST = "it costs no GPU time: no seconds that count as lost, no job that starves"
_ITS_NODE = "of a node's own incidents, jobs over hosts take those that stop or slow a job; the others are in its summary"
EMPTY = {
    ("memory that grows", "report"): _NO_COST,
    ("an orphan", "report"): _NO_COST,
    ("memory that grows", "watch --fail-on"): _NO_COST,
    ("an orphan", "watch --fail-on"): _NO_COST,
    ("memory that grows", "screen over hosts"): _ITS_NODE,
    ("memory that grows", "jobs over hosts"): _ITS_NODE,
    ("an orphan", "screen over hosts"): _ITS_NODE,
    ("an orphan", "jobs over hosts"): _ITS_NODE,
    ("a bad link", "report"): _NO_COST,
    ("a bad link", "watch --fail-on"): _NO_COST,
    ("a bad link", "screen over hosts"): _ITS_NODE,
    ("a bad link", "jobs over hosts"): _ITS_NODE,
    ("a slower run", "report"): _NO_COST,
    ("a slower run", "screen over hosts"): _ITS_NODE,
    ("a slower run", "jobs over hosts"): _ITS_NODE,
    ("memory that grows", "MCP overview"): "it looks at the last 10 s, in which no growth is found; diagnose and incidents look at all",
    ("a slower run", "MCP overview"): "it looks at the last 10 s, in which no step is compared; diagnose and incidents look at all",
}
"""(kind, surface) -> why nothing of the kind is told there."""


READ_IN = {
    "agents/diagnose.py": "MCP diagnose", "agents/incidents.py": "MCP incidents", "agents/overview.py": "MCP overview",
    "alerts/sender.py": "alert", "alerts/watching.py": "watch", "api/companion.py": "Python, live", "api/recordings.py": "Python, a file",
    "api/watching.py": "Python, live", "commands/explain.py": "explain", "commands/once.py": "--once",
    "fleet/overview.py": "screen over hosts", "fleet/summary.py": "summary of a node", "metrics/otlp.py": "OpenTelemetry",
    "metrics/registry.py": "metrics", "tables/export_html.py": "html", "tables/load.py": "query", "tables/usage.py": "report",
}  # fmt: skip
"""Module that reads what was found -> its row of `SURFACES`."""
NOT_SHOWN = {
    "agents/compare.py": "it counts the incidents of two recordings",
    "agents/look.py": "the tools' own reading, which each of them shows in its way",
    "commands/diff.py": "it counts the incidents of two recordings",
    "commands/live.py": "it asks what to offer after the screen",
    "metrics/totals.py": "it adds up what culprits took",
}
"""Module that reads what was found -> why it shows no incident."""
_ROOMS = ("agents", "alerts", "api", "commands", "fleet", "integrations", "metrics", "tables")


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stream]]:
    """Each trouble, made once."""
    made: dict[str, Stream] = {}
    patch = pytest.MonkeyPatch()

    def stream(name: str) -> Stream:
        if name not in made:
            made[name] = Stream(KINDS[name], tmp_path_factory.mktemp("told"), patch)
        return made[name]

    yield stream
    patch.undo()


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_trouble_is_told_on_each_surface(
    kind: str, surface: str, streams: Callable[[str], Stream], capsys: pytest.CaptureFixture[str]
) -> None:
    one, (says, facts) = KINDS[kind], SURFACES[surface]
    text = says(streams(kind), capsys)
    told = one.cause in text or bool(one.words and one.words in text)
    if (kind, surface) in EMPTY:
        assert not told, "this cell is not empty any more: take its reason away"
        return
    assert told, text[-2000:]
    assert SEVERITY not in facts or one.severity in text
    assert SUBJECT not in facts or any(form in text for form in _forms(one)), text[-2000:]


def _forms(one: Kind) -> tuple[str, ...]:
    """How its subject is named: in words, or by a field."""
    number = one.subject.removeprefix("GPU ")
    if number == one.subject:
        return (one.subject, one.rank) if one.rank else (one.subject,)
    return one.subject, f'"gpu": {number}', f'"gpu":{number}', f"gpu={number}"


def test_a_reason_is_of_a_cell_that_is_there() -> None:
    assert all(kind in KINDS and surface in SURFACES and reason for (kind, surface), reason in EMPTY.items())


def test_whatever_reads_findings_has_a_row_or_a_reason() -> None:
    """The screen's rooms are left out: a panel is no surface of its own."""
    root = Path(gputop.__file__).parent
    reading = {str(path.relative_to(root)) for room in _ROOMS for path in (root / room).rglob("*.py") if _reads_findings(path)}
    assert reading == READ_IN.keys() | NOT_SHOWN.keys(), "a surface is new: give it a row in SURFACES, and name it in READ_IN"
    assert {*READ_IN.values()} <= SURFACES.keys()


def _reads_findings(path: Path) -> bool:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    explains = any(isinstance(node, ast.ImportFrom) and node.module == "gputop.stream.explained" for node in nodes)
    return explains or any(isinstance(node, ast.Attribute) and node.attr == "incidents" for node in nodes)


def test_each_kind_of_trouble_is_among_them(streams: Callable[[str], Stream]) -> None:
    found = {kind_of(one) for name in KINDS for one in streams(name).following.engine.incidents}
    assert found >= set(Trouble) - {Trouble.PAUSED}, "a kind is new: make it above"
