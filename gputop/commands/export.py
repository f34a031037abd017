"""Write a recording in another format: its tables (see `gputop query FILE .schema`), a trace for Perfetto, or a page for a browser."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from gputop.commands.options import WRITER, acting_as_user
from gputop.commands.span import add_span, stretch_of
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.text import file_size
from gputop.tables.exports import formats, how_to_open, writer

if TYPE_CHECKING:
    from gputop.recording.reader import Recording
    from gputop.tables.beside import ProfilerTrace

EXAMPLES = """examples:
  gputop export run.gputop --to csv -o run-csv           a directory with a file per table
  gputop export run.gputop --to sqlite -o run.sqlite
  gputop export run.gputop --to parquet -o run-parquet   a folder a table, by host and day; needs pyarrow
  gputop export run.gputop --to perfetto -o run.json     open in https://ui.perfetto.dev
  gputop export run.gputop --to perfetto --beside torch.json -o both.json
  gputop export run.gputop --to html -o run.html         one page with a scrubber; it needs no network
  gputop export run.gputop --to html --mask-names -o run.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a recording, or files of a rotation")
    parser.add_argument("--to", required=True, choices=formats(), metavar="FORMAT", help=", ".join(formats()))
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="a new file; for csv a new directory, for parquet one that may have others"
    )
    beside = "with perfetto: a torch.profiler or Chrome trace of the same time to merge (one that gputop took beside FILE)"
    parser.add_argument("--beside", metavar="TRACE", help=beside)
    parser.add_argument(
        "--mask-names", action="store_true", help="with html: hashes in place of the names of people, programs and this host"
    )
    add_span(parser)


def run(args: argparse.Namespace) -> int:
    """Write the export; standard error gets what of the recording is lost, and how the export is opened."""
    from gputop.recording.parts import open_recording
    from gputop.system.output import ended_like_ctrl_c

    if args.output == "-":
        raise UserError("an export is a new file or directory: give its name with -o; rows on standard output: gputop query --csv", code=2)
    if args.beside and args.to != "perfetto":
        raise UserError("--beside goes with --to perfetto", code=2)
    if args.mask_names and args.to != "html":
        raise UserError("--mask-names goes with --to html", code=2)
    more: dict[str, object] = {}
    # With sudo the recording is read as root, and the export belongs to the user.
    with ended_like_ctrl_c(), open_recording(args.files) as recording, acting_as_user(*WRITER):
        stretch = stretch_of(args, recording)
        if args.mask_names:
            from gputop.doctor.mask import Mask

            mask = Mask()
            more = {"header": mask.header(recording.header), "mask": mask.frame}
        if args.to == "perfetto" and (trace := _beside(args.beside, recording, stretch)) is not None:
            more = {"beside": trace}
            if trace.left_out:
                notify(f"{trace.path}: {trace.left_out}: left out; what is whole was read")
        try:
            writer(args.to)(recording, args.output, *stretch, **more)
        except OSError as error:
            raise UserError(f"cannot write {args.output}: {error.strerror or error}") from None
        if recording.problem:
            notify(f"{recording.path}: {recording.problem}")
    written = f"wrote {args.output}{'' if os.path.isdir(args.output) else f' ({file_size(os.path.getsize(args.output))})'}"
    notify(f"{written}: {how}" if (how := how_to_open(args.to, args.output)) else written)
    return 0


def _beside(path: str | None, recording: Recording, stretch: tuple[int, int]) -> ProfilerTrace | None:
    """The trace that is merged: the user's, else the newest that the recording names and that lies beside it. UserError for the user's."""
    from gputop.stream.kept_traces import file_beside
    from gputop.tables.beside import read_trace

    if path:
        return read_trace(path)
    if not (found := file_beside(recording, *stretch)):
        return None
    start_ns, end_ns = stretch
    try:
        trace = read_trace(found)
        trace.check_overlap(recording.unix_ns_of(start_ns), recording.unix_ns_of(min(end_ns, recording.end_ns)))
    except UserError as error:
        notify(f"without {found}: {error}")
        return None
    notify(f"with {found}, which was taken meanwhile")
    return trace
