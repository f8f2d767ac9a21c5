"""Learning rates that follow the steps of all nodes, as those of dogwild's own solver do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lr_scheduler

from .job import Shared


class ClusterLR(lr_scheduler._LRScheduler):
    """Multiplies each group's first rate by ``factor(iterations)``: steps of all nodes together.

    The schedule of one machine then holds for any number of processes and nodes, and goes on where
    it was when a job is resumed. Call ``step()`` after each step of the optimiser, as with the
    schedulers of torch. ``factor`` gets the steps of all nodes as far as this one knows them, from
    0, and returns a number without unit. It may see a number twice, and leave some out.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        factor: Callable[[int], float],
        shared: Shared,
    ) -> None:
        self._factor = factor
        self._shared = shared
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The rate of each group at present. ``step()`` asks for it."""
        factor = self._factor(self._shared.iterations)
        return [base * factor for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """The first rates; where the schedule is, the buffer knows."""
        return {"base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the first rates from :meth:`state_dict`."""
        self.base_lrs = list(state_dict["base_lrs"])
