"""Words of a process in a row of a table: its name, user, job and command line."""

from __future__ import annotations

from typing import NamedTuple

from gputop.model.identity import brief_of
from gputop.model.process import ProcInfo
from gputop.model.roles import Role, program_name
from gputop.system.text import clean

MOST_WORDS, MOST_ARGUMENTS = 64, 200  # words of a command line in which the program's name is looked for; characters shown behind the name


class Words(NamedTuple):
    """What a row says of a process for as long as its command line and its role stay."""

    info: ProcInfo
    role: Role | None
    who: str
    user: str
    command: str
    arguments: str
    job: str


def words_of(info: ProcInfo, role: Role | None) -> Words:
    """The words of a process."""
    return Words(
        info, role, who=clean(role.label if role is not None and role.label else program_name(info), 80), user=clean(info.user, 32),
        command=clean(" ".join(info.cmdline) or info.comm), job="" if role is None else brief_of(info),
        arguments=arguments_of(info) if role is None or role.kind == "trainer" else "",
    )  # fmt: skip


def arguments_of(info: ProcInfo) -> str:
    """The command line behind the program's name; empty if the name is not in it, as where a process has given itself a title."""
    name = program_name(info)
    for number, word in enumerate(info.cmdline[:MOST_WORDS]):
        if word.rpartition("/")[2] == name or word == name:
            return clean(" ".join(info.cmdline[number + 1 :]), MOST_ARGUMENTS)
    return ""
