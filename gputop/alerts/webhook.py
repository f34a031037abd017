"""``https://…``: the alert as JSON by POST. For Slack, and what takes Slack's messages (Mattermost, Rocket.Chat, Discord): ``slack:https://…``.

Proxies are those of the environment (https_proxy, no_proxy). Redirects are not followed. Plain http goes to this machine only.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gputop.alerts.alert import BEGIN, Alert
from gputop.system.errors import UserError
from gputop.system.program import __version__

TIMEOUT_S = 2.0  # s for each of: connect, send, answer
SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
_COLOURS = {"high": "danger", "medium": "warning"}
_SHORT = 40  # characters from which a field takes a whole line


class _Unmoved(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: an alert goes where the user sent it."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Posts each alert to an address."""

    def __init__(self, url: str, slack: bool) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.hostname}"  # the rest of the address is a secret
        self._url, self._slack = url, slack

    def send(self, alert: Alert) -> None:
        body = msgspec.json.encode(slack_message(alert) if self._slack else alert.document)
        headers = {"Content-Type": "application/json", "User-Agent": f"gputop/{__version__}"}
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        try:
            with urllib.request.build_opener(_Unmoved).open(request, timeout=TIMEOUT_S):
                pass
        except urllib.error.HTTPError as error:
            raise OSError(f"it answered {error.code} {error.reason}") from None
        except urllib.error.URLError as error:
            raise OSError(str(error.reason)) from None


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
    """Whether a name is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def slack_message(alert: Alert) -> dict[str, Any]:
    """The message, without Slack's markup in names: ``<!channel>`` of a process's name must call nobody."""
    colour = _COLOURS.get(alert.document["incident"]["severity"], "") if alert.event == BEGIN else "good"
    fields = [{"title": name, "value": _plain(value), "short": len(value) < _SHORT} for name, value in alert.facts.items()]
    return {"text": _plain(alert.text), "attachments": [{"color": colour, "fallback": _plain(alert.text), "fields": fields}]}


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
