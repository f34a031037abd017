"""A callback for the Trainer of Hugging Face: ``GputopCallback().attach(trainer)`` adds why the GPUs wait to all that it logs."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from gputop.integrations import Logged


class GputopCallback(TrainerCallback):
    """Adds lost share, steps and verdict to each entry of the log (``logging_steps``). It watches from the first rank of each machine.

    As one of ``Trainer(callbacks=…)`` it comes behind the reporters (TensorBoard, W&B …), which do not see what it adds: `attach` it.
    """

    def __init__(self, **options: Any) -> None:
        """``options`` go to `gputop.watch`."""
        self._logged = Logged(options)

    def attach(self, trainer: Any) -> GputopCallback:
        """Stand before all other callbacks of a trainer."""
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(self, args: Any, *_: Any, **__: Any) -> None:
        """Begin to watch."""
        if args.local_process_index == 0:
            self._logged.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:  # noqa: ARG002
        """Add the numbers to the entry; words go to the trainer's history, for many reporters take numbers alone."""
        numbers, words = self._logged.numbers(), self._logged.news()
        if logs is not None:
            logs.update(numbers)
        if state.log_history:
            state.log_history[-1].update(numbers | ({"gputop/verdict": words} if words else {}))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The training has ended."""
        self._logged.close()
