"""Flags that several commands share, and their checks."""

from __future__ import annotations

import argparse
import pwd
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gputop.system.errors import UserError
from gputop.system.imports import STANDARD, import_for_user

if TYPE_CHECKING:
    from gputop.alerts.alert import Alert
    from gputop.alerts.sender import Alerts
    from gputop.findings.money import GpuHourPrice
    from gputop.sources import Settings

_READERS = ("gputop.diagnosis", "gputop.model", "gputop.system", "gputop.stream", "gputop.findings", "gputop.stacks", "gputop.traces")
RECORDER = (*_READERS, "gputop.recording", *STANDARD)
WRITER = ("gputop.recording", "gputop.tables", "gputop.stacks", "csv", "sqlite3", *STANDARD)
SCREEN = ("gputop.tui", "gputop.commands", "gputop.sources", "gputop.alerts", "textual", "rich", *RECORDER)
NO_EBPF = "no eBPF probes, even where they could run"
NO_SERVING = "ask no inference server for its metrics"
SERVING = "an inference server to ask, too: http://HOST:PORT (several times: several)"
SUDO = "load the eBPF probes through sudo; the rest runs as you"
_NUMBER = r"\d+\.?\d*|\.\d+"
_PART = rf"({_NUMBER}) ?(ms|[smhd]) ?"
_SECONDS_OF = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LEAST_BYTES = 1 << 20  # of a size
_PRICE = re.compile(r"([A-Za-z€£¥$]{0,3})\s?(\d{1,7}(?:\.\d{1,6})?)\s?([A-Za-z€£¥$]{0,3})(?:/h)?", re.ASCII)
MOST_GPUS = 4096
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.02, 60.0
PORT = 9838  # of metrics: of no other exporter in Prometheus' list of default ports
LINE_FORMS = ("plain", "tmux", "waybar")  # see `gputop.findings.line`
ALERT_SEVERITIES = ("low", "medium", "high")


def interval(text: str) -> float:
    """Seconds between ticks, 0.02 to 60."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not LEAST_INTERVAL_S <= value <= MOST_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text} s is outside {LEAST_INTERVAL_S}–{MOST_INTERVAL_S:g} s")
    return value


def duration(least: str = "1ms", most: str = "10000d") -> Callable[[str], float]:
    """A parser of seconds from ``90``, ``90s``, ``10m``, ``1h30m`` or ``1d``, within the bounds."""

    def seconds(text: str) -> float:
        value = _seconds(text)
        if not _seconds(least) <= value <= _seconds(most):
            raise argparse.ArgumentTypeError(f"{text!r} is no time from {least} to {most}: write 90, 90s, 10m or 2h")
        return value

    return seconds


def _seconds(text: str) -> float:
    """The seconds of a text, -1 for another text."""
    text = text.strip()
    if re.fullmatch(_NUMBER, text, re.ASCII):
        return float(text)
    if not re.fullmatch(f"({_PART})+", text, re.ASCII):
        return -1.0
    return sum(float(number) * _SECONDS_OF[unit] for number, unit in re.findall(_PART, text, re.ASCII))


def number(least: int = 1) -> Callable[[str], int]:
    """A parser of whole numbers from ``least`` on."""

    def whole(text: str) -> int:
        value = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} on")
        return value

    return whole


def size(text: str) -> int:
    """Bytes of a text such as ``100M``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    value = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if value < LEAST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of at least 1M: write 100M or 2G")
    return value


def price(text: str) -> GpuHourPrice:
    """The price of a GPU hour from ``3.5``, ``3.5/h``, ``$3.5/h`` or ``3.5EUR/h``."""
    from fractions import Fraction

    from gputop.findings.money import GpuHourPrice
    from gputop.system.text import clean

    found = _PRICE.fullmatch(text.strip())
    if not found or (found[1] and found[3]):
        raise argparse.ArgumentTypeError(f"{clean(text, 40)!r} is no price of a GPU hour: write 3.5/h or 3.5EUR/h")
    return GpuHourPrice(Fraction(found[2]), clean(found[1] or found[3]))


