"""Steps that are as long as those of all nodes together, as dogwild's own solver makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ._native import Buffer, Solver
from .binding import Place


class Ahead:
    """Makes an optimiser's steps longer by the *stride*: 1 / portion, where a mean is merged.

    What other nodes did comes late, and a node's own work counts for its portion only. So it walks
    ahead as the cluster will, and the others' work replaces what it guessed
    (docs/reference/merging.md). No step becomes longer than 1 % of the weights by it.

    The optimiser steps in a copy. Else what others add to the buffer during its step would be taken
    for a part of that.
    """

    def __init__(self, found: list[Place], buffer: Buffer, solver: Solver) -> None:
        self._places = found
        self._buffer = buffer
        self._solver = solver
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
            self._memory = Memory(self._places, self._buffer)
        self._memory.lend()
        try:
            yield
        finally:
            self._memory.take_back()
            before, after = self._memory.before.data_ptr(), self._memory.after.data_ptr()
            self.stride = self._solver.walk_ahead(before, after)


class Memory:
    """Copies of the weights, one for the optimiser to step in, and the buffer itself."""

    def __init__(self, found: list[Place], buffer: Buffer) -> None:
        self._flat = torch.frombuffer(buffer, dtype=torch.float32)
        self.before = torch.empty_like(self._flat)
        self.after = torch.empty_like(self._flat)
        offsets = {name: at for name, _, at in buffer.tensors()}
        self._of: list[tuple[Place, torch.Tensor, torch.Tensor]] = []
        for place in found:
            part = slice(offsets[place.name], offsets[place.name] + place.parameter.numel())
            shape = place.parameter.shape
            self._of.append((place, self._flat[part].view(shape), self.after[part].view(shape)))

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
