"""A callback that shares the model of a Lightning ``Trainer``.

::

    from dogwild.lightning import Share

    share = Share(name="job", node=0, nodes=2)
    trainer = lightning.Trainer(accelerator="cpu", devices=1, callbacks=[share])
    trainer.fit(model)
    assert share.equal

It needs ``lightning``, which nothing else of dogwild imports. It is a callback and not a strategy:
the trainer has one process and one device, as it has without it.
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import (  # type: ignore[import-not-found,unused-ignore]
        Callback,
        LightningModule,
        Trainer,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"dogwild.lightning needs lightning, and {error.name} is not installed: "
        "pip install lightning",
        name=error.name,
    ) from error

from .callbacks import Sharing
from .job import Shared


class Share(Callback):  # type: ignore[misc,unused-ignore]
    """Shares the model while the trainer fits it, as :func:`dogwild.share` does.

    ``finish_timeout``: seconds to wait at the end until all nodes have finished. Everything else
    goes to :func:`dogwild.share`: ``name``, ``node``, ``nodes``, ``index``, ``state`` and so on.

    The trainer's steps, schedules and data are this process's own. Call ``seed_everything`` with
    the same number on all nodes before the model is made, and give each node other data or
    another order of it. Save the model after ``fit``: what is saved on the way is that process's
    moment.

    ``fit`` raises what :func:`dogwild.share` raises, and :class:`~dogwild.errors.DogwildError` for
    several processes of one trainer, or several optimisers.
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

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shares the model."""
        self._sharing.begin(pl_module, trainer.optimizers, trainer.world_size)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends the training where the node is asked to end."""
        if self.job is not None and self.job.stop_requested:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Waits until all nodes have finished, and leaves the buffer."""
        self._sharing.end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leaves the buffer, without waiting for other nodes to finish."""
        self._sharing.close()
