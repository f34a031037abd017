"""The user's settings, and the state in which the last screen was left.

The user writes ``$XDG_CONFIG_HOME/gputop/config.toml``: its keys are the long flags of the live view (``interval = 0.2``,
``no-ebpf = true``), ``[keys]`` maps actions to keys, and ``[alerts]`` says where incidents are told. A flag on the command line overrides
the file. gputop writes ``$XDG_STATE_HOME/gputop/screen.json``: time base, sort order and theme.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import stat
import sys
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec

from gputop.system.errors import UserError

KEYS = "keys"  # the table of config.toml that maps actions to keys
ALERTS = "alerts"  # the table that says where incidents are told
_MOST_BYTES = 1 << 16  # of either file: the rest is ignored


class Saved(msgspec.Struct):
    """The state of the last screen."""

    window_s: Annotated[int, msgspec.Meta(ge=10, le=600)] = 60
    sort: str = "natural"
    reverse: bool = False
    tree: bool = True
    theme: str = ""


class Alerting(msgspec.Struct, forbid_unknown_fields=True):
    """[alerts]: what ``--alert`` and ``--alert-on`` are without these flags."""

    sinks: list[str] = []
    severity: Literal["low", "medium", "high"] = "medium"


def config_path() -> str:
    """Path of the user's config.toml."""
    return os.path.join(_home("XDG_CONFIG_HOME", ".config"), "gputop", "config.toml")


def state_path() -> str:
    """Path of screen.json."""
    return os.path.join(state_folder(), "screen.json")


def state_folder() -> str:
    """Folder of what gputop keeps. For root by sudo it is in root's own home, whatever variables sudo passed on: what root writes into
    the home of the user, that user cannot use."""
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "0") != "0":
        import pwd

        with suppress(KeyError):
            return os.path.join(pwd.getpwuid(0).pw_dir, ".local/state/gputop")
    return os.path.join(_home("XDG_STATE_HOME", ".local/state"), "gputop")


def apply(parser: argparse.ArgumentParser, strict: bool) -> None:
    """Make the values of config.toml the defaults of the parser's flags.

    With ``strict``, a key that is no flag of the parser raises UserError, as does a wrong value.
    """
    values = load()
    known = {flag.lstrip("-"): action for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
    for name, value in values.items():
        if strict and name not in (KEYS, ALERTS, *known):
            raise UserError(f"{config_path()}: {name} is no flag of gputop (see gputop --help)", code=2)
        if name in known:
            parser.set_defaults(**{known[name].dest: _checked(parser, name, value, known[name])})


def key_map() -> dict[str, str]:
    """Action -> keys, for Textual's ``set_keymap``: ``{"quit": "q,ctrl+q"}``. Raises UserError."""
    mapped = load().get(KEYS, {})
    if not isinstance(mapped, dict) or not all(isinstance(keys, str) for keys in mapped.values()):
        raise UserError(f'{config_path()}: [keys] maps actions to keys, as in: pause = "space,p"')
    return mapped


def alerts() -> Alerting:
    """[alerts] of config.toml. Raises UserError."""
    try:
        return msgspec.convert(load().get(ALERTS, {}), Alerting)
    except msgspec.ValidationError as error:
        raise UserError(f'{config_path()}: [alerts] {error}; write sinks = ["bell"], severity = "medium"', code=2) from None


def load() -> dict[str, Any]:
    """The content of config.toml, empty if there is no file. Raises UserError if it cannot be read or parsed."""
    path = config_path()
    try:
        data = _content(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        values: dict[str, Any] = toml.loads(data.decode())
    except ValueError as error:  # wrong syntax, or not UTF-8
        raise UserError(f"{path}: {error}") from None
    return values


def load_screen() -> Saved:
    """The state of the last screen; the defaults if it cannot be read."""
    try:
        return msgspec.json.decode(_content(state_path()), type=Saved)
    except (OSError, msgspec.MsgspecError):
        return Saved()


def save_screen(saved: Saved) -> None:
    """Write screen.json. An error is ignored: the next screen then has the defaults."""
    path = state_path()
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(f"{path}.{os.getpid()}", "xb") as file:
            file.write(msgspec.json.encode(saved))
        os.replace(f"{path}.{os.getpid()}", path)
    except OSError:
        pass


def open_file(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file or /dev/null; returns the descriptor.

    Raises OSError, also for anything else: opening a FIFO would wait for its writer.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) or os.path.samestat(found, os.stat(os.devnull)):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file")


def _content(path: str) -> bytes:
    """The first `_MOST_BYTES` of a file. Raises OSError."""
    with os.fdopen(open_file(path), "rb") as file:
        return file.read(_MOST_BYTES)


def _home(variable: str, fallback: str) -> str:
    return os.environ.get(variable) or os.path.join(os.path.expanduser("~"), fallback)


def _checked(parser: argparse.ArgumentParser, name: str, value: object, action: argparse.Action) -> object:
    """The value that the flag would have set. Raises UserError if the flag does not accept it."""
    if isinstance(action, argparse._AppendAction):
        raise UserError(f"{config_path()}: {name}: write it as sinks = [{str(value)!r}] under [alerts]", code=2)
    try:
        if isinstance(value, bool) == (action.nargs == 0):
            return value == action.const if isinstance(value, bool) else _as_typed(parser, str(value), action)
        reason = "must be true or false" if action.nargs == 0 else "wants a value"
    except argparse.ArgumentError as error:
        reason = error.message
    raise UserError(f"{config_path()}: {name} = {value!r}: {reason}", code=2)


def _as_typed(parser: argparse.ArgumentParser, text: str, action: argparse.Action) -> object:
    """The value that argparse makes of a word on the command line, by the flag's type and choices. Raises argparse.ArgumentError."""
    value = parser._get_value(action, text)
    parser._check_value(action, value)
    return value