def address(text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9838``, ``:9838`` or ``[::1]:9838``."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and not text.startswith("[")):
        raise argparse.ArgumentTypeError(f"{text!r} is no address: write 127.0.0.1:{PORT}, :{PORT} or [::1]:{PORT}")
    return host, int(port)


def server(text: str) -> str:
    """The address of an inference server: ``http://127.0.0.1:8000``."""
    from gputop.sources.serving.asking import parts_of

    try:
        parts_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no address of a server: {error}") from None
    return text


def process_id(text: str) -> int:
    """A process id, 1 to 2**31 - 1."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is no process id")
    return int(text)


def indices(text: str) -> frozenset[int]:
    """GPU indices: ``0``, ``0,2`` or ``0-3``."""
    chosen: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            chosen.update(range(int(first), min(int(last or first), MOST_GPUS) + 1))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} names no GPUs: write 0, 0,2 or 0-3") from None
    if not chosen or min(chosen) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} names no GPUs: write 0, 0,2 or 0-3")
    return frozenset(chosen)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the collector."""
    parser.add_argument("--interval", type=interval, default=0.1, metavar="S", help="seconds between samples, 0.02 to 60 (0.1)")
    parser.add_argument("--gpu", type=indices, metavar="LIST", help="only these GPUs: 0 or 0,2 or 0-3")
    parser.add_argument("--no-ebpf", action="store_true", help=NO_EBPF)
    parser.add_argument("--sudo", action="store_true", help=SUDO)
    parser.add_argument("--serving", action="append", type=server, metavar="URL", help=SERVING)
    parser.add_argument("--no-serving", action="store_true", help=NO_SERVING)


def add_alerts(parser: argparse.ArgumentParser) -> None:
    """Add the flags of alerts."""
    parser.add_argument("--alert", action="append", metavar="SINK", help="report trouble: bell, desktop, https://…, exec:COMMAND")
    parser.add_argument("--alert-on", choices=ALERT_SEVERITIES, metavar="LEVEL", help="from low, medium or high severity on (medium)")


def alerts_of(
    args: argparse.Namespace, notify: Callable[[str], None], said: Callable[[Alert], None] | None = None
) -> Alerts | None:
    """The alerts that the flags, or else [alerts] of config.toml, ask for; None for none. ``notify`` gets lines about failures, ``said``
    each alert; ``said`` alone is enough. UserError for an impossible sink.
    """
    from gputop.system import config

    kept = config.alerts()
    texts, severity = (kept.sinks if args.alert is None else args.alert), args.alert_on or kept.severity
    if not texts and said is None:
        return None  # without the imports
    from gputop.alerts.sender import Alerts
    from gputop.alerts.sinks import sinks_of

    sinks = sinks_of(texts)
    return Alerts(sinks, severity, notify, said) if sinks or said is not None else None


def refuse_alerts(args: argparse.Namespace) -> None:
    """UserError for --alert with several machines."""
    if args.alert:
        raise UserError("--alert is for one machine: start gputop watch --host NODE --alert SINK for each", code=2)


def sampling_settings(args: argparse.Namespace) -> Settings:
    """The collector's settings by the flags of `add_sampling`."""
    from gputop.sources import Settings

    return Settings(
        interval_ns=round(args.interval * 1e9), gpus=args.gpu, ebpf=not args.no_ebpf, sudo=args.sudo, serving=tuple(args.serving or ()),
        asks=not args.no_serving,
    )  # fmt: skip


def sampling_argv(args: argparse.Namespace) -> list[str]:
    """The flags of `add_sampling` for the command line of a collector."""
    argv = ["--interval", repr(args.interval)]
    if args.gpu is not None:
        argv += ["--gpu", ",".join(map(str, sorted(args.gpu)))]
    argv += ["--no-ebpf"] * args.no_ebpf + ["--sudo"] * args.sudo + ["--no-serving"] * args.no_serving
    return argv + [word for url in args.serving or () for word in ("--serving", url)]


def stream_argv(args: argparse.Namespace) -> list[str]:
    """The command that writes the stream: a collector here, or with --host one at the other end of ssh. UserError for a wrong host."""
    flags = sampling_argv(args)
    if args.host is None:
        from gputop.stream.child import collector_argv

        return collector_argv(flags)
    from gputop.stream.reach import Target

    return Target(args.host).argv("collect", *flags)


def ask_sudo(args: argparse.Namespace) -> None:
    """Let sudo ask for the password before the screen takes the terminal. UserError if it refuses."""
    import os

    if not args.sudo or os.geteuid() == 0 or getattr(args, "host", None) is not None:
        return
    from gputop.system.privilege import authorize_sudo

    if not authorize_sudo():
        raise UserError("sudo refused: leave --sudo out to go on without eBPF")


def leave_root(*packages: str) -> None:
    """Become the invoking user of `sudo gputop`: the screen and the recorder need no privilege. Raises UserError.

    ``packages`` are needed afterwards: they are imported first if gputop or Python lie in root's home.
    """
    from gputop.system.privilege import drop_to_invoking_user, invoking_user

    user = invoking_user()
    if user is None:
        return
    import_for_user(user[0], *packages)
    try:
        drop_to_invoking_user()
    except OSError as error:
        raise UserError(f"sudo gputop cannot become you again (uid {user[0]}): {error.strerror}") from None


@contextmanager
def acting_as_user(*packages: str) -> Iterator[None]:
    """Act as the invoking user of `sudo gputop` within the block: files belong to that user.

    ``packages`` as in `leave_root`.
    """
    from gputop.system.privilege import as_invoking_user, invoking_user

    user = invoking_user()
    if user is not None:
        import_for_user(user[0], *packages)
    with as_invoking_user():
        yield


def check_chosen(args: argparse.Namespace) -> None:
    """Raise UserError for a --pid or --user that is not on this machine; another machine's are not known."""
    if args.host is None:
        check_pid(args.pid)
        check_user(args.user)


def check_pid(pid: int | None) -> None:
    """Raise UserError for a process that does not run."""
    if pid is not None and not runs(pid):
        raise UserError(no_process(pid))


def runs(pid: int) -> bool:
    """True if a process with this pid exists."""
    import os

    return os.path.exists(f"/proc/{pid}")


def no_process(pid: int) -> str:
    """The error for a pid without a process."""
    return f"there is no process {pid}"


def check_user(user: str | None) -> None:
    """Raise UserError for an unknown user name or uid."""
    if user is None:
        return
    try:
        pwd.getpwuid(int(user)) if user.isascii() and user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        raise UserError(f"there is no user {user!r}") from None
