"""A callback for Lightning: ``Trainer(callbacks=[GputopCallback()])`` logs why the GPUs wait to the loggers of the trainer."""

from __future__ import annotations

import sys
import time
from typing import Any

from gputop.integrations import Logged

if "pytorch_lightning" in sys.modules:  # two packages with different classes: the one that is used
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class GputopCallback(Callback):
    """Logs lost share, steps and verdict. It watches from the first rank of each machine; ``options`` go to `gputop.watch`."""

    def __init__(self, every_s: float = 10.0, **options: Any) -> None:
        """``every_s``: s between two entries."""
        self._every_s, self._logged, self._next_s = every_s, Logged(options), 0.0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's
        """Begin to watch."""
        if trainer.local_rank == 0:
            self._logged.start()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Log, if it is time to."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._every_s
            self._log(trainer)

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        """Log the last metrics."""
        self._log(trainer)
        self._logged.close()

    def on_exception(self, *_: Any) -> None:
        """The training was interrupted."""
        self._logged.close()

    def _log(self, trainer: Any) -> None:
        numbers, words = self._logged.numbers(), self._logged.news()
        for logger in trainer.loggers:
            if numbers:
                logger.log_metrics(numbers, step=trainer.global_step)
            if words and hasattr(logger.experiment, "add_text"):  # TensorBoard's; other loggers have no text in common
                logger.experiment.add_text("gputop/verdict", words, trainer.global_step)
