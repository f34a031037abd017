"""The settings.

Settings stand in ``/etc/gputop/config.toml``, over it ``$XDG_CONFIG_HOME/gputop/config.toml`` of the user, over both variables such as
``GPUTOP_INTERVAL=0.2``; a flag on the command line overrides all. The keys of the files are the long flags of the live view
(``interval = 0.2``, ``no-ebpf = true``), ``[keys]`` maps actions to keys, and ``[alerts]`` names where incidents go. ``GPUTOP_CONFIG``
names a file that is read in place of both. What gputop itself writes stands in `state_folder`.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_type_hints

from gputop.system.errors import UserError
from gputop.system.text import decoded

if TYPE_CHECKING:
    import argparse

KEYS = "keys"  # the table of config.toml that maps actions to keys
ALERTS = "alerts"  # the table that says where incidents are told
SYSTEM_PATH = "/etc/gputop/config.toml"  # the administrator's settings, under the user's
PREFIX = "GPUTOP_"  # of variables: GPUTOP_NO_EBPF=1 is no-ebpf = true
_CHOSEN = "GPUTOP_CONFIG"  # variable: a file in place of both
_SINK = "GPUTOP_ALERT"  # variable: one sink of alerts
_IN_ALERT = "GPUTOP_EVENT"  # variable: set in an alert's command, whose GPUTOP_HOST and others are facts of the alert
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}  # of a switch's variable
_MOST_BYTES = 1 << 16  # of each file: the rest is ignored
_MOST_DOTS = 50  # in one key; the deepest, keys.ACTION, has one. tomllib takes a minute for a key of 30,000, 0.1 s for lines of 50
_BETWEEN_KEYS = re.compile(r"[=,{}\[\]]")


class ConfigValue(NamedTuple):
    """A value, and the file or variable that it comes from."""

    value: Any
    origin: str


Settings = dict[str, ConfigValue]  # key -> its value, as `settings` reads them


class Alerting(NamedTuple):
    """[alerts]: what ``--alert`` and ``--alert-on`` are without these flags."""

    sinks: list[str] = []
    severity: Literal["low", "medium", "high"] = "medium"


def config_path() -> str:
    """Path of the user's config.toml."""
    return os.path.join(_home("XDG_CONFIG_HOME", ".config"), "gputop", "config.toml")


def state_folder() -> str:
    """Folder of what gputop keeps. For root by sudo it is in root's own home, whatever variables sudo passed on: what root writes into
    the home of the user, that user cannot use."""
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "0") != "0":
        import pwd

        with suppress(KeyError):
            return os.path.join(pwd.getpwuid(0).pw_dir, ".local/state/gputop")
    return os.path.join(_home("XDG_STATE_HOME", ".local/state"), "gputop")


def paths() -> list[str]:
    """The files that are read, the weakest first."""
    return [chosen] if (chosen := os.environ.get(_CHOSEN)) else [SYSTEM_PATH, config_path()]


def apply(parser: argparse.ArgumentParser, strict: bool, mistakes: list[str] | None = None, found: Settings | None = None) -> None:
    """Make the settings, ``found`` or read from the files, the defaults of the parser's flags.

    With ``strict``, a key of a file that is no flag of the parser raises UserError, as does a wrong value; ``mistakes`` collects the
    errors' texts instead.
    """
    known = flags(parser)
    for name, setting in in_force(parser, found).items():
        if name.partition(".")[0] in (KEYS, ALERTS) or not (strict or name in known):
            continue
        try:
            if name not in known:
                raise UserError(f"{setting.origin}: {name} is no flag of gputop (see gputop --help)", code=2)
            parser.set_defaults(**{known[name].dest: _checked(parser, name, setting, known[name])})
        except UserError as error:
            if mistakes is None:
                raise
            mistakes.append(str(error))


def flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The long flags of a parser, without their dashes."""
    return {flag[2:]: action for action in parser._actions for flag in action.option_strings if flag.startswith("--")}


def in_force(parser: argparse.ArgumentParser, found: Settings | None = None) -> Settings:
    """The settings, and over them the variables of the parser's flags, the strongest last. Raises UserError."""
    held = settings() if found is None else dict(found)
    for name, setting in _variables(flags(parser)).items():
        held.pop(name, None)
        held[name] = setting
    return held


def key_map(found: Settings | None = None) -> dict[str, str]:
    """Action -> keys, for Textual's ``set_keymap``: ``{"quit": "q,ctrl+q"}``. Raises UserError."""
    mapped = _table(KEYS, found)
    for setting in mapped.values():
        if not isinstance(setting.value, str):
            raise UserError(f'{setting.origin}: [keys] maps actions to keys, as in: pause = "space,p"')
    return {action: setting.value for action, setting in mapped.items()}


