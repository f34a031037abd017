"""What every screen takes over from its user: his keys, and the theme that he left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop import config
from gputop.errors import UserError

if TYPE_CHECKING:
    from gputop.tui.app import GputopApp


def suit(app: GputopApp, theme: str) -> None:
    """``theme`` is the one of last time, empty for none. UserError where the keys are no keys of actions that there are."""
    if theme in app.available_themes:
        app.theme = theme
    if wrong := app.use_keys(config.key_map()):
        raise UserError(f"{config.config_path()}: [keys] {wrong}", code=2)
