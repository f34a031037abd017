"""The score of hand-made runs; truths, words and adapters fit together."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
import slowbench
from slowbench import score, truth, vocabulary
from slowbench.__main__ import asked, main
from slowbench.observe import Answer, Observed, Run, Tried, Watcher, decoded
from slowbench.table import HEADS, text, wrong
from slowbench.tools import TOOLS, Tool, chosen
from slowbench.truth import Truth

from gputop.findings.verdict import LOOKING, OWN_CAUSES, SYMPTOMS
from tests.corpus import split
from tests.require import require
from tests.wait import PATIENCE_S
from tests.workloads import scenario
from tests.workloads.advice import targets
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

BENCHMARK = Path(slowbench.__file__).parents[1]
_BLAMED = ("fluent-bit", "node_exporter")
HOGS = Truth("hogs", "waits-for-input", "cpu-taken-by-others", "disturbance", ("trainers",), _BLAMED, "stop them")
DISK = Truth("disk", "waits-for-input", "slow-disk", "disturbance", ("trainers",), (), "a cache")
CALM = Truth("calm", "works", "none", "start", (), (), "")
IDLE = Truth("idle", "nothing-to-do", "none", "start", (), (), "")
PIDS = {"71": "node_exporter", "72": "fluent-bit"}


def answered(symptom: str, cause: str, at_s: float = 1.0, *culprits: str, command: str = "") -> Answer:
    return Answer(at_s, symptom, cause, [*culprits], "" if not command else "do", command)


def tool(*answers: Answer, gain: float | None = None, name: str = "a") -> Observed:
    return Observed(name, "1.0", answers=[*answers], cpu_pct=2.0, tried=None if gain is None else Tried(gain))


def scored(known: Truth, *answers: Answer, gain: float | None = None) -> score.Score:
    return score.scored(tool(*answers, gain=gain), known, Run(known.job, PIDS if known.culprits else {}, begun_s=-0.5))


def test_the_right_cause_needs_the_right_symptom() -> None:
    right = scored(DISK, answered("waits-for-input", "slow-disk"))
    assert (right.symptom, right.cause, right.abstained, right.false_alarm) == (True, True, False, False)
    assert scored(DISK, answered("waits-for-copies", "slow-disk")).cause is False
    half = scored(DISK, answered("waits-for-input", "lock"))
    assert (half.symptom, half.cause, half.abstained) == (True, False, False)


def test_who_names_no_cause_abstains() -> None:
    for answers in ([], [answered("waits-for-input", "unknown")], [answered("unknown", "slow-disk")]):
        found = scored(DISK, *answers)
        assert (found.cause, found.abstained) == (False, True)


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        ([(0.5, "lock"), (3.0, "slow-disk")], 3.0),
        ([(2.0, "slow-disk"), (4.0, "slow-disk")], 2.0),
        ([(2.0, "slow-disk"), (4.0, "lock"), (6.0, "slow-disk")], 6.0),
        ([(-1.0, "slow-disk")], None),  # it stood there before anything was slow
        ([(-1.0, "slow-disk"), (1.0, "slow-disk")], 1.0),
        ([(-0.2, "slow-disk")], 0.0),  # while the disturbance was set up
        ([(2.0, "slow-disk"), (4.0, "lock")], None),
        ([], None),
    ],
)
def test_the_answer_counts_from_when_it_stays_right(answers: list[tuple[float, str]], seconds: float | None) -> None:
    found = scored(DISK, *(answered("waits-for-input", cause, at_s) for at_s, cause in answers))
    assert (found.seconds, found.cause) == (seconds, seconds is not None)


def test_an_alarm_before_the_onset_is_false() -> None:
    right = ("waits-for-input", "slow-disk")
    found = scored(DISK, answered(*right, -1.0))
    assert (found.symptom, found.cause, found.abstained, found.false_alarm) == (False, False, False, True)
    found = scored(DISK, answered(*right, -2.0), answered("works", "none", -1.0), answered(*right, 2.0))
    assert (found.symptom, found.cause, found.seconds, found.false_alarm) == (True, True, 2.0, False)
    from_the_start = dataclasses.replace(DISK, onset="start")
    found = scored(from_the_start, answered(*right, -1.0))
    assert (found.cause, found.seconds, found.false_alarm) == (True, 0.0, None)


@pytest.mark.parametrize(
    ("culprits", "right"),
    [
        (["72", "71"], True),
        (["node_exporter", "72"], True),
        (["72", "71", "905"], True),
        (["905", "72", "71"], False),
        (["72"], False),
        (["72", "72"], False),
        ([], False),
    ],
)
def test_the_culprits_are_those_named_first(culprits: list[str], right: bool) -> None:
    assert scored(HOGS, answered("waits-for-input", "cpu-taken-by-others", 1.0, *culprits)).culprits is right


def test_nobody_is_asked_for_a_culprit_where_nobody_is_to_blame() -> None:
    assert scored(DISK, answered("waits-for-input", "slow-disk", 1.0, "72")).culprits is None


@pytest.mark.parametrize(
    ("known", "answer", "alarm", "symptom"),
    [
        (CALM, answered("works", "none"), False, True),
        (CALM, answered("unknown", "unknown"), False, False),
        (CALM, answered("nothing-to-do", "none"), False, False),
        (CALM, answered("waits-for-input", "unknown"), True, False),
        (CALM, answered("works", "slow-disk"), True, True),
        (IDLE, answered("nothing-to-do", "planned-pause"), False, True),
        (IDLE, answered("busy-in-vain", "unknown"), True, False),
    ],
)
def test_an_alarm_about_a_calm_job_is_false(known: Truth, answer: Answer, alarm: bool, symptom: bool) -> None:
    found = scored(known, answer)
    assert (found.false_alarm, found.symptom, found.cause, found.seconds) == (alarm, symptom, None, None)


@pytest.mark.parametrize(
    ("gain", "helped", "harmed"), [(None, None, None), (0.5, False, True), (0.95, False, False), (1.2, True, False)]
)
def test_advice_is_worth_what_the_pace_says(gain: float | None, helped: bool | None, harmed: bool | None) -> None:
    found = scored(DISK, answered("waits-for-input", "slow-disk", command="echo"), gain=gain)
    assert (found.helped, found.harmed) == (helped, harmed)
    calm = scored(CALM, answered("waits-for-input", "unknown", command="DataLoader(..., num_workers=4)"), gain=gain)
    assert (calm.helped, calm.harmed, calm.advised_calm) == (None, harmed, True)


def test_the_table_counts_each_tool_and_each_half() -> None:
    runs = [
        Run("disk", {}, [tool(answered("waits-for-input", "slow-disk", 3.0)), tool(answered("waits-for-input", "lock"), name="b")]),
        Run("calm", {}, [tool(answered("works", "none")), tool(answered("waits-for-input", "lock"), name="b")]),
        Run("disk", {}, [Observed("c", fault="No module named 'c'")]),
        Run("hogs", fault="NotReady: no root"),
    ]
    found = text(runs, {"disk": DISK, "calm": CALM, "hogs": HOGS}, {"disk": "open", "calm": "sealed"}, {"a": 1.5})
    everything, _, halves = found.partition("### The open half")
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in everything.splitlines() if "|" in line]
    rows = {line[0].split()[0].rstrip(":"): line for line in cells}
    assert "2 jobs, 1 with a cause and 1 with none; 1 could not run: hogs." in everything
    #                   jobs, cause, symptom, culprit, wrong, none, false alarms, seconds
    assert rows["a"][1:9] == ["2", "1/1", "2/2", "–", "0/1", "0/1", "0/2", "3.0"]
    assert rows["b"][1:9] == ["2", "0/1", "1/2", "–", "1/1", "0/1", "1/2", "never"]
    assert rows["a"][13] == "1.5 %"
    assert "No module" in rows["c"][0]
    assert "0/1" not in halves.partition("### The sealed half")[0].splitlines()[4].split("|")[3]


def test_wrong_answers_are_listed_of_the_open_half_alone() -> None:
    answers = [tool(answered("works", "none")), tool(answered("waits-for-input", "slow-disk"), name="b")]
    runs = [Run(job, {}, answers) for job in ("disk", "d2")]
    (line,) = wrong(runs, {"disk": DISK, "d2": DISK}, {"disk": "open", "d2": "sealed"})
    assert line.startswith("disk, a: works / none")
    died = Observed("c", "1.0", fault="it ended early, with exit status 3: no such counter")
    early = tool(answered("waits-for-input", "slow-disk", -1.0), name="d")
    dead, alarmed = wrong([Run("disk", {}, [died, early])], {"disk": DISK}, {"disk": "open"})
    assert "no answer" in dead
    assert died.fault in dead
    assert "false alarm" in alarmed
    assert [line.count("fault") for line in wrong([Run("d2", {}, [died, early])], {"d2": DISK}, {"d2": "sealed"})] == [1]
    assert died.fault in text([Run("disk", {}, [died])], {"disk": DISK}, {"disk": "open"}, {})


def test_a_run_beside_unrelated_work_is_not_scored() -> None:
    """There the label is not true: those programs take the CPUs."""
    calm, busy = (Run(job, observed=[tool(answered("works", "none"))], others_cpus=cpus) for job, cpus in (("calm", 0.1), ("disk", 1.7)))
    found = text([calm, busy], {"calm": CALM, "disk": DISK}, {}, {})
    assert "more than 0.6 CPUs beside 1 more, which are not scored: disk." in found
    assert "| a 1.0 | 1 |" in found
    assert wrong([busy], {"disk": DISK}, {"disk": truth.OPEN_HALF}) == []


def test_the_last_run_of_a_job_counts_and_versions_are_not_mixed_in_silence() -> None:
    first, second = tool(answered("works", "none")), tool(answered("waits-for-input", "slow-disk"))
    first.digest, second.digest = "1", "2"
    runs = [Run("disk", observed=[first]), Run("disk", observed=[second])]
    assert wrong(runs, {"disk": DISK}, {"disk": truth.OPEN_HALF}) == []
    assert "Of several versions" not in text(runs, {"disk": DISK}, {}, {})
    older = Run("calm", observed=[dataclasses.replace(first)])
    assert "run it anew with another -o: a." in text([older, *runs], {"disk": DISK, "calm": CALM}, {}, {})


def test_why_advice_was_not_applied_is_printed() -> None:
    one = tool(answered("waits-for-input", "lock"), answered("waits-for-input", "slow-disk", 2.0), answered("works", "none", 3.0))
    one.tried = Tried(why_not="it changes what is not the job's")
    [line] = wrong([Run("disk", observed=[one])], {"disk": DISK}, {"disk": truth.OPEN_HALF})
    assert "(right from 2.0 to 2.0 s after the onset)" in line
    assert "its advice was not applied, for it changes what is not the job's" in line


def test_one_half_has_one_table() -> None:
    found = text([Run("disk", {}, [tool(answered("works", "none"))])], {"disk": DISK}, {"disk": "open"}, {})
    assert found.count("| tool |") == 1


def test_a_run_is_kept_as_a_line() -> None:
    run = Run("hogs", PIDS, [tool(answered("works", "none"), gain=1.1), Observed("b", fault="gone")], 10.0, 0.1)
    assert decoded(run.line()) == run


def test_any_program_is_a_tool(tmp_path: Path) -> None:
    """One in no Python, whose libraries print, too, and whose last answer comes when it is asked to end."""
    script = tmp_path / "tool.sh"
    script.write_text(
        """trap 'echo "{\\"symptom\\": \\"works\\", \\"cause\\": \\"none\\"}"; exit' TERM
        echo '{"ready": "3.1", "needs": ["root"]}'; echo Loading...
        echo '{"symptom": "waits-for-input", "culprits": ['$1', "fluent-bit"], "advice": "more"}'
        while :; do sleep 0.01; done"""
    )
    (known,) = chosen([f"mine=sh {script}"])
    watcher = Watcher(known, Running("mine", Scenario(HEALTHY, print), 1.0, tmp_path, {"PATH": "/usr/bin:/bin"}))
    assert watcher.is_ready.wait(PATIENCE_S)
    found = watcher.stop(0)
    assert (found.tool, found.version, found.needs, found.fault) == ("mine", "3.1", ["root"], "")
    assert (found.last.symptom, found.last.cause) == ("works", "none")


def watched(folder: Path, *lines: str) -> Watcher:
    """A tool in sh that is ready, or has ended."""
    script = folder / "tool.sh"
    script.write_text("\n".join(lines))
    watcher = Watcher(Tool("mine", ("sh", str(script))), Running("mine", Scenario(HEALTHY, print), 1.0, folder, {"PATH": "/usr/bin:/bin"}))
    assert watcher.is_ready.wait(PATIENCE_S)
    return watcher


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"symptom": "works", "culprits": null}', "culprits"),
        ('{"symptom": "works", "culprits": 812}', "culprits"),
        ('{"symptom": "works", "culprits": [null]}', "culprits"),
        ('{"symptom": "works", "command": null}', "command"),
        ('{"symptom": "works", "cause": "slow-disc"}', "slow-disc"),
        ('{"symptom": "works", "ready": "2", "needs": null}', "needs"),
        ("[" * 9999, ""),
        ("\\377", ""),
    ],
)
def test_a_faulty_line_is_the_tools_fault(tmp_path: Path, line: str, fault: str) -> None:
    right = '{"symptom": "works", "cause": "none", "advice": "last"}'
    watcher = watched(tmp_path, f"printf '{line}\\n'; echo '{right}'; echo '{{\"ready\": \"1\"}}'")
    watcher._thread.join(PATIENCE_S)
    found = watcher.stop(0)
    assert (found.last.advice, found.version, bool(found.fault)) == ("last", found.version, bool(fault))
    assert fault in found.fault


def test_a_tool_that_dies_is_not_one_that_abstains(tmp_path: Path) -> None:
    watcher = watched(tmp_path, """echo '{"ready": "1"}'; echo 'no such counter' >&2; exit 3""")
    watcher._thread.join(PATIENCE_S)
    watcher._process.wait(PATIENCE_S)  # type: ignore[union-attr]
    found = watcher.stop(0).fault
    assert "3" in found
    assert "no such counter" in found


def test_a_tool_that_cannot_start_is_refused_before_the_first_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "tool.sh"
    script.write_text("echo")
    for command in (f"mine={script}", f"mine={tmp_path}/none", "mine=", "mine='", "a/b=sh"):
        with pytest.raises(ValueError, match="tool"):
            chosen([command])
    assert main(["run", "--tools", f"mine={tmp_path}/none", "-o", str(tmp_path / "out")]) == 2
    assert "no program" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    script.chmod(0o755)  # without #!
    (known,) = chosen([f"mine={script}"])
    watcher = Watcher(known, Running("mine", Scenario(HEALTHY, print), 1.0, tmp_path, {}))
    assert watcher.cpu_s() == 0.0
    assert "does not start" in watcher.stop(0).fault


def test_an_edited_tool_is_another_one(tmp_path: Path) -> None:
    script = tmp_path / "tool.sh"
    digests = set()
    for text_ in ("echo 1", "echo 2"):
        script.write_text(text_)
        digests.add(chosen([f"mine=sh {script}"])[0].digest)
    assert len(digests) == 2


def test_the_script_of_a_listed_tool_is_its_module() -> None:
    digests = {one.digest for one in TOOLS.values()}
    assert "" not in digests
    assert len(digests) == len(TOOLS) - 1, "gputop has one script for both of its tools"


def test_a_tool_that_is_missing_has_a_reason(tmp_path: Path) -> None:
    broken = Tool("broken", (sys.executable, "-c", "import no_such_tool"))
    watcher = Watcher(broken, Running("mine", Scenario(HEALTHY, print), 1.0, tmp_path, {}))
    assert watcher.is_ready.wait(PATIENCE_S)
    assert "no_such_tool" in watcher.stop(0).fault


def test_every_word_of_gputop_has_a_neutral_one() -> None:
    assert {*vocabulary.FROM_GPUTOP} == {*SYMPTOMS, LOOKING}
    assert {*vocabulary.FROM_GPUTOP_CAUSE} == {*OWN_CAUSES}
    assert {*vocabulary.FROM_GPUTOP.values()} == {*vocabulary.SYMPTOMS}
    assert {*vocabulary.FROM_GPUTOP_CAUSE.values()} == {*vocabulary.CAUSES}


def test_the_truths_are_made_of_the_labels() -> None:
    require("torch")
    halves = truth.halves()
    assert truth.faults() == [], "python -m slowbench truth --write, or --draw where jobs are gone, in benchmark/"
    assert len(halves) >= 120
    assert {job: split.half_of(job) == split.LEARN for job in halves} == {job: half == truth.OPEN_HALF for job, half in halves.items()}
    assert 0.4 < sum(half == truth.SEALED_HALF for half in halves.values()) / len(halves) < 0.6
    some = asked("12", halves, scenario.names())
    assert len({*some}) == 12
    assert sum(truth.made(job).is_calm for job in some) == 3
    with pytest.raises(ValueError, match="no-such"):
        asked("no-such", halves, scenario.names())


def test_a_seal_fits_one_truth_and_one_salt(tmp_path: Path) -> None:
    require("torch")
    job = "disk-io"
    (tmp_path / truth.SEALED).write_text(json.dumps({"release": "x", "salt": "", "jobs": {job: truth.seal(truth.made(job), "pepper")}}))
    assert truth.faults("pepper", tmp_path) == []
    assert len(truth.faults("salt", tmp_path)) == 1
    assert truth.faults("", tmp_path) == []  # nobody can know yet
    (tmp_path / "renamed.json").write_text("{}")
    assert ["renamed" in fault for fault in truth.faults("pepper", tmp_path)] == [True]
    assert truth.seal(HOGS, "pepper") != truth.seal(DISK, "pepper")


def test_tools_have_their_adapters() -> None:
    assert {*TOOLS} >= {"nvidia-smi", "py-spy", "gputop", "gputop-ebpf", "gpuprof", "traceml"}
    with pytest.raises(ValueError, match="nvidia-smi"):
        chosen(["no-such"])


def test_a_profiler_inside_the_job_wraps_loader_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    from tests.workloads import loop

    monkeypatch.setenv(scenario.INSTRUMENT_VARIABLE, f"{__name__}:doubled")
    loader, step = loop._instrument()([1, 2], print)
    assert (list(loader), step) == ([1, 2, 1, 2], print)


def doubled(loader: list[object], step: object) -> tuple[list[object], object]:
    return loader * 2, step


def test_the_page_explains_the_table_and_its_examples_are_valid() -> None:
    page = (BENCHMARK / "README.md").read_text(encoding="utf-8")
    explained = " ".join(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE))
    assert [head for head in HEADS[1:] if head.removesuffix("ed") not in explained and head not in explained] == []
    example = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    assert example["symptom"] in vocabulary.SYMPTOMS
    assert example["cause"] in vocabulary.CAUSES
    lines = [example["command"], *re.findall(r"`((?:renice|taskset|for p in) [^`]*\d[^`]*)`", page)]
    assert len(lines) >= 4
    assert [line for line in lines if targets(line) is None] == []
    assert set(example) == {field.name for field in dataclasses.fields(Answer)} - {"at_s"}


def test_the_job_on_the_page_is_one() -> None:
    require("torch")
    [job] = [one for one in re.findall(r"```python\n(.*?)```", (BENCHMARK / "README.md").read_text(), re.S) if "SCENARIO" in one]
    names: dict[str, Scenario] = {}
    exec(job, names)
    assert (names["SCENARIO"].label.symptom, names["SCENARIO"].label.cause) == ("input-bound", "too-few-workers")


def test_a_release_has_one_number() -> None:
    cited = (BENCHMARK / "CITATION.cff").read_text(encoding="utf-8")
    assert f'version: "{slowbench.__version__}"' in cited
    assert truth.sealed()["release"] == slowbench.__version__


def test_the_wheel_has_what_the_jobs_import() -> None:
    parts = ast.literal_eval(re.findall(r"^PARTS = (\(.*\))$", (BENCHMARK / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)[0])
    here = [BENCHMARK.parent / part for part in parts if not part.endswith("/__init__.py")]
    missing = set[str]()
    for file in (file for path in here for file in (path.rglob("*.py") if path.is_dir() else [path])):
        if not file.name.startswith("test_") and file.name != "__main__.py":  # the latter is gputop's own command
            source = file.read_text(encoding="utf-8")
            for module, names in re.findall(r"^ *from (tests[.\w]*|gputop[.\w]*) import (.+)", source, re.MULTILINE):
                for name in names.strip("()").split(","):
                    path = BENCHMARK.parent / f"{module}.{name.strip()}".replace(".", "/")
                    if not any(one.with_suffix("") in (path, *path.parents) for one in here):
                        missing.add(f"{module}.{name}")
    assert len(here) >= 4
    assert missing == set()
