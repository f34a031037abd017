"""Where an export is written: new, the user's alone, and gone again where it is not finished."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from gputop.errors import UserError
from gputop.recording.output import create
from gputop.recording.output import whole_or_gone
from gputop.text import clean


@contextmanager
def new_file(path: str) -> Iterator[int]:
    """Its descriptor, which whoever asks closes. Raises UserError as `create` does."""
    descriptor = create(path)
    with whole_or_gone(path):
        yield descriptor


@contextmanager
def new_directory(path: str) -> Iterator[None]:
    """For a file per table. Raises UserError where it cannot be made or is there already."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        raise UserError(f"{clean(path)} exists already: give another name with -o") from None
    except OSError as error:
        raise UserError(f"cannot create {clean(path) or 'a directory without a name'}: {error.strerror}") from None
    try:
        yield
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
