"""`gputop report`: a made-up week adds up to the second and the cent; recordings that overlap, end early, or share a GPU."""

from __future__ import annotations

import email
import html
import json
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gputop import cli
from gputop.agents.places import Places
from gputop.cli import make_parser
from gputop.commands import report
from gputop.commands.replay import sample
from gputop.commands.report import instant, price, recordings
from gputop.findings.explanation import Episode
from gputop.findings.money import GpuHourPrice, apportion
from gputop.findings.sentence import plain
from gputop.findings.verdict import CAUSES, Fix, Ledger
from gputop.model.frame import Frame, Gpu, GpuProc, ProcInfo, ProcSample
from gputop.recording.reader import Recording
from gputop.system.colour import painted
from gputop.system.errors import UserError
from gputop.tables import usage, usage_lines, usage_text
from gputop.tables.usage import Owner, StretchUsage
from tests.fleet.test_summary import serving
from tests.recording.made import HEADER, SECOND, START_NS, Session, record
from tests.wait import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86_400
UNIX_S = HEADER.unix_ns / 1e9
EPISODE = Episode(
    id=1, start_unix_s=UNIX_S, end_unix_s=UNIX_S + 60, symptom="input-bound", cause="cpu-contention", severity="high", confidence=0.9,
    trainer_pid=7, gpu=0, gpu_lost_s=9.0, headline="GPU 0 lost 9 of 60 s", detail="", path=[], victims=[], culprits=[], evidence=[],
    fixes=[Fix("Let it wait", "chrt --idle --all-tasks --pid 0 18469")], regain_gpu_s=9.0, speedup_max=1.2, help_url="",
)  # fmt: skip


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where clocks go back on 2026-10-25 at 3:00."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def week(seed: int = 3) -> list[StretchUsage]:
    """Forty jobs of five users on three hosts, with odd fractions of seconds."""
    rng, found = random.Random(seed), []
    for day in range(7):
        for host in ("node1", "node2", "node3"):
            one = StretchUsage(host, UNIX_S + day * DAY_S, UNIX_S + (day + 1) * DAY_S, 8 * DAY_S + rng.random(), gpus=8)
            one.free_s = rng.random() * one.recorded_s / 2
            for _ in range(rng.randrange(1, 12)):
                whose = Owner(f"user{rng.randrange(5)}", f"job{rng.randrange(40)}")
                ledger = Ledger()
                total_s = rng.random() * 40_000
                ledger.add(total_s, total_s * rng.random(), {cause: rng.random() / 9 for cause in rng.sample(CAUSES[1:], 8)})
                one.trained.setdefault(whose, Ledger()).include(ledger)
                one.unused[whose] = rng.random() * 5000
            found.append(one)
    return found


