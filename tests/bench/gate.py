"""`make bench ARGS=gate`: does this tree cost more than the commit in ``base.txt``? Both run beside nvitop, in pairs.

A pair: all tools watch the same scene in the same seconds, each started for it. CPU is the schedstat of every thread of the tool's
processes, memory their PSS, wake-ups their voluntary switches, start the time until GPU values stand on the screen. A figure fails if most
of the pairs agree that it is past its limit. Whoever makes gputop cheaper writes a newer commit into ``base.txt``.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median

from tests.bench.figures import table
from tests.bench.live_cost import Scene, set_up
from tests.pty.terminal import Terminal
from tests.pty.tree import spent, tree, usage
from tests.require import lacks

TREE = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "base.txt"
PAGE = TREE / "docs" / "benchmarks.md"
BEGIN, END = "<!-- written by make bench ARGS=gate -->\n", "<!-- until here -->\n"
SCENES = {"2 GPUs": Scene(2, 20), "8 GPUs": Scene(8, 20), "32 GPUs": Scene(32, 20), "900 others": Scene(2, 20, 900)}
LIMITS = {"CPU % of a core": 1.10, "PSS MiB": 1.03, "first values s": 1.10, "once CPU s": 1.10}
"""Figure -> most that it may be of the base's."""
COMPARED = {"gputop": "base", "gputop with eBPF": "base with eBPF"}  # tool -> its base
HEAD = (
    "scene", "tool", "CPU, % of a core", "memory (PSS), MiB", "wake-ups/s", "first values, s", "`--once --json`, CPU s", "CPU / nvitop's",
)  # fmt: skip
SETTLE_S = 3.0  # s from the last start to the measurement: the first seconds read everybody once
PATIENCE_S = 20.0  # s for GPU values
STARTS = 2  # starts of each tool in a pair, of which the sooner counts
VALUES = re.compile(r"\d\s?%.*\d\s?[MG]i?B|[MG]i?B.*\d\s?%")  # a row with a percentage and an amount of memory


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that is measured: its command, and the folder that its modules come from."""

    name: str
    argv: tuple[str, ...]
    folder: Path | None = None

    def env(self, scene: Mapping[str, str]) -> dict[str, str]:
        """The environment in which it shows the scene."""
        return {**scene, **({"PYTHONPATH": str(self.folder)} if self.folder else {})}


@contextmanager
def trees(commit: str) -> Iterator[tuple[Path, Path]]:
    """Folders with that commit's gputop and this tree's, both compiled. Raises CalledProcessError if git has no such commit."""
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as new:
        packing = ["git", "archive", commit, "gputop", "probes", "packaging"]
        packed = subprocess.run(packing, cwd=TREE, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], input=packed, cwd=base, check=True)
        shutil.copytree(TREE / "gputop", Path(new) / "gputop", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([sys.executable, "-m", "compileall", "-q", base, new], check=True)
        yield Path(base), Path(new)


def start(tool: Tool, scene: Mapping[str, str]) -> Terminal:
    """The tool in a terminal."""
    return Terminal(tool.argv, env=tool.env(scene), cwd=tool.folder)


def until_values(terminal: Terminal) -> float:
    """Seconds from its start until a row has a percentage and an amount of memory; from then on its output is only counted."""
    terminal.wait_for(lambda: any(VALUES.search(row) for row in terminal.rows()), "GPU values", PATIENCE_S)
    seconds = time.monotonic() - terminal.started
    terminal.stop_showing()
    return seconds


def pair(tools: list[Tool], scene: Mapping[str, str], run_s: float) -> dict[str, dict[str, float]]:
    """Figures by tool, of one run of all of them at the same time."""
    figures: dict[str, dict[str, float]] = {tool.name: {} for tool in tools}
    with ExitStack() as running:
        terminals = {}
        for tool in tools:
            took = []
            for _ in range(STARTS - 1):
                with start(tool, scene) as terminal:
                    took.append(until_values(terminal))
            terminal = running.enter_context(start(tool, scene))
            figures[tool.name]["first values s"] = min([*took, until_values(terminal)])
            terminals[tool.name] = terminal
        time.sleep(SETTLE_S)
        begun = {name: (spent(tree(terminal.pid)), time.monotonic()) for name, terminal in terminals.items()}
        time.sleep(run_s)
        for name, terminal in terminals.items():
            pids = tree(terminal.pid)
            (before, woke_before), since = begun[name]
            (after, woke), seconds = spent(pids), time.monotonic() - since
            figures[name]["CPU % of a core"] = sum(ns - before.get(tid, 0) for tid, ns in after.items()) / seconds / 1e7
            figures[name]["wake-ups/s"] = (woke - woke_before) / seconds
        for name, terminal in terminals.items():
            figures[name]["PSS MiB"] = usage(terminal.pid).pss_bytes / 2**20
            if terminal.process.poll() is not None:
                raise RuntimeError(f"{name} ended by itself ({terminal.process.returncode})")
    return figures


def once_cpu_s(tool: Tool, scene: Mapping[str, str]) -> float:
    """CPU seconds of `--once --json`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    subprocess.run([*tool.argv, "--once", "--json"], env=tool.env(scene), check=True, timeout=180, **quiet)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(scene: Scene, tools: list[Tool], once: list[Tool], pairs: int, run_s: float) -> list[dict[str, dict[str, float]]]:
    """The figures of each pair; tools start in another order each time."""
    found = []
    with set_up(scene) as env:
        for number in range(pairs):
            turned = tools[number % len(tools) :] + tools[: number % len(tools)]
            found.append(pair(turned, env, run_s))
            for tool in once:
                found[-1][tool.name]["once CPU s"] = once_cpu_s(tool, env)
    return found


