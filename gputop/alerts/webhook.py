"""``https://…``: the alert as JSON by POST. For Slack and services that take its messages (Mattermost, Rocket.Chat, Discord):
``slack:https://…``.

Proxies are taken from the environment (https_proxy, no_proxy). Redirects are not followed. Plain http goes to this machine only.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import timezone
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gputop.alerts.alert import BEGIN, Alert
from gputop.alerts.sinks import Busy, Refused
from gputop.system.errors import NO_MORE_THREADS, UserError, start_thread
from gputop.system.program import __version__
from gputop.system.text import clean

WHOLE_S = 3.0  # s for all of an exchange (a choice: Slack answers in less than one)
MOST_AFTER_S = 600.0  # s of Retry-After; for longer no alert is tried
MOST_REASON = 120  # characters of what a server gives as a reason
TOO_MANY, SERVER_ERROR = 429, 500  # codes of answers
SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
_COLOURS = {"high": "danger", "medium": "warning"}
_SHORT = 40  # characters from which a field takes a whole line


class Webhook:
    """Posts each alert to an address."""

    def __init__(self, url: str, slack: bool) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.hostname}"  # the rest of the address is a secret
        self._url, self._slack = url, slack
        self._left: Thread | None = None  # one that has not come to its end in time, as where no name server answers

    def send(self, alert: Alert) -> None:
        """Post the alert within `WHOLE_S`, which covers look-up, connection, request and a slow answer."""
        if self._left is not None and self._left.is_alive():
            raise TimeoutError("the last try has not come to its end yet")
        exchange = _Exchange(self._url, msgspec.json.encode(slack_message(alert) if self._slack else alert))
        self._left = start_thread(exchange.run, "webhook")
        if self._left is None:
            raise OSError(NO_MORE_THREADS)
        self._left.join(WHOLE_S)
        exchange.end()


class _Exchange:
    """One request and the head of its answer, in a thread: nothing but the end of its connection bounds an answer that trickles."""

    def __init__(self, url: str, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": f"gputop/{__version__}"}
        self._request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        self._connections: list[http.client.HTTPConnection] = []
        self._is_over = False
        self._failure: Exception | None = None

    def run(self) -> None:
        """Send the request, and wait until the answer has begun."""
        opener = urllib.request.build_opener(_Unmoved, _Http(self._connections), _Https(self._connections))
        try:
            with opener.open(self._request, timeout=WHOLE_S):
                pass
        except Exception as error:  # noqa: BLE001 - raised by `end`, in the sender's thread
            self._failure = error
        finally:
            self._is_over = True

    def end(self) -> None:
        """Raise what went wrong, or that it took too long."""
        if not self._is_over:
            for one in self._connections:
                if one.sock is not None:
                    with suppress(OSError, ValueError):
                        one.sock.shutdown(socket.SHUT_RDWR)
            raise TimeoutError(f"it took longer than {WHOLE_S:g} s")
        if isinstance(self._failure, urllib.error.HTTPError):
            with self._failure as answer:
                raise _refusal(answer.code, clean(str(answer.reason), MOST_REASON), answer.headers.get("Retry-After"))
        if isinstance(self._failure, urllib.error.URLError):
            reason = self._failure.reason
            kind = Refused if isinstance(reason, ssl.SSLCertVerificationError) else OSError
            raise kind(clean(str(reason), MOST_REASON))
        if self._failure is not None:
            raise OSError(clean(str(self._failure) or type(self._failure).__name__, MOST_REASON))


class _Unmoved(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: an alert goes where the user sent it."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Http(urllib.request.HTTPHandler):
    """Keeps the connections that it makes."""

    def __init__(self, connections: list[http.client.HTTPConnection]) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made, req)

    def _made(self, *arguments: Any, **named: Any) -> http.client.HTTPConnection:
        self._connections.append(one := http.client.HTTPConnection(*arguments, **named))
        return one


class _Https(urllib.request.HTTPSHandler):
    """Keeps the TLS connections that it makes, like `_Http`."""

    def __init__(self, connections: list[http.client.HTTPConnection]) -> None:
        super().__init__()
        self._connections = connections

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made, req, context=ssl.create_default_context())

    def _made(self, *arguments: Any, **named: Any) -> http.client.HTTPConnection:
        self._connections.append(one := http.client.HTTPSConnection(*arguments, **named))
        return one


def _refusal(code: int, reason: str, after: str | None) -> OSError:
    """The error for an answer that is no success: 429 and 500 or above deserve another try."""
    told = f"it answered {code} {reason}".rstrip()
    if code == TOO_MANY or code >= SERVER_ERROR:
        after_s = retry_after_s(after or "", time.time())
        return OSError(told) if after_s is None else Busy(told, after_s)
    return Refused(told)


def retry_after_s(text: str, now_unix_s: float) -> float | None:
    """Seconds of the header Retry-After, which is a number or a date, within `MOST_AFTER_S`; None if it is neither."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MOST_AFTER_S)
    try:
        at = parsedate_to_datetime(text)
        after_s = (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp() - now_unix_s
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
    return min(max(0.0, after_s), MOST_AFTER_S)


def make(text: str) -> Webhook:
    """The sink. UserError for an address that cannot be one."""
    is_slack = text.lower().startswith("slack:")
    url = text[len("slack:") :] if is_slack else text
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable() or " " in url:
        raise UserError(f"--alert {text[:30]!r}…: no address of a webhook", code=2)
    if parts.scheme == "http" and not is_loopback(host):
        raise UserError(f"--alert http://{host}: alerts leave this machine by https only", code=2)
    return Webhook(url, is_slack or host in SLACK_HOSTS)


def is_loopback(host: str) -> bool:
    """True if a name is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def slack_message(alert: Alert) -> dict[str, Any]:
    """The message, without Slack's markup in names: ``<!channel>`` in a process's name must notify no one."""
    colour = _COLOURS.get(alert.incident.severity, "") if alert.event == BEGIN else "good"
    fields = [{"title": name, "value": _plain(value), "short": len(value) < _SHORT} for name, value in alert.facts.items()]
    return {"text": _plain(alert.text), "attachments": [{"color": colour, "fallback": _plain(alert.text), "fields": fields}]}


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
