"""Where an export of a file per table is written: a new directory, the user's alone, whole or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from gputop.system.errors import UserError
from gputop.system.output import whole_or_gone
from gputop.system.text import clean


@contextmanager
def new_directory(path: str) -> Iterator[str]:
    """Where to write it: see `whole_or_gone`. Raises UserError where it cannot be made or is there already."""
    with whole_or_gone(path, _make_directory, shutil.rmtree) as part:
        _make_directory(part)
        yield part


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        raise UserError(f"{clean(path)} exists already: give another name with -o") from None
    except OSError as error:
        raise UserError(f"cannot create {clean(path) or 'a directory without a name'}: {error.strerror}") from None
