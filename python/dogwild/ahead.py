"""Steps that are as long as those of all nodes together, as dogwild's own solver makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ._native import Buffer, Solver
from .binding import Place, views


class Ahead:
    """Makes an optimiser's steps longer by the *stride*: 1 / portion, where a mean is merged.

    What other nodes did comes late, and a node's own work counts for its portion only. So it walks
    ahead as the cluster will, and the others' work replaces what it guessed
    (docs/reference/merging.md). No step becomes longer than 1 % of the weights by it.

    The optimiser steps in a copy. Else what others add to the buffer during its step would be taken
    for a part of that.
    """

    def __init__(
        self,
        found: list[Place],
        buffer: Buffer,
        solver: Solver,
        on_device: torch.Tensor | None = None,
    ) -> None:
        self._places = found
        self._buffer = buffer
        self._solver = solver
        self._on_device = on_device
        self._memory: Memory | None = None
        #: How many steps the last one was.
        self.stride = 1.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step of the optimiser. Nothing but that, where this node is alone."""
        if self._solver.portion >= 1.0:
            self.stride = 1.0
            yield
            return
        if self._memory is None:
            self._memory = Memory(self._places, self._buffer, self._on_device)
        self._memory.lend()
        try:
            yield
        finally:
            self._memory.take_back()
            if self._on_device is None:
                before, after = self._memory.before.data_ptr(), self._memory.after.data_ptr()
                self.stride = self._solver.walk_ahead(before, after)
            else:
                self.stride = self._walk(self._on_device, self._memory)

    def _walk(self, weights: torch.Tensor, memory: Memory) -> float:
        """As the solver does it in the buffer, in weights on a device."""
        with torch.no_grad():
            step = memory.after.sub_(memory.before)
            norms = [torch.linalg.vector_norm(one) for one in (memory.before, step)]
            of_weights, of_step = torch.stack(norms).tolist()
            stride, parts = self._solver.stride_over(of_weights**2, of_step**2)
            for first, end, factor in parts:
                weights[first:end].add_(step[first:end], alpha=factor)
        return stride


class Memory:
    """Copies of the weights, one for the optimiser to step in, and the shared ones."""

    def __init__(
        self, found: list[Place], buffer: Buffer, on_device: torch.Tensor | None = None
    ) -> None:
        shared = torch.frombuffer(buffer, dtype=torch.float32) if on_device is None else on_device
        self._flat = shared
        self.before = torch.empty_like(self._flat)
        self.after = torch.empty_like(self._flat)
        self._of: list[tuple[Place, torch.Tensor, torch.Tensor]] = []
        copies = views(found, buffer, self.after)
        for (place, own, _), (_, copy, _) in zip(views(found, buffer, shared), copies):
            self._of.append((place, own, copy))

    def lend(self) -> None:
        """The parameters are in the copy from now on."""
        self.before.copy_(self._flat)
        self.after.copy_(self.before)
        for place, _, copy in self._of:
            # What has left the buffer stays where it is, and is named after the step.
            if place.parameter.data_ptr() == place.pointer:
                place.parameter.data = copy

    def take_back(self) -> None:
        """They are in the buffer again."""
        for place, shared, copy in self._of:
            if place.parameter.data_ptr() == copy.data_ptr():
                place.parameter.data = shared
