"""kubectl exec: gputop in the container of a pod. Needs the right to exec there, and gputop in the image."""

from __future__ import annotations

import re

from gputop.stream.reach import asked
from gputop.stream.reach.hosts import MOST_HOSTS
from gputop.system.errors import UserError

LINES = False
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")  # of a pod, and of a namespace (RFC 1123)
_SELECTOR = re.compile(r"[\w./=!,() -]{1,1000}", re.ASCII)


def argv(host: str, within: str, words: tuple[str, ...]) -> list[str]:
    """``within`` is the namespace, empty for the one of kubectl's context."""
    _check(host, within)
    return ["kubectl", "exec", "--stdin", *_in(within), host, "--", "gputop", *words]


def pods(selector: str, namespace: str) -> list[str]:
    """Names of the running pods with these labels. UserError without any, or if kubectl refuses."""
    if not _SELECTOR.fullmatch(selector) or selector.startswith("-"):
        raise UserError(f"--pods {selector[:60]!r}: no selector of labels, such as app=train", code=2)
    _check("pod", namespace)
    words = ["kubectl", "get", "pods", *_in(namespace), f"--selector={selector}", "--field-selector=status.phase=Running", "--output=name"]
    found = [name.removeprefix("pod/") for name in asked(words).split()]
    if not found:
        raise UserError(f"no pod with {selector} runs in {f'namespace {namespace}' if namespace else 'this namespace'}")
    if len(found) > MOST_HOSTS:
        raise UserError(f"--pods {selector}: more than {MOST_HOSTS} pods", code=2)
    return found


def _in(namespace: str) -> list[str]:
    return [f"--namespace={namespace}"] if namespace else []


def _check(pod: str, namespace: str) -> None:
    for what, name in (("pod", pod), ("namespace", namespace)):
        if name and not _NAME.fullmatch(name):
            raise UserError(f"{name[:60]!r}: no name of a {what}", code=2)
