"""tempfile, without the compressors that shutil loads for archives: it needs that for folders alone."""

from gputop.system.later import imported_later

with imported_later("shutil"):
    import tempfile as tempfile
