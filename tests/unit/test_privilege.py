"""Who typed `sudo gputop`."""

from __future__ import annotations

import os

import pytest

from gputop.system import privilege
from gputop.system.errors import UserError


@pytest.mark.parametrize("name", ["SUDO_UID", "SUDO_GID"])
@pytest.mark.parametrize("text", ["-1", "4294967295", "99999999999", "²", "٣", "1 2", "nobody"])
def test_an_invoking_user_that_is_none_is_said_and_nobody_goes_on_as_root(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """-1, and the largest number, mean to the kernel that an id is to stay as it is."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "environ", {"SUDO_UID": "1000", "SUDO_GID": "1000", name: text})
    with pytest.raises(UserError, match=f"{name}=.* is no id"):
        privilege.invoking_user()


@pytest.mark.parametrize(
    ("environment", "who"),
    [
        ({}, None),
        ({"SUDO_UID": ""}, None),
        ({"SUDO_UID": "0", "SUDO_GID": "0"}, None),
        ({"SUDO_UID": "4294967294", "SUDO_GID": "0"}, (4294967294, 0)),
    ],
)
def test_who_typed_sudo(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], who: tuple[int, int] | None) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "environ", environment)
    assert privilege.invoking_user() == who
