"""Find out how many workers a DataLoader needs: measure each number, and say what holds it back.

The script is imported, so what stands under `if __name__ == "__main__"` does not run. NAME is a DataLoader of it, or a function without
arguments that returns one. The script's own arguments follow after --.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gputop.commands.options import STANDARD, duration, leave_root, number
from gputop.system.console import as_it_is, notify, show, write
from gputop.system.errors import UserError
from gputop.system.text import clean, from_shell

if TYPE_CHECKING:
    from gputop.experiments.sweep import Point, Sweep

EXAMPLES = """examples:
  gputop loader train.py:train_loader
  gputop loader train.py:make_loader --workers 0,2,4,8,16 --seconds 5 --plot
  gputop loader train.py:train_loader --json -- --data /data/imagenet
"""


LEAST_WIDTH = 40  # columns that texts get at least, however narrow the terminal is
_NOT_THERE = "what a function or `if __name__ == '__main__'` makes is not there: write a function that returns the loader"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="SCRIPT:NAME", type=from_shell, help="the script, and the loader or function in it")
    parser.add_argument("--workers", type=_numbers, default=(0, 2, 4, 8, 12), metavar="LIST", help="numbers to try (0,2,4,8,12)")
    parser.add_argument("--seconds", type=duration("100ms", "1h"), default=3.0, metavar="TIME", help="measure each for so long (3)")
    parser.add_argument("--batches", type=number(), metavar="N", help="end each after so many batches")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument("--plot", action="store_true", help="a chart below the table")
    parser.set_defaults(script_args=[])


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers of workers: ``0,2,4``."""
    found = tuple(number(0)(part) for part in text.split(","))
    if max(found) > 1024:
        raise argparse.ArgumentTypeError(f"{text!r}: at most 1024 workers")
    return found


def run(args: argparse.Namespace) -> int:
    """Print the table. Returns 1 for a loader that cannot be read, by `UserError`."""
    leave_root("gputop.experiments", "gputop.session", *STANDARD)
    with _standard_output_to_errors():
        sweep = _sweep(args)
    if args.json:
        write(sweep.json() + b"\n")
        return 0
    show(sweep.lines(max(LEAST_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None))
    if args.plot:
        from gputop.session.report import without_colour

        picture = sweep.plot()
        write(f"{picture if sys.stdout.isatty() else without_colour(picture)}\n")
    return 0


def _sweep(args: argparse.Namespace) -> Sweep:
    path, colon, name = args.target.rpartition(":")
    if not colon or not path or not name:
        raise UserError(f"{args.target!r}: write SCRIPT:NAME, such as train.py:train_loader", code=2)
    if not os.path.isfile(path):
        raise UserError(f"there is no script {path}", code=2)
    from gputop.experiments.loaders import said
    from gputop.experiments.sweep import sweep_loader

    module = _imported(path, args.script_args)
    loader = _loader(module, path, name)
    try:
        return sweep_loader(loader, args.workers, batches=args.batches, seconds=args.seconds, progress=_tell)
    except UserError as error:
        raise UserError(f"{args.target}: {error}") from None
    except Exception as error:  # noqa: BLE001 - the data set is the user's
        raise UserError(f"{args.target} fails: {said(error)}") from None


def _tell(point: Point) -> None:
    if sys.stderr.isatty():
        from gputop.system.text import counted, figure

        rate = point.error if point.batches_per_s is None else f"{figure(point.batches_per_s, 3)} batches/s"
        notify(f"{counted(point.workers, 'worker')}: {rate}")


def _imported(path: str, arguments: list[str]) -> Any:
    """The script as a module. It sees its own arguments and imports what lies beside it, as when Python runs it."""
    import importlib.machinery
    import importlib.util

    from gputop.experiments.loaders import said

    name = os.path.splitext(os.path.basename(path))[0]
    name = f"{name}_" if name in sys.modules else name  # workers that are spawned import it by its name
    spec = importlib.util.spec_from_file_location(name, path, loader=importlib.machinery.SourceFileLoader(name, path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.argv = [path, *arguments]
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise UserError(f"{path} ended itself with {error.code!r}: its arguments follow after --") from None
    except Exception as error:  # noqa: BLE001 - the script is the user's
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise UserError(f"torch is not installed for {sys.executable}, which runs gputop: install gputop-ebpf beside torch") from None
        raise UserError(f"{path} fails: {said(error)}{_line(error, path)}") from None
    return module


def _line(error: Exception, path: str) -> str:
    """The line of the script where it failed."""
    import traceback

    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f" (line {lines[-1]})" if lines else ""


def _loader(module: Any, path: str, name: str) -> Any:
    """The loader called ``name``, which may be dotted; a function is called."""
    from gputop.experiments.loaders import said

    try:
        found = attrgetter(name)(module)
    except AttributeError:
        others = ", ".join(clean(key, 80) for key, value in vars(module).items() if _is_loader(value))
        there = f"its loaders are {others}" if others else _NOT_THERE
        raise UserError(f"{path} has no {clean(name)}: {there}", code=2) from None
    if _is_loader(found) or not callable(found):
        return found
    try:
        return found()
    except Exception as error:  # noqa: BLE001 - the function is the user's
        raise UserError(f"{name}() of {path} fails: {said(error)}{_line(error, path)}") from None


def _is_loader(value: object) -> bool:
    from gputop.experiments.loaders import torch_base

    try:
        torch_base(value)
    except UserError:
        return False
    return True


@contextmanager
def _standard_output_to_errors() -> Iterator[None]:
    """What the script and its workers print goes to standard error: standard output is the table's."""
    kept = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    try:
        with as_it_is():
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