def text_sums(text: str) -> dict[str, tuple[list[list[int]], list[int]]]:
    """Table of the Markdown -> the numbers of its rows, and of its last row; hours in seconds, money in cents."""
    found = {}
    for title, body in re.findall(r"^## (By \w+|Held and unused)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        rows = [re.findall(r"(?<= )(\d+:\d\d:\d\d|\d+\.\d\d)(?= )", line) for line in body.splitlines() if line.startswith("| ")][1:]
        numbers = [[_number(cell) for cell in row] for row in rows]
        found[title] = numbers[:-1], numbers[-1]
    return found


def _number(cell: str) -> int:
    hours, _, rest = cell.partition(":")
    return int(hours) * 3600 + int(rest[:2]) * 60 + int(rest[3:]) if rest else round(float(cell) * 100)


@pytest.mark.parametrize("per_hour", ["3.5/h", "0.07", "2.33 EUR/h"])
def test_a_week_adds_up_to_the_second_and_the_cent(per_hour: str) -> None:
    told = week()
    asked = price(per_hour)
    found = usage.bill(told, UNIX_S, UNIX_S + 7 * DAY_S, asked)
    exact = {
        "lost_s": sum(sum(ledger.by_cause.values()) for one in told for ledger in one.trained.values()),
        "trained_s": sum(ledger.gpu_total_s for one in told for ledger in one.trained.values()),
        "unused_s": sum(sum(one.unused.values()) for one in told),
        "recorded_s": sum(one.recorded_s for one in told),
    }
    total = found["total"]
    assert {name: total[name] - seconds for name, seconds in exact.items()} == pytest.approx(dict.fromkeys(exact, 0), abs=0.501)
    assert total["free_s"] + total["held_s"] == total["recorded_s"]
    for name in ("trained_s", "lost_s", "unused_s"):
        for table in ("by_user", "by_job"):
            assert sum(row[name] for row in found[table]) == total[name]
    assert sum(row["lost_s"] for row in found["by_cause"]) == total["lost_s"]
    assert sum(row["unused_s"] for row in found["held_and_unused"]) == total["unused_s"]

    def cents(rows: list[dict[str, Any]]) -> int:
        return sum(round(row["money"] * 100) for row in rows)

    assert cents(found["by_user"]) == cents(found["by_job"]) == round(total["money"] * 100)
    assert cents(found["by_cause"]) == round(total["lost_money"] * 100)
    assert cents(found["held_and_unused"]) == round(total["unused_money"] * 100)
    assert abs(total["lost_money"] - total["lost_s"] / 3600 * float(asked.per_hour)) <= 0.0051
    assert found["currency"] == ("EUR" if "EUR" in per_hour else "")

    tables = text_sums(usage_text.markdown(found))
    assert set(tables) == {"By user", "By job", "By cause", "Held and unused"}
    for rows, sums in tables.values():
        assert [sum(column) for column in zip(*rows, strict=True)] == sums
    assert len(tables["By job"][0]) == usage_text.MOST_ROWS + 1  # the others are one row
    assert msgspec.json.decode(msgspec.json.encode(found)) == json.loads(json.dumps(found))


def test_parts_that_do_not_divide_are_rounded_so_that_they_sum() -> None:
    assert apportion({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}) == {"a": 1, "b": 0, "c": 0}
    assert apportion({"a": 0.5}) == {"a": 1}
    assert apportion({}) == {}
    assert GpuHourPrice(Fraction(1)).cents({"a": 12, "b": 12, "c": 12}) == {"a": 1, "b": 0, "c": 0}


@pytest.mark.usefixtures("berlin")
def test_a_day_has_as_many_hours_as_its_clocks_make_it() -> None:
    noon = 1_793_012_400.0  # 2026-10-26, 12:00 in Berlin
    yesterday, today = instant("yesterday", noon), instant("today", noon)
    assert (today - yesterday) / 3600 == 25
    assert (instant("2026-10-27", noon) - instant("2026-10-24", noon)) / 3600 == 73
    assert instant("2026-10-25 12:00", noon) - yesterday == 13 * 3600
    assert noon - instant("7d", noon) == 7 * DAY_S
    assert usage_text.when(yesterday) == "Sun 2026-10-25 00:00:00 CEST"
    assert usage_text.when(today) == "Mon 2026-10-26 00:00:00 CET"
    for wrong in ("tomorrow", "2026-13-01", "25:00", "7y", ""):
        with pytest.raises(UserError):
            instant(wrong, noon)


def seconds(count: int, start_s: float = 0.0, interval_s: float = 1.0, util: float = 0.0, pids: tuple[int, ...] = (4000,)) -> list[Frame]:
    """A GPU that processes hold, each of a user and a program of its own."""
    out = []
    for i in range(count):
        t_ns = START_NS + round((start_s + i * interval_s) * SECOND)
        held = [GpuProc(pid) for pid in pids]
        gpu = Gpu(0, t_ns, util_pct=util, util_t_ns=t_ns, mem_used_bytes=9 << 30, mem_total_bytes=80 << 30, procs=held)
        infos = [ProcInfo(pid, pid, 1, 1000 + pid, f"user{pid}", "python3", cmdline=["python3", f"job{pid}.py"]) for pid in pids]
        procs = [ProcSample(pid, pid, t_ns, "S", 10**9, 0, 1 << 20, 1) for pid in pids]
        out.append(Frame(i, t_ns, key=i % 10 == 0, gpus=[gpu], infos=infos if i % 10 == 0 else [], procs=procs))
    return out


def one_part(path: Path, **more: float) -> list[StretchUsage]:
    return list(usage.parts([str(path)], more.get("since_s"), more.get("until_s")))


def test_a_gpu_that_is_held_for_a_minute_without_work_is_unused(tmp_path: Path) -> None:
    """It is divided among those who hold it; a shorter rest is none."""
    record(tmp_path / "long.gputop", seconds(91, pids=(4000, 4001)))
    record(tmp_path / "short.gputop", seconds(41))
    record(tmp_path / "busy.gputop", seconds(91, util=50.0))
    (long,) = one_part(tmp_path / "long.gputop")
    assert long.unused == {Owner(f"user{pid}", f"job{pid}.py"): pytest.approx(45, abs=1) for pid in (4000, 4001)}
    assert sum(long.unused.values()) == pytest.approx(long.recorded_s, abs=1.5)
    for name in ("short", "busy"):
        (other,) = one_part(tmp_path / f"{name}.gputop")
        assert other.unused == {}
        assert other.free_s == 0.0
        assert other.recorded_s == pytest.approx({"short": 40, "busy": 90}[name])


def test_a_moment_that_two_recordings_tell_of_counts_once(tmp_path: Path) -> None:
    """Of one machine; those of another one, or before a restart, are told as well."""
    record(tmp_path / "a.gputop", seconds(100), replace(HEADER, boot_id="one"))
    record(tmp_path / "b.gputop", seconds(100, start_s=50), replace(HEADER, boot_id="one"))
    record(tmp_path / "inside.gputop", seconds(20, start_s=60), replace(HEADER, boot_id="one"))
    record(tmp_path / "other.gputop", seconds(100), replace(HEADER, boot_id="two", host="node8"))
    told = list(usage.parts(recordings([str(tmp_path)]), None, None))
    found = usage.bill(told, None, None, None)
    assert len(told) == 3
    assert found["total"]["recorded_s"] == pytest.approx(149 + 99, abs=2)
    assert found["total"]["unused_s"] <= found["total"]["recorded_s"]
    assert found["hosts"] == ["node7", "node8"]
    within = list(usage.parts(recordings([str(tmp_path)]), UNIX_S + 80, UNIX_S + 120))
    assert sum(one.recorded_s for one in within if one.host == "node7") == pytest.approx(40, abs=2)
    assert sum(one.recorded_s for one in within if one.host == "node8") == pytest.approx(19, abs=2)


def test_a_recording_that_was_cut_short_counts_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "a.gputop", seconds(200), close=True)
    whole = (tmp_path / "a.gputop").read_bytes()
    (tmp_path / "a.gputop").write_bytes(whole[: len(whole) * 6 // 10])
    (told,) = one_part(tmp_path / "a.gputop")
    assert 20 < told.recorded_s < 190
    assert told.problems
    (tmp_path / "b.gputop").write_bytes(b"no recording")
    assert cli.main(["report", str(tmp_path), "--to", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["problems"]) == 2
    assert found["total"]["recorded_s"] == round(told.recorded_s)
    assert found["total"]["money"] is found["price_per_gpu_hour"] is None
    assert cli.main(["report", str(tmp_path), "--since", "2d"]) == 1
    assert "none of 2 recordings covers that time" in capsys.readouterr().err


def test_without_the_recordings_of_a_service_the_error_says_who_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "FOLDER", str(tmp_path / "absent"))
    assert cli.main(["report"]) == 1
    assert f"{tmp_path}/absent has no recordings: gputop record" in capsys.readouterr().err


def test_a_gpu_that_two_jobs_train_on_is_counted_once(tmp_path: Path) -> None:
    made = Session(gpus=2, procs=10)

    def shared(frame: Frame) -> Frame:
        """Both trainers on GPU 0, of two users."""
        infos = [replace(info, user=f"user{info.pid}", env={}) if info.pid in (3000, 3007) else info for info in frame.infos]
        gpu = replace(frame.gpus[0], procs=[GpuProc(3000), GpuProc(3007)])
        return replace(frame, gpus=[gpu], infos=infos)

    record(tmp_path / "a.gputop", map(shared, made.frames(300)))
    (told,) = one_part(tmp_path / "a.gputop")
    with Recording(str(tmp_path / "a.gputop")) as recording:
        lasted_s = (recording.end_ns - recording.start_ns) / 1e9
    assert {whose.user for whose in told.trained} == {"user3000", "user3007"}
    trained_s = [ledger.gpu_total_s for ledger in told.trained.values()]
    assert sum(trained_s) <= lasted_s + 0.2
    assert sum(trained_s) > 0.5 * lasted_s
    assert trained_s[0] == pytest.approx(trained_s[1], rel=0.3)


def test_it_books_what_explain_books_and_tells_how_to_see_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", sample(), "--json", "--fine"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert cli.main(["report", sample(), "--to", "json", "--price", "$3.5/h"]) == 0
    found = json.loads(capsys.readouterr().out)
    ledger = explained["ledger"]
    assert found["total"]["lost_s"] == round(ledger["gpu_lost_s"])
    assert found["total"]["trained_s"] == round(ledger["gpu_total_s"])
    assert {row["cause"] for row in found["by_cause"]} == set(ledger["by_cause"])
    assert found["by_user"][0]["user"] == "ada"
    assert found["incidents"][0]["headline"] == explained["incidents"][0]["headline"]
    assert found["problems"] == [f"{sample()}: its GPUs are simulated"]

    for form in ("text", "md"):
        assert cli.main(["report", sample(), "--price", "$3.5/h", "--to", form]) == 0
        text = capsys.readouterr().out
        (replay,) = set(re.findall(r"gputop (replay .* --at '[^']*')", text)[:1])
        assert f"'{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(found['incidents'][0]['start_unix_s']))}'" in replay
        assert explained["incidents"][0]["fixes"][0]["command"] in text

    out = tmp_path / "week.html"
    assert cli.main(["report", sample(), "--to", "html", "-o", str(out)]) == 0
    page = out.read_text()
    assert max(map(len, page.splitlines())) < 990  # mail's limit
    assert "script" not in page
    assert cli.main(["report", sample(), "--to", "html", "-o", str(out)]) == 1


def test_a_bar_is_as_long_as_its_share() -> None:
    """In Markdown and in a page: mail programs show neither script nor drawing."""
    causes = {"disk-io": 300.0, "cpu-contention": 90.0, "pause": 9.0, "network-io": 1.0}
    one = StretchUsage("node1", 0.0, 900.0, 900.0, trained={Owner("ana", "bert"): Ledger(900.0, 400.0, causes)}, gpus=1)
    found = usage.bill([one], None, None, None)
    table = usage_text.markdown(found).partition("## By cause")[2]
    rows = re.findall(r"^\| ([\w-]+) .*\| ([█▏▎▍▊]+) (\d+) % +\|$", table, re.MULTILINE)
    assert [(cause, int(share)) for cause, _, share in rows] == [("disk-io", 75), ("cpu-contention", 22), ("pause", 2), ("network-io", 0)]
    lengths = [sum({"█": 8, "▊": 6, "▍": 3, "▎": 2, "▏": 1}[char] for char in bar) for _, bar, _ in rows]
    for length, (_, _, share) in zip(lengths, rows, strict=True):
        assert length == pytest.approx(8 * usage_text.BAR * int(share) / 100, abs=2.5)
    assert all(lengths), "what is little is not nothing"
    assert [f'<td class="bar">{bar} {share} %</td>' in usage_text.page(found) for _, bar, share in rows] == [True] * len(rows)


@pytest.mark.parametrize("width", [40, 72, 120])
def test_as_text_it_has_the_same_numbers_in_the_width_of_the_terminal(width: int) -> None:
    """Commands are never broken; a bar stands beside each share."""
    told = week()
    told[0].incidents = [(replace(EPISODE, gpu_lost_s=90.0), "/data/run.gputop")]
    found = usage.bill(told, UNIX_S, UNIX_S + 7 * DAY_S, price("3.5/h"))
    shown = [painted(line, on=False) for line in usage_lines.lines(found, width)]
    commands = {"chrt --idle --all-tasks --pid 0 18469", usage_text.replay_command(found["incidents"][0])}
    assert all(any(command in line for line in shown) for command in commands)
    sums = [line for line in shown if line.startswith("  all ")]
    assert [usage_text.hours(found["total"]["lost_s"]) in line for line in sums[:3]] == [True] * 3
    if width >= 72:
        assert sum("█" in line for line in shown) > 5
        assert max(len(line) for line in shown if not any(command in line for command in commands)) <= width


def test_an_incident_of_a_server_has_the_way_of_a_request_in_every_format() -> None:
    requests = plain(serving().requests)
    assert requests is not None
    told = week()
    told[0].incidents = [(replace(EPISODE, gpu_lost_s=90.0, requests=requests), "/data/run.gputop")]
    found = usage.bill(told, UNIX_S, UNIX_S + 7 * DAY_S, None)
    wanted = [one.line() for one in requests.way]
    assert "<pre>" + "\n".join(map(html.escape, wanted)) + "</pre>" in usage_text.page(found)
    assert "\n".join(f"       {line}" for line in wanted) in usage_text.markdown(found)
    shown = [painted(line, on=False) for line in usage_lines.lines(found, 120)]
    assert all(any(line.endswith(one) for line in shown) for one in wanted)
    msgspec.json.encode(found)


@pytest.mark.parametrize(("part", "whole", "text"), [(0, 0, ""), (0, 5, "0 %"), (5, 5, f"{'█' * usage_text.BAR} 100 %")])
def test_a_bar_of_nothing_and_of_all(part: int, whole: int, text: str) -> None:
    assert usage_text.bar(part, whole) == text


def test_without_a_measured_gpu_nothing_is_reported_as_zero() -> None:
    found = usage.bill([StretchUsage("node7", 0.0, 9.0, 9.0)], None, None, price("3.5/h"))
    shown = "\n".join(painted(line, on=False) for line in usage_lines.lines(found, 72))
    for text in (shown, usage_text.markdown(found), usage_text.page(found)):
        assert "No GPU of node7 was measured" in text
        assert not re.search(r"\b0:00:00\b|\b0 s\b|By cause", text)


def test_names_of_others_stay_text() -> None:
    name = "</td><script>x</script>|`[a](http://b)"
    whose = Owner(name, name)
    one = StretchUsage(name, 0.0, 9.0, 9.0, trained={whose: Ledger(9.0, 5.0, {"disk-io": 5.0})}, unused={whose: 100.0}, gpus=1)
    found = usage.bill([one], None, None, None)
    assert "<script>" not in usage_text.page(found)
    rows = [line for line in usage_text.markdown(found).splitlines() if "script" in line and line.startswith("|")]
    assert rows
    for row in rows:
        assert not re.search(r"(?<!\\)[<`\[]", row)
        assert len(re.findall(r"(?<!\\)\|", row)) in (7, 6)


def test_a_file_may_have_any_name(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.gputop")
    shutil.copy(sample(), path)
    assert cli.main(["report", path, "--to", "json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["incidents"][0]["file"] == f"{tmp_path}/b\ufffd.gputop"
    assert Places([path]).default == f"{tmp_path}/b\ufffd.gputop"


def test_the_unit_mails_a_page(tmp_path: Path) -> None:
    """Its own shell command, with another gputop and another sendmail; the flags are checked by the real parser."""
    unit = (ROOT / "packaging/gputop-report.service").read_text()
    found = re.search(r"^ExecStart=/bin/sh -ec '(.*?)'$", unit, re.MULTILINE | re.DOTALL)
    assert found is not None
    script = found[1].replace("$$", "$").replace("%%", "%")
    told = re.search(r"gputop (report .*?);", script)
    assert told is not None
    args = make_parser("report")[0].parse_args(told[1].replace('${PRICE:+--price "$PRICE"}', "--price 3.5EUR/h").split()[1:])
    assert (args.since, args.until, args.to, args.output, args.price) == ("yesterday", "today", "html", "report.html", price("3.5EUR/h"))

    gputop, sendmail = tmp_path / "gputop", tmp_path / "sendmail"
    page = usage_text.page(usage.bill(week(), UNIX_S, UNIX_S + DAY_S, args.price))
    (tmp_path / "page").write_text(page)
    gputop.write_text(f"#!/bin/sh\nfor last; do :; done\necho \"$@\" >{tmp_path}/argv\ncp {tmp_path}/page $last\n")
    sendmail.write_text(f"#!/bin/sh\ncat >{tmp_path}/mail\n")
    for program in (gputop, sendmail):
        program.chmod(0o755)
    script = script.replace("/usr/local/bin/gputop", str(gputop)).replace("/usr/sbin/sendmail", str(sendmail))
    environ = {"PATH": "/usr/bin:/bin", "RUNTIME_DIRECTORY": str(tmp_path), "MAIL_TO": "team@example.org", "PRICE": "3.5EUR/h"}
    subprocess.run(["/bin/sh", "-ec", script], env=environ, check=True, timeout=PATIENCE_S)
    assert "--price 3.5EUR/h" in (tmp_path / "argv").read_text()
    mail = email.message_from_bytes((tmp_path / "mail").read_bytes())
    assert (mail["To"], mail.get_content_type(), mail.get_content_charset()) == ("team@example.org", "text/html", "utf-8")
    assert mail["Subject"].startswith("GPU time of 20")
    assert mail.get_payload(decode=True) == page.encode()

    sendmail.unlink()
    gputop.write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "mail").unlink()
    assert subprocess.run(["/bin/sh", "-ec", script], env=environ, check=False, timeout=PATIENCE_S).returncode == 1
    assert not (tmp_path / "mail").exists()


def test_a_price_is_one_of_a_gpu_hour(capsys: pytest.CaptureFixture[str]) -> None:
    assert [str(price(text).per_hour) for text in ("3.5", "3.5/h", "$3.5/h", "3.5EUR/h", "3.5 €/h")] == ["7/2"] * 5
    for wrong in ("-1", "free", "3.5/d", "$3EUR", "1e9"):
        assert cli.main(["report", sample(), "--price", wrong]) == 2
    assert "3.5/h" in capsys.readouterr().err
