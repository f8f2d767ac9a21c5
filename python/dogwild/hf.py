"""A callback that shares the model of a ``transformers.Trainer``.

::

    from dogwild.hf import Share

    share = Share(name="job", node=0, nodes=2)
    trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[share])
    trainer.train()
    assert share.equal

It needs ``transformers`` (with ``accelerate``), which nothing else of dogwild imports.
"""

from __future__ import annotations

from typing import Any

try:
    from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"dogwild.hf needs transformers and accelerate, of which {error.name} is not installed: "
        "pip install transformers accelerate",
        name=error.name,
    ) from error

from .callbacks import Sharing
from .errors import DogwildError
from .job import Shared


class Share(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Shares the model while the trainer trains, as :func:`dogwild.share` does.

    ``finish_timeout``: seconds to wait at the end until all nodes have finished. Everything else
    goes to :func:`dogwild.share`: ``name``, ``node``, ``nodes``, ``index``, ``state`` and so on.

    The trainer's steps, schedules and data are this process's own. Give all processes the same
    ``seed``, so that they begin with the same weights, and each of them another ``data_seed``.
    Save the model after the training: what is saved on the way is that process's moment.

    The training raises what :func:`dogwild.share` raises, and
    :class:`~dogwild.errors.DogwildError` for ``load_best_model_at_end``, which would undo what
    others did. If it ends with an error, call :meth:`close`.
    """

    def __init__(self, *, finish_timeout: float = 300.0, **options: Any) -> None:
        self._sharing = Sharing(finish_timeout, options)

    @property
    def job(self) -> Shared | None:
        """The job while it runs."""
        return self._sharing.job

    @property
    def equal(self) -> bool | None:
        """Whether all nodes held the same weights at the end; none before that."""
        return self._sharing.equal

    def close(self) -> None:
        """Leaves the buffer, without waiting for other nodes to finish."""
        self._sharing.close()

    def on_train_begin(self, args: Any, state: Any, control: Any, **has: Any) -> None:
        """Shares the model."""
        if args.load_best_model_at_end:
            raise DogwildError(
                "load_best_model_at_end sets weights, which other nodes would take for a step "
                "that undoes theirs: leave it out, and load the best checkpoint after the training"
            )
        self._sharing.begin(has["model"], [has["optimizer"]], args.world_size)

    def on_step_end(self, args: Any, state: Any, control: Any, **has: Any) -> None:
        """Ends the training where the node is asked to end."""
        if self.job is not None and self.job.stop_requested:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **has: Any) -> None:
        """Waits until all nodes have finished, and leaves the buffer."""
        self._sharing.end()
