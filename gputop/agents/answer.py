"""Answers for programs: bounded in bytes, with text from elsewhere marked as such.

Names, command lines, stacks and markers come from other people's processes, and any program may have written a recording: a model must not
take such text for instructions. It stands in fields with names that end in ``_untrusted``, without characters that hide, reorder or
command.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gputop.system.text import clean

DEFAULT_BYTES = 8_000  # of an answer as JSON: about 2,000 tokens
MOST_BYTES = 20_000  # of an answer, whatever is asked for
TEXT = 200  # characters of a text from elsewhere
SHORT = 40  # characters that a text keeps when an answer is too large

MaxBytes = Annotated[int, Meta(ge=1000, le=MOST_BYTES)]
Row = dict[str, Any]

_HIDDEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")  # Unicode categories without a visible shape
_FILLERS = re.compile("[\u115f\u1160\u180b-\u180e\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")  # letters and marks without one


def untrusted(text: object, limit: int = TEXT) -> str:
    """A text from elsewhere, harmless: what is hidden in it, or would be obeyed, is a dot."""
    said = _FILLERS.sub("·", clean(str(text), limit + 1))
    if not said.isascii():
        said = "".join("·" if unicodedata.category(char) in _HIDDEN else char for char in said)
    return said if len(said) <= limit else f"{said[: limit - 1]}…"


def all_untrusted(value: Any) -> Any:
    """The JSON value with each text, keys included, made harmless by `untrusted`, and floats of six digits."""
    if isinstance(value, str):
        return untrusted(value)
    if isinstance(value, dict):
        return {untrusted(key, SHORT): all_untrusted(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [all_untrusted(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


class Next(Struct, frozen=True):
    """A call that goes on from here: for the rest of an answer, or the next step."""

    tool: str
    arguments: Row


class Answer(Struct, kw_only=True):
    """Fields that every answer has."""

    target: str
    not_measured_untrusted: list[str] = []  # ``source: reason``
    truncated: bool = False  # whether something was left out
    next: Next | None = None


class Asked(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Arguments that every tool takes."""

    target: str = ""
    max_bytes: MaxBytes = DEFAULT_BYTES

    def paged(self) -> str:
        """Name of the answer's list, or text of lines, that a greater ``cursor`` continues; empty if it has none."""
        return ""

    def wider(self) -> Row:
        """Arguments for a question that shows more than `run` did within this one's limits; empty if none would."""
        return {}


def bounded(name: str, asked: Asked, answer: Answer) -> Row:
    """The answer as JSON-ready data of at most ``asked.max_bytes``: long lists lose their ends, then texts are cut.

    ``next`` asks for what is left out. It always differs from ``asked`` and continues it, so a client that follows it comes to an end.
    """
    found: Row = msgspec.json.decode(msgspec.json.encode(answer))  # what is no number becomes null
    text = found.get(paged := asked.paged())
    if not isinstance(text, str):
        return _bounded(name, asked, found)
    found = _bounded(name, asked, found | {paged: text.split("\n") if text else []})
    return found | {paged: "\n".join(found[paged])}


def _bounded(name: str, asked: Asked, found: Row) -> Row:
    has_cut = False
    while _size(found) > asked.max_bytes and _cut(found):
        found["truncated"] = has_cut = True
        found["next"] = None
    if not found["truncated"] or found["next"]:
        return found
    while more := _rest(asked, found, has_cut):
        arguments = {**msgspec.to_builtins(asked), **more}
        if not _may_be_asked(arguments, asked):
            break
        step = {"tool": name, "arguments": arguments}
        if _size(step) + _size(found) <= asked.max_bytes:
            found["next"] = step
            break
        if not _cut(found):  # what is cut for the step's sake comes with the step
            break
        has_cut = True
    return found


def _rest(asked: Asked, found: Row, has_cut: bool) -> Row:
    """Arguments that ask for the rest: the next page if the answer has pages, else more bytes, or a greater limit."""
    if paged := asked.paged():
        return {"cursor": asked.cursor + len(found[paged])} if found[paged] else {}  # type: ignore[attr-defined]
    if has_cut:
        return {"max_bytes": MOST_BYTES} if asked.max_bytes < MOST_BYTES else {}
    return asked.wider()


def _may_be_asked(arguments: Row, asked: Asked) -> bool:
    try:
        return msgspec.convert(arguments, type(asked)) != asked
    except msgspec.ValidationError:  # a cursor beyond its bound
        return False


def _size(value: object) -> int:
    return len(msgspec.json.encode(value))


def _cut(found: Row) -> bool:
    """Shorten the largest list by a quarter, or else the longest texts; whether there was something to shorten."""
    lists = [one for one in _lists(found) if len(one) > 1]
    if lists:
        longest = max(lists, key=_size)
        del longest[max(1, len(longest) * 3 // 4) :]
        return True
    return _cut_texts(found)


def _lists(value: object) -> Iterable[list[Any]]:
    if isinstance(value, list):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _lists(one)


def _cut_texts(value: Any) -> bool:
    has_cut = False
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(one, str) and len(one) > SHORT:
            value[key] = f"{one[: SHORT - 1]}…"
            has_cut = True
        else:
            has_cut |= _cut_texts(one)
    return has_cut


def schema_of(kind: type[Struct]) -> Row:
    """A short JSON Schema of a struct: what its fields are, and nothing of what is in objects and lists."""
    (found,), defs = msgspec.json.schema_components([kind], ref_template="{name}")
    whole = defs[found["$ref"]]
    fields = {name: _short(one) for name, one in whole["properties"].items()}
    return {"type": "object", "properties": fields, **({"required": needed} if (needed := whole.get("required")) else {})}


def _short(field: Row) -> Row:
    if "anyOf" in field:
        kinds = [_short(one).get("type", "object") for one in field["anyOf"]]
        return {"type": kinds}
    if "$ref" in field:
        return {"type": "object"}
    kept: Row = {key: field[key] for key in ("type", "maximum") if key in field}
    if field.get("default") not in (None, "", [], {}, 0, False):
        kept["default"] = field["default"]
    return kept
