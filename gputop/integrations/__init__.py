"""Callbacks of training frameworks, one file each; here is what they log.

A framework is imported by its own file alone. A training is never stopped by what gputop lacks: that is logged.
"""

from __future__ import annotations

import logging
from typing import Any

from gputop.api.watching import Watching, watch
from gputop.findings.verdict import LOOKING
from gputop.system.errors import UserError

log = logging.getLogger("gputop")
GRAVE = ("medium", "high")  # severities that are logged as warnings, others as information


class Logged:
    """A watch of this machine, and the metrics that a training logs from it."""

    def __init__(self, options: dict[str, Any]) -> None:
        """``options``: the arguments of `gputop.watch`."""
        self._options = options
        self._watching: Watching | None = None
        self._said: tuple[str, str] = ("", "")

    def start(self) -> None:
        """Begin to watch; a warning gives the reason if that fails."""
        self.close()
        try:
            self._watching = watch(**self._options).start()
        except UserError as error:
            log.warning("gputop does not watch this training: %s", error)

    def numbers(self) -> dict[str, float]:
        """Known numbers: lost share of the GPU time since the start, in all and by cause, the lost share now, and the pace."""
        if self._watching is None:
            return {}
        verdict, ledger = self._watching.verdict, self._watching.ledger
        found = {
            "lost_share": ledger.lost_share,
            "lost_share_now": None if verdict.lost_pct is None else verdict.lost_pct / 100,
            "steps_per_s": None if verdict.step is None else verdict.step.per_s,
            **{f"lost/{cause}": share for cause, share in ledger.cause_shares.items()},
        }
        return {f"gputop/{name}": value for name, value in found.items() if value is not None}

    def news(self) -> str:
        """The verdict in words, if it has changed since the last call; else empty. Python's log gets it, too."""
        if self._watching is None:
            return ""
        verdict = self._watching.verdict
        if (verdict.symptom, verdict.cause) == self._said or verdict.symptom == LOOKING:
            return ""
        self._said = verdict.symptom, verdict.cause
        words = "; ".join(part for part in (verdict.headline, verdict.detail) if part)
        log.log(logging.WARNING if verdict.severity in GRAVE else logging.INFO, "%s · %s: %s", verdict.symptom, verdict.cause, words)
        return f"{verdict.symptom} · {verdict.cause}: {words}"

    def close(self) -> None:
        """End the watch, and log what it found in all."""
        watching, self._watching = self._watching, None
        if watching is None:
            return
        watching.close()
        try:
            log.info("the whole training: %s", watching.explain().verdict.headline)
        except UserError as error:
            log.warning("gputop did not see the end of this training: %s", error)
