"""The weights of a buffer on a GPU, in step with it: what a model there has its parameters in."""

from __future__ import annotations

import ctypes
import logging
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ._native import Buffer, DeviceWeights
from .errors import DogwildError

log = logging.getLogger("dogwild")

#: Seconds between two looks while something is waited for, and between two lines about it.
_LOOK_S = 0.001
_SAY_S = 5.0
#: Passes over the weights, the present one included, after which each side has what the other had.
_CYCLES = 3


class Exported:
    """The weights on a GPU, for any library that reads CUDA's array interface (version 3)."""

    def __init__(self, weights: DeviceWeights) -> None:
        # Who has an array over the memory has this object, and so the memory.
        self._weights = weights

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (len(self._weights),),
            "typestr": "<f4",
            "data": (self._weights.address, False),
            "version": 3,
        }


class OnDevice:
    """The weights of a buffer on a device, which threads of this process keep in step with it.

    ``where``: a GPU, or the CPU for the host device, whose memory is this process's own. ``index``
    tells the components with a device on one buffer apart.
    """

    def __init__(self, buffer: Buffer, where: torch.device, index: int) -> None:
        cuda = where.type == "cuda"
        self._weights = DeviceWeights.start(str(buffer.path), where.index if cuda else None, index)
        # Also where a program ends without close().
        weakref.finalize(self, self._weights.stop)
        #: All weights, as one tensor.
        self.flat = self._tensor(where, len(buffer))
        # What torch says of its streams has no types.
        self._stream: Any = None
        if self._weights.stream is not None:
            stream: Any = torch.cuda.ExternalStream
            self._stream = stream(self._weights.stream, device=where)

    def _tensor(self, where: torch.device, weights: int) -> torch.Tensor:
        if where.type == "cuda":
            with torch.cuda.device(where):
                all_: torch.Tensor = torch.as_tensor(Exported(self._weights), device=where)
            if all_.data_ptr() != self._weights.address:
                raise DogwildError(f"this torch copies memory of {where} instead of using it")
            weights_: torch.Tensor = all_[:weights]
            return weights_
        memory: Any = (ctypes.c_float * weights).from_address(self._weights.address)
        # Who has a tensor over it has the memory.
        memory.owner = self._weights
        return torch.frombuffer(memory, dtype=torch.float32)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around what changes the weights: no position is taken meanwhile, on a GPU."""
        if self._stream is None:
            yield
            return
        others: Any = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(others)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            others.wait_stream(self._stream)

    def check(self) -> None:
        """Raises what has ended the thread, if something has."""
        self._weights.check()

    def settle(self, timeout: float = 300.0) -> None:
        """Waits until the buffer has all that was done on the device, and the device all of it.

        Raises :class:`~dogwild.errors.DogwildError` if it takes longer.
        """
        if self._stream is not None:
            torch.cuda.synchronize(self._stream.device)
        wanted = self._weights.cycles + _CYCLES
        now = time.monotonic()
        until, say = now + timeout, now + _SAY_S
        # One that was stopped has given the buffer all.
        while self._weights.cycles < wanted and not self._weights.ended:
            self.check()
            now = time.monotonic()
            if now >= until:
                raise DogwildError(
                    f"the device has not given its weights to the buffer in {timeout:g} s"
                )
            if now >= say:
                say = now + _SAY_S
                log.info("waiting for the device to give its weights to the buffer")
            time.sleep(_LOOK_S)
        self.check()

    def close(self) -> None:
        """Gives the buffer what the device has, and leaves it. The memory stays as it is."""
        self._weights.stop()
