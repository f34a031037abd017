"""Modules that are imported when something of theirs is asked for, and a large one of which the most is forgotten."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from gputop.system.later import imported_later
from gputop.system.memory import forget_unnamed

SEEN = "print('{0}' in sys.modules)"


def said(code: str) -> list[str]:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_a_function_that_was_taken_imports_its_module_when_it_is_called() -> None:
    code = f"""
import sys
from gputop.system.later import imported_later
with imported_later("colorsys"):
    from colorsys import rgb_to_hsv
{SEEN.format("colorsys")}
print(rgb_to_hsv(0.0, 0.0, 1.0)[2])
{SEEN.format("colorsys")}
"""
    assert said(code) == ["False", "1.0", "True"]


def test_a_module_that_was_taken_has_its_own_classes_and_numbers_afterwards() -> None:
    code = f"""
import sys
from gputop.system.later import imported_later
with imported_later("colorsys"):
    import colorsys
{SEEN.format("colorsys")}
print(colorsys.ONE_THIRD > 0.3, hasattr(colorsys, "nothing"))
import colorsys as real
print(real.__file__.endswith("colorsys.py"))
"""
    assert said(code) == ["False", "True", "False", "True"]


def test_who_calls_at_once_gets_the_module_itself() -> None:
    code = f"""
import sys
from gputop.system.later import imported_later
with imported_later("colorsys", "fractions"):
    import colorsys
    print(colorsys.rgb_to_hsv(0.0, 0.0, 1.0)[2], sys.modules["colorsys"].__file__.endswith("colorsys.py"))
{SEEN.format("colorsys")}
{SEEN.format("fractions")}
"""
    assert said(code) == ["1.0", "True", "True", "False"]


def test_what_is_there_already_stays() -> None:
    with imported_later("sys", "subprocess"):
        import subprocess as again
    assert again is subprocess


def test_what_fails_meanwhile_leaves_no_stand_in_behind() -> None:
    with pytest.raises(RuntimeError), imported_later("gputop_has_no_such_module"):
        raise RuntimeError
    assert "gputop_has_no_such_module" not in sys.modules


LARGE = """
LIMIT = 3
REST = 4
def inner(): return LIMIT
def outer(): return (lambda: inner())()
class Kept(Exception):
    def __str__(self): return str(outer())
class Dropped: pass
def dropped(): return REST
"""


def test_of_a_large_module_stays_what_is_named_and_what_that_names() -> None:
    module = ModuleType("large")
    exec(LARGE, vars(module))
    forget_unnamed(module, ["Kept", "there is none"])
    assert {name for name in vars(module) if not name.startswith("__")} == {"LIMIT", "inner", "outer", "Kept"}
    assert str(module.Kept()) == "3"


def test_nvidia_ml_py_is_forgotten_but_for_what_we_call_unless_somebody_else_has_it() -> None:
    names = "len(vars(pynvml)), pynvml.NVMLError(3), pynvml.NVML_ERROR_TIMEOUT"
    ours = said(f"from gputop.sources.nvml.binding import pynvml; print({names})")
    shared = said(f"import pynvml, gputop.sources.nvml.binding; print({names})")
    assert ours[1:] == shared[1:] == ["Not", "Supported", "10"]
    assert int(ours[0]) < 100 < 1000 < int(shared[0])


def test_argparse_without_its_translations_says_what_it_says_in_english() -> None:
    code = f"""
import sys
from gputop.system.later import untranslated
with untranslated():
    import argparse
{SEEN.format("gettext")}
{SEEN.format("locale")}
parser = argparse.ArgumentParser(prog="p")
parser.add_argument("--many", nargs=2)
print(parser.format_help().split()[0])
try:
    parser.parse_args(["--many"])
except SystemExit:
    pass
import gettext
print(gettext.__file__.endswith("gettext.py"))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False", "usage:", "True"]
    assert "expected 2 arguments" in run.stderr


def test_libraries_that_want_more_of_each_other_are_loaded_as_they_are() -> None:
    """A class of what was thought to be functions alone is inherited from: nothing is left of the try."""
    code = f"""
import gputop.system.later
real = gputop.system.later.imported_later
gputop.system.later.imported_later = lambda *names: real(*names, "textual.dom")
import gputop.tui.app, sys
{SEEN.format("platformdirs")}
import textual.dom, textual.app
print(isinstance(textual.dom.DOMNode, type), gputop.tui.app.GputopApp.__mro__[1] is textual.app.App)
"""
    assert said(code) == ["True", "True", "True"]
