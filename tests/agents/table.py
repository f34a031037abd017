"""What it takes an agent to find a cause: the table of docs/agents.md, made by asking a real server through the official client.

    python -m tests.agents.table             print it (``--write``: into the page)
    python -m tests.agents.table --all       ask about the whole corpus, too, which takes minutes
    python -m tests.agents.table --loops     close the loops, too, on an idle host; what is not made anew stays as the page has it
    python -m tests.agents.table --record    record the demo's scenarios anew, on an idle host
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from mcp import StdioServerParameters
from mcp.client import Client

from gputop.agents import tools
from gputop.agents.places import Places
from gputop.demo.scenarios import SCENARIOS
from gputop.demo.stage import FIRST_CALM_S, staged
from gputop.model.frame import Frame, Header
from gputop.recording import columns
from gputop.recording.chunks import Decoder
from tests.agents import agent, closing
from tests.agents.agent import Asked
from tests.corpus import accuracy, calm, runs, split
from tests.corpus.runs import Run
from tests.workloads.environment import ROOT

PAGE = ROOT / "gputop" / "data" / "agents.md"
BLOCK = re.compile(r"(?<=<!-- made by tests/agents/table\.py -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
BEFORE_S, RECORDED_S = 2.0, 14.0  # s of a demo's recording before its trouble, and in all
ATTEMPTS = 4  # tries for a run that others do not disturb
ANSWER_S = 60.0  # s for an answer: ten times and more what it takes on a quiet machine
CALM_CPUS, PATIENCE_S = 0.3, 90.0  # CPUs of others before a run begins, and s that are waited for that
ALL, LOOPS = "| all, both modes", "| a script is slow for"  # how lines begin
Row = tuple[str, str, Asked, bool]  # what was asked about, the cause that is right, what was found, whether that is it


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[Client]:
    """A real one over the recordings of a folder."""
    argv = ["-m", "gputop", "mcp", "--recordings", str(folder)]
    parameters = StdioServerParameters(command=sys.executable, args=argv, env=dict(os.environ))
    async with Client(parameters, read_timeout_seconds=ANSWER_S) as client:
        yield client


async def through(client: Client, target: str) -> Asked:
    """`agent.find_cause` through the client, in a thread of its own."""
    loop = asyncio.get_running_loop()

    def ask(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        found = asyncio.run_coroutine_threadsafe(client.call_tool(tool, arguments), loop).result(ANSWER_S)
        assert not found.is_error, found.content
        answer: dict[str, Any] = found.structured_content
        return answer

    return await asyncio.to_thread(agent.find_cause, ask, target)


async def asked_about(files: Iterable[tuple[Path, str]], folder: Path) -> list[Row]:
    """Ask one server about each of these runs."""
    rows: list[Row] = []
    async with server(folder) as client:
        for path, wanted in files:
            run, mode = agent.load(path, wanted)
            found = await through(client, os.path.basename(agent.written(run, mode, folder)))
            rows.append((path.stem, run.cause, found, (found.symptom, found.cause) == (run.symptom, run.cause)))
    return rows


def demo_lines(rows: list[Row]) -> list[str]:
    """A line for each scenario; seconds depend on the machine."""
    lines = ["| `gputop demo` | cause found | calls | tokens | s |", "|---|---|--:|--:|--:|"]
    for name, cause, found, right in rows:
        said = f"`{found.cause}`" if right else f"`{found.cause}`, and it is `{cause}`"
        lines.append(f"| {name} | {said} | {found.calls} | {found.tokens} | {found.seconds:.1f} |")
    return lines


def lot_lines(rows: list[Row], every: str) -> list[str]:
    """The labelled runs: counts, and the most that one took."""
    lines = ["| labelled runs | right | calls, at most | tokens, median and most | s, median and most |", "|---|--:|--:|--:|--:|"]
    for half in split.HALVES:
        some = [(found, right) for name, _, found, right in rows if split.half_of(name) == half]
        tokens, seconds = ([getattr(found, what) for found, _ in some] for what in ("tokens", "seconds"))
        counted = f"{sum(right for _, right in some)} of {len(some)}"
        lines.append(
            f"| {len(some)} by lot of `{half}` | {counted} | {max(found.calls for found, _ in some)} "
            f"| {median(tokens):.0f}, {max(tokens)} | {median(seconds):.1f}, {max(seconds):.1f} |"
        )
    return [*lines, *([every] if every else [])]


def loop_lines(folder: Path) -> list[str]:
    """Each closed loop, on an idle host."""
    lines = [f"{LOOPS} | fix | calls | tokens | GPU time lost, before and after |", "|---|---|--:|--:|--:|"]
    for name in closing.JOBS:
        found, compared = _closed(folder, name)
        if compared is None:
            lines.append(f"| `{name}` | not closed: the host was busy | | | |")
            continue
        shares = [f"{100 * compared[side]['lost_share']:.0f} %" for side in ("before", "after")]
        fix = closing.FIXES[str(found.cause)].__name__.removeprefix("with_").replace("_", " ")
        lines.append(f"| `{found.cause}` | {fix} | {found.calls + 1} | {found.tokens} | {' → '.join(shares)} |")
    return lines


def _closed(folder: Path, name: str) -> tuple[Asked, dict[str, Any] | None]:
    """A loop; repeated where another cause is found, as on a host that others use."""
    found = Asked()
    for number in range(ATTEMPTS):
        calm.wait(CALM_CPUS, PATIENCE_S)
        place = folder / f"loop-{name}-{number}"
        place.mkdir()
        with suppress(AssertionError):
            found, compared = closing.close(in_process(Places()), place, name)
            if found.cause == name:
                return found, compared
    return found, None


def in_process(places: Places) -> agent.Ask:
    """Ask without a server."""
    return lambda tool, arguments: tools.call(places, tool, arguments)


def all_line(folder: Path) -> str:
    """The whole corpus, asked about in this process."""
    folder = folder / "all"
    folder.mkdir()
    ask, right, count = in_process(Places(folder=str(folder))), 0, 0
    for path in accuracy.paths():
        run = runs.load(path)
        for mode in run.streams:
            file = agent.written(run, mode, folder)
            found = agent.find_cause(ask, file)
            os.unlink(file)
            right, count = right + ((found.symptom, found.cause) == (run.symptom, run.cause)), count + 1
    return f"{ALL} | {right} of {count} ({100 * right / count:.0f} %) | | | |"


def kept(first: str) -> list[str]:
    """The lines of the page's table from one that begins so to the next empty one."""
    found = BLOCK.search(PAGE.read_text())
    lines = found[0].splitlines() if found else []
    start = next((i for i, line in enumerate(lines) if line.startswith(first)), len(lines))
    return lines[start : lines.index("", start) if "" in lines[start:] else len(lines)]


