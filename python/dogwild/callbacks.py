"""What the callbacks of training libraries have in common: a model shared for one training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .errors import DogwildError
from .job import Shared
from .shared import share


class Sharing:
    """Shares a model from the beginning of a training to its end.

    ``options``: what :func:`dogwild.share` takes besides the model and the optimiser.
    ``finish_timeout``: seconds to wait for the other nodes at the end.
    """

    def __init__(self, finish_timeout: float, options: dict[str, Any]) -> None:
        taken = sorted(options.keys() & {"model", "optimizer"})
        if taken:
            raise TypeError(f"{taken[0]}= is what the trainer has: leave it out")
        self._finish_timeout = finish_timeout
        self._options = options
        #: The job; none before the training and after it.
        self.job: Shared | None = None
        #: Whether all nodes held the same weights at the end; none before that.
        self.equal: bool | None = None

    def begin(
        self, model: nn.Module, optimizers: list[torch.optim.Optimizer], processes: int
    ) -> Shared:
        """Shares ``model``. ``processes``: those that the trainer has for itself, which must be 1.

        Raises :class:`~dogwild.errors.DogwildError`, and what :func:`dogwild.share` raises.
        """
        if processes != 1:
            raise DogwildError(
                f"the trainer itself keeps {processes} processes in step (DistributedDataParallel "
                "or the like): start each process alone, without torchrun, and give node=, nodes= "
                "and index="
            )
        if len(optimizers) != 1:
            raise DogwildError(
                f"there are {len(optimizers)} optimisers: the steps of one can be shared; call "
                "dogwild.share(model, optimizer) in a loop of your own"
            )
        self.close()
        self.equal = None
        self.job = share(model, _innermost(optimizers[0]), **self._options)
        return self.job

    def end(self) -> None:
        """Waits until all nodes have finished, and leaves the buffer."""
        if self.job is None:
            return
        try:
            self.equal = self.job.finish(self._finish_timeout)
        finally:
            self.close()

    def close(self) -> None:
        """Leaves the buffer, without waiting for other nodes to finish."""
        job, self.job = self.job, None
        if job is not None:
            job.close()


def _innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """That which steps: libraries put others around it."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer
