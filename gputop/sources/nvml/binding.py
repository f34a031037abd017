"""nvidia-ml-py, which loads the library, starts it and names its errors; the calls themselves are `gputop.sources.nvml.abi`'s.

Its hundreds of functions, structures and numbers take 2 MB, of which half goes back: unless somebody else has imported it before us.
"""

from __future__ import annotations

import sys

from gputop.system.later import imported_later
from gputop.system.memory import forget_unnamed

NAMED = ("nvmlInit", "nvmlShutdown", "nvmlLib", "NVMLError", "NVMLLibraryMismatchError")
"""All that this package takes from it, beside the numbers of errors."""

_IS_OURS = "pynvml" not in sys.modules

with imported_later("ctypes.util"):  # it loads compressors and subprocess, to find what is never asked for
    import pynvml as pynvml

if _IS_OURS:
    forget_unnamed(pynvml, (*NAMED, *(name for name in vars(pynvml) if name.startswith("NVML_ERROR_"))))