def record() -> None:
    """Record each scenario of the demo beside a collector; a run that others disturbed is repeated."""
    agent.DEMOS.mkdir(exist_ok=True)
    for name, scenario in SCENARIOS.items():
        for _ in range(ATTEMPTS):
            calm.wait(CALM_CPUS, PATIENCE_S)
            run = _recorded(name, scenario.symptom, scenario.cause)
            if run.others_cpus <= calm.OTHERS_CPUS:
                runs.save(runs.neutral(run), agent.DEMOS / f"{name}.xz")
                break
            print(f"{name}: others took {run.others_cpus} CPUs", file=sys.stderr)


def _recorded(name: str, symptom: str, cause: str) -> Run:
    with staged(name, 60.0) as environ, tempfile.TemporaryFile() as out:
        time.sleep(FIRST_CALM_S - BEFORE_S)
        meter = calm.Meter()
        collector = subprocess.Popen([sys.executable, "-m", "gputop", "collect"], env=environ, stdout=out, stdin=subprocess.DEVNULL)
        time.sleep(RECORDED_S)
        others = meter.cpus()
        collector.terminate()
        collector.wait(PATIENCE_S)
        out.seek(0)
        header, *rest = Decoder().feed(out.read())
    assert isinstance(header, Header)
    packed = columns.ColumnEncoder().encode([one for one in rest if isinstance(one, Frame)])
    return Run(name, symptom, cause, {}, [], [], {"eBPF": (header, packed)}, runner_pid=os.getpid(), others_cpus=round(others, 2))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.agents.table", description=__doc__)
    for flag in ("record", "write", "all", "loops"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args()
    if options.record:
        record()
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demos = asyncio.run(asked_about(((path, "eBPF") for path in agent.demos()), folder))
        lot = asyncio.run(asked_about(agent.lot(), folder))
        every = all_line(folder) if options.all else next(iter(kept(ALL)), "")
        tables = [demo_lines(demos), lot_lines(lot, every), loop_lines(folder) if options.loops else kept(LOOPS)]
    text = "\n\n".join("\n".join(lines) for lines in tables if lines)
    print(text)
    if options.write:
        PAGE.write_text(BLOCK.sub(text.replace("\\", r"\\"), PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
