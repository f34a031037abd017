"""What the children tell that read a recording ahead, and what is said when one of them is killed."""

from __future__ import annotations

import os

import pytest

from gputop.session.ahead import _message
from gputop.system.errors import UserError


@pytest.mark.parametrize("told", [b"", b"\x05\x00", b"\x05\x00\x00\x00", b"\x05\x00\x00\x00abc"])
def test_a_message_that_was_cut_short_is_told_in_a_line(told: bytes) -> None:
    reads, writes = os.pipe()
    os.write(writes, told)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe, pytest.raises(UserError, match="could not be read to its end"):
        _message(pipe)