def alerts(found: Settings | None = None) -> Alerting:
    """[alerts]. Raises UserError."""
    kept = _table(ALERTS, found)
    if not kept:
        return Alerting()
    import msgspec

    told: Any = {name: setting.value for name, setting in kept.items()}
    fields = [(name, kind, Alerting._field_defaults[name]) for name, kind in get_type_hints(Alerting).items()]
    table = msgspec.defstruct("Table", fields, forbid_unknown_fields=True)
    try:
        return Alerting(*msgspec.structs.astuple(msgspec.convert(told.get("", told), table)))
    except msgspec.ValidationError as error:
        places = " and ".join(dict.fromkeys(setting.origin for setting in kept.values()))
        raise UserError(f'{places}: [alerts] {error}; write sinks = ["bell"], severity = "medium"', code=2) from None


def settings() -> Settings:
    """Key -> value of the files, the user's last and in place of the system's; a key of a table has its name before it (``keys.quit``).

    GPUTOP_ALERT names one sink in place of the files'. Raises UserError if a file cannot be read or parsed.
    An absent file is an empty one, unless GPUTOP_CONFIG names it.
    """
    found: Settings = {}
    for path in paths():
        for name, value in _read(path).items():
            for key, one in ({f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}).items():
                found.pop(key, None)
                found[key] = ConfigValue(one, path)
    if (sink := os.environ.get(_SINK)) and _IN_ALERT not in os.environ:
        found[f"{ALERTS}.sinks"] = ConfigValue([sink], _SINK)
    return found


def _table(name: str, found: Settings | None) -> Settings:
    """The settings of a table by their names in it; by no name what is no table."""
    held = settings() if found is None else found
    return {key.partition(".")[2]: setting for key, setting in held.items() if key.partition(".")[0] == name}


def _variables(known: dict[str, argparse.Action]) -> Settings:
    """The flags that variables set. Others may be Kubernetes', for a service named gputop; --alert is a table's (see `alerts`)."""
    if _IN_ALERT in os.environ:
        return {}
    named = {name: f"{PREFIX}{name.upper().replace('-', '_')}" for name, action in known.items() if not _is_list(action)}
    texts = {name: (os.environ.get(variable, ""), variable) for name, variable in named.items()}
    return {
        name: ConfigValue(_WORDS.get(text.lower(), text) if known[name].nargs == 0 else text, variable)
        for name, (text, variable) in texts.items()
        if text
    }


def _read(path: str) -> dict[str, Any]:
    """The content of a file. Raises UserError."""
    try:
        data = content(path)
    except FileNotFoundError:
        if path == os.environ.get(_CHOSEN):
            raise UserError(f"{_CHOSEN} names {path}, which does not exist") from None
        return {}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    from gputop.system.decoding import BROKEN  # msgspec, which a start without a file need not wait for

    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        text = decoded(data)
        _check_depth(text)
        values: dict[str, Any] = toml.loads(text)
    except BROKEN as error:  # wrong syntax, no text, or nested too deeply
        raise UserError(f"{path}: {error}") from None
    return values


def _check_depth(text: str) -> None:
    """Raise ValueError for a key of so many parts that tomllib, which takes quadratic time, would not finish."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > _MOST_DOTS and any(part.count(".") > _MOST_DOTS for part in _BETWEEN_KEYS.split(line)):
            raise ValueError(f"more than {_MOST_DOTS} dots in a key (at line {number})")


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


def content(path: str) -> bytes:
    """The first `_MOST_BYTES` of a file. Raises OSError."""
    with os.fdopen(open_file(path), "rb") as file:
        return file.read(_MOST_BYTES)


def _home(variable: str, fallback: str) -> str:
    return os.environ.get(variable) or os.path.join(os.path.expanduser("~"), fallback)


def _is_list(action: argparse.Action) -> bool:
    from argparse import _AppendAction

    return isinstance(action, _AppendAction)


def _checked(parser: argparse.ArgumentParser, name: str, setting: ConfigValue, action: argparse.Action) -> object:
    """The value that the flag would have set. Raises UserError if the flag does not accept it."""
    from argparse import ArgumentError

    value, origin = setting
    if _is_list(action):
        raise UserError(f"{origin}: {name}: write it as sinks = [{str(value)!r}] under [alerts]", code=2)
    try:
        if isinstance(value, bool) == (action.nargs == 0):
            return value == action.const if isinstance(value, bool) else _as_typed(parser, str(value), action)
        reason = "must be true or false" if action.nargs == 0 else "wants a value"
    except ArgumentError as error:
        reason = error.message
    told = f"{origin}={value}" if origin.startswith(PREFIX) else f"{origin}: {name} = {value!r}"
    raise UserError(f"{told}: {reason}", code=2)


def _as_typed(parser: argparse.ArgumentParser, text: str, action: argparse.Action) -> object:
    """The value that argparse makes of a word on the command line, by the flag's type and choices. Raises argparse.ArgumentError."""
    value = parser._get_value(action, text)
    parser._check_value(action, value)
    return value
