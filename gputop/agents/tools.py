"""The registry of tools, one file each. A tool is a module with `SAYS` and `run(places, asked: XQuestion) -> XAnswer`.

To add one: write the file, and add its name to `TOOLS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, cast, get_type_hints

import msgspec

from gputop.agents.answer import Answer, Asked, Row, bounded, schema_of
from gputop.agents.places import Places
from gputop.system.errors import UserError
from gputop.system.text import clean

TOOLS = ("overview", "diagnose", "incidents", "ranks", "stacks", "series", "query", "compare")
EXPERIMENTS = ("prove", "trace")  # these change something, or slow a job, and are there only where that is allowed


class Tool(Protocol):
    """Contents of a tool's module."""

    SAYS: str

    def run(self, places: Places, asked: Any) -> Answer:
        """Answer. Raises UserError."""


def tool(name: str) -> Tool:
    """The module."""
    return cast(Tool, import_module(f"gputop.agents.{name}"))


def question_of(found: Tool) -> type[Asked]:
    """The struct of a tool's arguments, as its `run` is annotated."""
    return cast(type[Asked], get_type_hints(found.run)["asked"])


def answer_of(found: Tool) -> type[Answer]:
    """The struct of a tool's answer, as its `run` is annotated."""
    return cast(type[Answer], get_type_hints(found.run)["return"])


def definition(name: str) -> Row:
    """Name, description and schemas."""
    found = tool(name)
    return {"name": name, "description": found.SAYS, "input": schema_of(question_of(found)), "output": schema_of(answer_of(found))}


def call(places: Places, name: str, arguments: Row) -> Row:
    """Answer a question, within its bounds. Raises UserError for what cannot be asked or answered."""
    found = tool(name)
    try:
        asked = msgspec.convert(arguments, question_of(found))
    except (msgspec.ValidationError, UnicodeError) as error:  # half a character is no text
        raise UserError(f"{name}: {clean(str(error), 300)}", code=2) from None
    with places.lock:
        return bounded(name, asked, found.run(places, asked))