def ratios(found: list[dict[str, dict[str, float]]], name: str, base: str, figure: str) -> list[float]:
    """One figure of a tool over the base's, by pair."""
    return [one[name][figure] / one[base][figure] for one in found if figure in one.get(name, {}) and one.get(base, {}).get(figure)]


def is_past(values: list[float], limit: float) -> bool:
    """True if most of the pairs are past the limit."""
    return sum(value > limit for value in values) * 2 > len(values)


def failures(scene: str, found: list[dict[str, dict[str, float]]]) -> list[str]:
    """A line for each figure past its limit; a tool that did not run has none."""
    past = []
    for name, base in COMPARED.items():
        for figure, limit in LIMITS.items():
            values = ratios(found, name, base, figure)
            if is_past(values, limit):
                past.append(f"{scene}, {name}: {figure} is {median(values):.2f} of the base's (at most {limit:.2f})")
    return past


def rows_of(scene: Scene, found: list[dict[str, dict[str, float]]]) -> Iterator[list[object]]:
    """Rows of the table: median, and in brackets the smallest and the largest."""
    digits = {"CPU % of a core": 2, "PSS MiB": 1, "wake-ups/s": 0, "first values s": 2, "once CPU s": 3}
    for name in found[0]:
        cells = []
        for figure, places in digits.items():
            values = [one[name][figure] for one in found if figure in one[name]]
            cells.append(f"{median(values):.{places}f} ({min(values):.{places}f} to {max(values):.{places}f})" if values else "–")
        shares = ratios(found, name, "nvitop", "CPU % of a core")
        yield [scene, name, *cells, f"{median(shares):.2f}" if shares else "–"]


def report(pairs: int = 5, run_s: float = 7.0, names: tuple[str, ...] = tuple(SCENES), page: Path | None = PAGE) -> Iterator[str]:
    """The table, and what is past its limit; writes ``page``. Exits 1 if anything is past its limit."""
    commit = RECORDED.read_text().split()[0]
    flags = ("--no-ebpf",)
    run = (sys.executable, "-P", "-m", "gputop") if sys.version_info >= (3, 11) else (sys.executable, "-m", "gputop")
    nvitop = Tool("nvitop", (sys.executable, "-m", "nvitop", "--interval", "0.25"))
    with ExitStack() as kept:
        try:
            base, new = kept.enter_context(trees(commit))
        except (OSError, subprocess.CalledProcessError) as error:
            yield f"not compared: git has no commit {commit} here, which tests/bench/base.txt names ({error})"
            return
        tools = [Tool("base", (*run, *flags), base), Tool("gputop", (*run, *flags), new), nvitop]
        probed = [] if lacks("ebpf") else [Tool("base with eBPF", run, base), Tool("gputop with eBPF", run, new)]
        rows: list[list[object]] = []
        past: list[str] = []
        for name in names:
            scene, with_ebpf = SCENES[name], probed if name == "2 GPUs" else []
            found = measure(scene, tools + with_ebpf, [] if scene.host_procs else tools[:2], pairs, run_s)
            rows += rows_of(scene, found)
            past += failures(name, found)
    text = table(HEAD, rows)
    yield text
    if page is not None:
        page.write_text(with_table(page.read_text(), text, commit, pairs, run_s))
    yield "\n".join(past) if past else f"within the limits: {', '.join(f'{name} {most:.2f}' for name, most in LIMITS.items())}"
    if past:
        raise SystemExit(1)


def with_table(page: str, text: str, commit: str, pairs: int, run_s: float) -> str:
    """The page with this table in place of the last one."""
    from tests.bench.__main__ import machine

    said = (
        f"{machine()}, {datetime.now(timezone.utc):%Y-%m-%d}, load average {os.getloadavg()[0]:.0f}.\nMedians of {pairs} pairs; in brackets"
        f" the smallest and the largest. Each tool was started for each pair, and all watch the same\n{run_s:g} s, on a pty of 160×48."
        f" `base` is commit {commit}. gputop reads every 100 ms, without eBPF unless it is named,\n"
        f"nvitop {version('nvitop')} every 250 ms, its fastest."
        " The crowd: a process on a GPU works 0.2 ms in each 100 ms, one of the others\n0.02 ms in each second.\n"
    )
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{said}\n{text}\n{END}{after}"
