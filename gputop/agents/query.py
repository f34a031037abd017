"""Tool `query`: SQL over a recording, by a `gputop query` of its own, which can do nothing but read and is ended in time.

A statement in a process of its own costs the server no memory, and one that hangs in a single call of SQLite delays no other.
"""

from __future__ import annotations

import json
import threading
from typing import Annotated, Any

from msgspec import Meta

from gputop.agents.answer import MOST_BYTES, Answer, Asked, Row, all_untrusted
from gputop.agents.children import Children
from gputop.agents.look import ALL, missing_of, stretch
from gputop.agents.places import Places
from gputop.recording.reader import Recording
from gputop.stream.moment import moment
from gputop.system.errors import UserError
from gputop.system.program import argv_of
from gputop.system.text import clean, one_line

SAYS = (
    "SQL SELECT over a recording, or a machine's last ten minutes; ended after 5 s. sql '.tables' lists the tables, '.schema TABLE' the "
    "columns of one with their units. window as in diagnose ('': all)."
)
STATEMENT_S = 3.5  # s of a statement
WHOLE_S = 4.5  # s of all: start, reading, statement
MOST_LINES = MOST_BYTES // 4  # of an answer about tables: of one byte, with quotes and comma
MOST_READ = 40 * MOST_BYTES  # bytes of an answer that are read, those before the cursor included


class QueryQuestion(Asked):
    sql: Annotated[str, Meta(min_length=1, max_length=8000)]
    window: str = ALL
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: Annotated[int, Meta(ge=0, le=100_000)] = 0

    def paged(self) -> str:
        """Rows, or the lines of what the tables are."""
        return "schema" if self.is_about_tables else "rows_untrusted"

    @property
    def is_about_tables(self) -> bool:
        """True if the statement is ``.tables`` or ``.schema``."""
        return self.sql.lstrip().startswith(".")


class QueryAnswer(Answer):
    columns_untrusted: list[str] = []
    rows_untrusted: list[list[Any]] = []
    schema: str | None = None


def run(places: Places, asked: QueryQuestion) -> QueryAnswer:
    target = asked.target or places.default
    with places.recording(asked.target) as recording:
        missing = all_untrusted(missing_of(recording, recording.board_at(recording.end_ns)))
        lines, is_more = _answer(recording, asked, places.children)
    if asked.is_about_tables:
        return QueryAnswer(target=target, schema="\n".join(lines), truncated=is_more, not_measured_untrusted=missing)
    rows: list[Row] = [json.loads(line) for line in lines]
    return QueryAnswer(
        target=target, columns_untrusted=all_untrusted(list(rows[0]) if rows else []), not_measured_untrusted=missing, truncated=is_more,
        rows_untrusted=[all_untrusted(list(row.values())) for row in rows],
    )  # fmt: skip


def _answer(recording: Recording, asked: QueryQuestion, children: Children) -> tuple[list[str], bool]:
    """(lines of the answer from the cursor on, whether there are more). UserError with the query's error if it fails."""
    if "\0" in asked.sql:
        raise UserError("SQL: the query contains a null character", code=2)
    argv = argv_of("gputop", "query", recording.path, f" {asked.sql}", "--json", "--timeout", str(STATEMENT_S), *_span(recording, asked))
    is_late = threading.Event()
    lines: list[str] = []
    last = asked.cursor + (MOST_LINES if asked.is_about_tables else asked.limit)
    with children.started(argv) as child:

        def end() -> None:
            is_late.set()
            child.kill()

        clock = threading.Timer(WHOLE_S, end)
        clock.daemon = True
        clock.start()
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            read = number = 0
            while raw := child.stdout.readline(MOST_READ + 1):  # a value may have 64 MB
                read += len(raw)
                if read > MOST_READ and not lines:
                    raise UserError(f"the next row ends more than {MOST_READ >> 10} KiB after the first: ask for fewer columns, or sum up")
                if number >= last or read > MOST_READ:
                    return lines, True
                line = raw.decode(errors="replace").rstrip()
                if not asked.is_about_tables:
                    line = line.strip().removeprefix("[").removesuffix("]").removesuffix(",")
                if line and number >= asked.cursor:
                    lines.append(line)
                number += bool(line)
            child.wait()
            if is_late.is_set():
                raise UserError(f"the question took more than {WHOLE_S:g} s and was ended: take a shorter window, or sum up in SQL")
            if child.returncode:
                said = one_line(child.stderr.read(4096).decode(errors="replace")).removeprefix("gputop: ")
                raise UserError(clean(said, 500) or f"the query ended with exit code {child.returncode}", code=2)
            return lines, False
        finally:
            clock.cancel()


def _span(recording: Recording, asked: QueryQuestion) -> list[str]:
    """The stretch as flags: seconds from the beginning."""
    if asked.window in ("", ALL):
        return []
    start_ns, end_ns = stretch(recording, asked.window)
    begin_ns = moment("0", recording)
    return ["--from", f"{(start_ns - begin_ns) / 1e9:.3f}", "--until", f"{(end_ns - begin_ns) / 1e9:.3f}"]
