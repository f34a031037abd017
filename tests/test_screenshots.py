"""The pictures in screenshots/ are what the screen shows now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_screenshots_are_fresh() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "screenshots.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: make screenshots writes them anew"
