"""Find out how many workers a DataLoader needs: measure each number, and find what holds it back.

The script is imported, so what stands under `if __name__ == "__main__"` does not run. NAME is a DataLoader in it, or a function without
arguments that returns one; a script with one loader needs no NAME. With -m the script is a module, as for `python -m`. The script's own
arguments follow after --.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop.commands.options import duration, leave_root, number
from gputop.system.console import as_it_is, notify, show, write
from gputop.system.errors import UserError
from gputop.system.imports import STANDARD
from gputop.system.text import clean, from_shell

if TYPE_CHECKING:
    from gputop.loader.sweep import Point, Sweep

EXAMPLES = """examples:
  gputop loader train.py:train_loader
  gputop loader -m pkg.sub.train:train_loader    a module of a package, as in python -m
  gputop loader train.py:make_loader --workers 0,2,4,8,16 --seconds 5 --plot
  gputop loader train.py:train_loader --json -- --data /data/imagenet
"""


LEAST_WIDTH = 40  # columns that texts get at least, however narrow the terminal is
_NOT_THERE = "what a function or `if __name__ == '__main__'` makes is not there: write a function that returns the loader"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="SCRIPT:NAME", type=from_shell, help="the script, and the loader or function in it")
    parser.add_argument("-m", "--module", action="store_true", help="it is a module: pkg.sub.train:train_loader")
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
    leave_root("gputop.loader", "gputop.stream", "gputop.findings", *STANDARD)
    with _standard_output_to_errors():
        sweep = _sweep(args)
    if args.json:
        write(sweep.json() + b"\n")
        return 0
    show(sweep.lines(max(LEAST_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None))
    if args.plot:
        from gputop.findings.text import without_colour

        picture = sweep.plot()
        write(f"{picture if sys.stdout.isatty() else without_colour(picture)}\n")
    return 0


def _sweep(args: argparse.Namespace) -> Sweep:
    path, name = _split(args.target)
    script = _as_module(path) if args.module or _is_module(path) else _as_script(path)
    from gputop.loader.loaders import said
    from gputop.loader.sweep import sweep_loader

    loader = _loader(_imported(script, args.script_args), script, name)
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


class _Script(NamedTuple):
    """The module to import: ``name`` as Python knows it, its file, and the folder put first in ``sys.path``."""

    name: str
    path: str
    folder: str
    is_module: bool

    @property
    def told(self) -> str:
        """The script's path, or the module's name after ``-m``, as the user typed it."""
        return clean(self.name if self.is_module else self.path)


def _split(target: str) -> tuple[str, str]:
    """(script or module, name of the DataLoader); an empty name if none is given."""
    path, _, name = target.rpartition(":")
    if not path and not name:
        raise UserError(f"{target!r}: write SCRIPT:NAME, such as train.py:train_loader", code=2)
    return (path, name) if path and not os.path.isfile(target) else (target.rstrip(":"), "")


def _is_module(path: str) -> bool:
    """True if a text that names no file can be a module's name."""
    return not os.path.exists(path) and not path.endswith(".py") and all(part.isidentifier() for part in path.split("."))


def _as_script(path: str) -> _Script:
    """A script as ``python PATH`` would run it: modules in its folder can be imported."""
    if not os.path.isfile(path):
        raise UserError(f"there is no script {clean(path)}", code=2)
    name = os.path.splitext(os.path.basename(path))[0]
    # Workers that are spawned import it by its name.
    return _Script(f"{name}_" if name in sys.modules else name, path, os.path.dirname(os.path.abspath(path)), is_module=False)


def _as_module(name: str) -> _Script:
    """A module, run as ``python -m NAME`` would: it is looked for in the current folder, then where Python's modules are."""
    if name.endswith(".py") or os.sep in name:
        raise UserError(f"{clean(name)} is a script: leave -m out, or write it as {_dotted(name)}", code=2)
    return _Script(name, "", os.getcwd(), is_module=True)


def _dotted(path: str) -> str:
    """The module name of a script, from the folder that holds its outermost package."""
    parts = [os.path.splitext(os.path.basename(path))[0]]
    folder = os.path.dirname(os.path.abspath(path))
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.basename(folder):
        parts.insert(0, os.path.basename(folder))
        folder = os.path.dirname(folder)
    return clean(".".join(parts))


def _imported(script: _Script, arguments: list[str]) -> Any:
    """The script as a module. It sees its own arguments, and imports what it does when Python runs it."""
    import importlib

    from gputop.loader.loaders import said

    sys.path.insert(0, script.folder)
    sys.argv = [script.path or script.name, *arguments]
    try:
        if script.is_module:
            return importlib.import_module(script.name)
        return _from_file(script)
    except SystemExit as error:
        raise UserError(f"{script.told} ended itself with {error.code!r}: its arguments follow after --") from None
    except Exception as error:  # noqa: BLE001 - the script is the user's
        if isinstance(error, ModuleNotFoundError):
            if error.name == "torch":
                raise UserError(
                    f"torch is not installed for {sys.executable}, which runs gputop: install gputop-ebpf where torch is"
                ) from None
            if script.is_module and error.name and f"{script.name}.".startswith(f"{error.name}."):
                raise UserError(
                    f"there is no script and no module {script.told}: go to the folder where python -m finds it", code=2
                ) from None
        if isinstance(error, ImportError) and "relative import" in str(error) and not script.is_module:
            raise UserError(
                f"{script.told} imports from its package: name it as a module, gputop loader -m {_dotted(script.path)}:NAME", code=2
            ) from None
        raise UserError(f"{script.told} fails: {said(error)}{_line(error, script)}") from None


def _from_file(script: _Script) -> Any:
    import importlib.machinery
    import importlib.util

    loader = importlib.machinery.SourceFileLoader(script.name, script.path)
    spec = importlib.util.spec_from_file_location(script.name, script.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.name] = module
    loader.exec_module(module)
    return module


def _line(error: Exception, script: _Script) -> str:
    """Text with the line of the script that failed."""
    import traceback

    stem = os.path.join(script.folder, *script.name.split("."))  # an import that failed leaves no module that names its file
    files = (f"{stem}.py", os.path.join(stem, "__init__.py")) if script.is_module else (script.path,)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f" (line {lines[-1]})" if lines else ""


def _loader(module: Any, script: _Script, name: str) -> Any:
    """The loader called ``name``, which may be dotted; a function is called. Without a name, the only one there is."""
    from gputop.loader.loaders import said

    loaders = [key for key, value in vars(module).items() if _is_loader(value)]
    there = f"its loaders are {', '.join(clean(key, 80) for key in loaders)}" if loaders else _NOT_THERE
    if not name:
        if len(loaders) == 1:
            return getattr(module, loaders[0])
        raise UserError(f"{script.told}: name the loader behind a colon, {script.told}:NAME: {there}", code=2)
    try:
        found = attrgetter(name)(module)
    except AttributeError:
        raise UserError(f"{script.told} has no {clean(name)}: {there}", code=2) from None
    if _is_loader(found) or not callable(found):
        return found
    try:
        return found()
    except Exception as error:  # noqa: BLE001 - the function is the user's
        raise UserError(f"{name}() of {script.told} fails: {said(error)}{_line(error, script)}") from None


def _is_loader(value: object) -> bool:
    from gputop.loader.loaders import torch_base

    try:
        torch_base(value)
    except UserError:
        return False
    return True


@contextmanager
def _standard_output_to_errors() -> Iterator[None]:
    """Redirect what the script and its workers print to standard error: standard output is for the table."""
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
