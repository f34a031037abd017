"""Write a recording in another format: its tables (see `gputop query FILE .schema`), or a trace for Perfetto."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING
from typing import Any

from gputop.commands.span import add_span
from gputop.commands.span import span
from gputop.console import tell
from gputop.errors import UserError

if TYPE_CHECKING:
    from gputop.recording.reader import Recording

EXAMPLES = """examples:
  gputop export run.gputop --to csv -o run-csv           a directory with a file per table
  gputop export run.gputop --to sqlite -o run.sqlite
  gputop export run.gputop --to parquet -o run-parquet   a directory too; needs pip install gputop-ebpf[parquet]
  gputop export run.gputop --to perfetto -o run.json     open in https://ui.perfetto.dev
  gputop export run.gputop --to perfetto --beside torch.json -o both.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument("file", metavar="FILE", help="a recording")
    parser.add_argument("--to", required=True, choices=["csv", "sqlite", "parquet", "perfetto"], help="format")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="a new file; for csv and parquet a new directory")
    parser.add_argument("--beside", metavar="TRACE", help="with perfetto: a torch.profiler trace to put into the same file, on one clock")
    add_span(parser)


def run(args: argparse.Namespace) -> int:
    """Write it; what of the recording is lost is said on standard error."""
    from gputop.recording.reader import Recording

    if args.beside and args.to != "perfetto":
        raise UserError("--beside goes with --to perfetto", code=2)
    with Recording(args.file) as recording:
        write = {"csv": _csv, "sqlite": _sqlite, "parquet": _parquet, "perfetto": _perfetto}[args.to]
        try:
            write(recording, args)
        except OSError as error:
            raise UserError(f"cannot write {args.output}: {error.strerror or error}") from None
        if recording.problem:
            tell(f"{recording.path}: {recording.problem}")
    return 0


def _everything() -> dict[str, list[str]]:
    from gputop.tables.schema import TABLES

    return {spec.name: [column.name for column in spec.columns] for spec in TABLES.values()}


def _new_directory(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        raise UserError(f"{path} exists already: give another name with -o") from None
    except OSError as error:
        raise UserError(f"cannot create {path}: {error.strerror}") from None


def _csv(recording: Recording, args: argparse.Namespace) -> None:
    import csv

    from gputop.recording.output import create
    from gputop.tables.load import Loader
    from gputop.text import clean

    _new_directory(args.output)
    wanted = _everything()
    files = {name: os.fdopen(create(os.path.join(args.output, f"{name}.csv")), "w", newline="") for name in wanted}
    try:
        writers = {name: csv.writer(file, lineterminator="\n") for name, file in files.items()}
        for name, writer in writers.items():
            writer.writerow(wanted[name])
        for name, rows in Loader(recording, wanted, *span(args, recording)).batches():
            writers[name].writerows([clean(value, 1 << 20) if isinstance(value, str) else value for value in row] for row in rows)
    finally:
        for file in files.values():
            file.close()


def _sqlite(recording: Recording, args: argparse.Namespace) -> None:
    import sqlite3

    from gputop.recording.output import create
    from gputop.tables.database import create_statement
    from gputop.tables.load import Loader
    from gputop.tables.schema import TABLES

    os.close(create(args.output))
    database = sqlite3.connect(args.output, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode=OFF")
        for spec in TABLES.values():
            database.execute(create_statement(spec))
        database.execute("BEGIN")
        for name, rows in Loader(recording, _everything(), *span(args, recording)).batches():
            database.executemany(f"INSERT INTO {name} VALUES({','.join('?' * len(TABLES[name].columns))})", rows)
        database.execute("COMMIT")
    except sqlite3.Error as error:
        raise UserError(f"cannot write {args.output}: {error}") from None
    finally:
        database.close()


def _parquet(recording: Recording, args: argparse.Namespace) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet needs pyarrow: pip install 'gputop-ebpf[parquet]'") from None
    from gputop.tables.load import Loader
    from gputop.tables.schema import TABLES

    types = {"INTEGER": pyarrow.int64(), "REAL": pyarrow.float64(), "TEXT": pyarrow.string()}
    _new_directory(args.output)
    writers: dict[str, Any] = {}
    for name, spec in TABLES.items():
        shape = pyarrow.schema([pyarrow.field(c.name, types[c.type], metadata={"help": c.help}) for c in spec.columns])
        writers[name] = pyarrow.parquet.ParquetWriter(os.path.join(args.output, f"{name}.parquet"), shape, compression="zstd")
    try:
        for name, rows in Loader(recording, _everything(), *span(args, recording)).batches():
            if rows:
                shape = writers[name].schema
                columns = [pyarrow.array(values, field.type) for values, field in zip(zip(*rows, strict=True), shape, strict=True)]
                writers[name].write_table(pyarrow.Table.from_arrays(columns, schema=shape))
    finally:
        for writer in writers.values():
            writer.close()


def _perfetto(recording: Recording, args: argparse.Namespace) -> None:
    from gputop.recording.output import create
    from gputop.tables.trace import events
    from gputop.tables.trace import write

    base_ns, others = _torch_trace(args.beside) if args.beside else (0, [])
    with os.fdopen(create(args.output), "w") as file:
        write(file.write, events(recording, *span(args, recording), base_ns), base_ns, others)


def _torch_trace(path: str) -> tuple[int, list[dict[str, Any]]]:
    """(base, events) of a torch.profiler trace, plain or gzipped. UserError where it is none."""
    import gzip
    import json

    try:
        with open(path, "rb") as file:
            data = file.read()
        trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        return int(trace.get("baseTimeNanoseconds", 0)), list(trace["traceEvents"])
    except OSError as error:
        raise UserError(f"cannot open {path}: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError):
        raise UserError(f"{path} is no torch.profiler trace") from None
