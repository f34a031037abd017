"""The questions of docs/fleet.md, asked in DuckDB over the exports of several recordings. tests/metrics asks them in PromQL."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from gputop import cli
from tests.recording.test_query import ask

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDINGS = [
    ROOT / "gputop/data/sample.gputop",
    *(ROOT / "tests/device/data" / f"{name}.gputop" for name in ("story", "pinned")),
]
QUESTIONS = re.findall(r"^## \d+\. (.+?)$.*?^```sql\n(.*?)^```", (ROOT / "docs/fleet.md").read_text(), re.DOTALL | re.MULTILINE)
MAY_BE_EMPTY = {"Which GPUs are held and not used?", "Which rank holds its job most often, and why there?", "What was not seen?"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet")
    for path in RECORDINGS:
        assert cli.main(["export", str(path), "--to", "parquet", "-o", str(folder / "lake")]) == 0
    return folder


def asked(lake: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(duckdb.connect()) as database:
        return database.execute(sql.replace("'lake/", f"'{lake}/lake/")).fetchall()


def test_there_are_ten_questions_each_with_promql() -> None:
    text = (ROOT / "docs/fleet.md").read_text()
    assert len(QUESTIONS) == text.count("```promql") == text.count("```sql") == 10


@pytest.mark.parametrize(("question", "sql"), QUESTIONS, ids=[question for question, _sql in QUESTIONS])
def test_a_question_has_an_answer(lake: Path, question: str, sql: str) -> None:
    assert asked(lake, sql) or question in MAY_BE_EMPTY


def test_the_answer_is_what_the_recordings_say(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = [ask(str(path), "SELECT coalesce(sum(lost_s), 0) AS s FROM incident", capsys=capsys)[0]["s"] for path in RECORDINGS]
    (found,) = asked(lake, "SELECT sum(lost_s), count(DISTINCT filename) FROM read_parquet('lake/incident/**/*.parquet', filename = true)")
    assert found[0] == pytest.approx(sum(lost))
    assert sum(lost) > 0
