"""How a process of a node comes to the buffer of its node."""

from __future__ import annotations

import logging
import os
import time
from typing import Literal

import torch

from . import binding
from ._native import Buffer, session_number
from .errors import BufferMismatch, BufferNotReady, WeightsDiffer

log = logging.getLogger("dogwild")

#: Seconds between two looks while something is waited for.
_LOOK_S = 0.005


def open_buffer(
    path: str,
    name: str,
    found: list[binding.Place],
    existing: Literal["resume", "fresh", "refuse"],
    index: int,
    until: float,
) -> Buffer:
    """Makes the buffer, or opens it: of the processes of a node, index 0 makes it."""
    tensors = [(place.name, list(place.parameter.shape)) for place in found]
    said = False
    while True:
        try:
            if index == 0:
                opened = Buffer.create(path, session_number(name), tensors, existing)
            else:
                opened = Buffer.open(path)
            break
        except BufferNotReady:
            if time.monotonic() >= until:
                raise
            if not said:
                said = True
                log.info("waiting for the process with index 0 to make %s", path)
            time.sleep(_LOOK_S)
        except BufferMismatch as error:
            raise BufferMismatch(_difference(Buffer.open(path), tensors) or str(error)) from None
    difference = _difference(opened, tensors)
    if difference is not None:
        raise BufferMismatch(difference)
    if not opened.created and opened.session != session_number(name):
        raise BufferMismatch(
            f"{path} is of another job than {name!r}: name the job that it was made for, "
            'or replace it (existing="fresh")'
        )
    return opened


def _difference(opened: Buffer, tensors: list[tuple[str, list[int]]]) -> str | None:
    """The first tensor in which a buffer and a model differ, in words."""
    there = [(name, shape) for name, shape, _ in opened.tensors()]
    if there == tensors:
        return None
    cure = 'name the buffer of this model, or replace it (existing="fresh")'
    for (name, shape), (other, of) in zip(there, tensors):
        if name != other:
            return f"{opened.path} has a tensor {name!r} where the model has {other!r}: {cure}"
        if shape != of:
            return f"{opened.path} has {name} of shape {shape}, the model of shape {of}: {cure}"
    more = (there if len(there) > len(tensors) else tensors)[min(len(there), len(tensors))][0]
    whose = "the buffer" if len(there) > len(tensors) else "the model"
    return f"{opened.path}: only {whose} has a tensor {more!r}: {cure}"


class Beginning:
    """What the parameters of a model are before they become views of a buffer."""

    _CURE = (
        "set the same seed before the model is made, or load the same file, in all of them; "
        "check_weights=False takes what is there"
    )

    def __init__(self, found: list[binding.Place]) -> None:
        # The memory that the parameters have now: it lives on when they get other.
        self._first = [(place, place.parameter.detach()) for place in found]

    def check_process(self, opened: Buffer, index: int) -> None:
        """Raises :class:`~dogwild.errors.WeightsDiffer` if the process with index 0 has begun the
        job of this buffer with other weights, and together with this one.

        A process that started after the buffer was made joins: it takes what is there.
        """
        flat = torch.zeros(len(opened))
        offsets = {name: at for name, _, at in opened.tensors()}
        with torch.no_grad():
            for place, first in self._first:
                at = offsets[place.name]
                flat[at : at + first.numel()].view(first.shape).copy_(first).add_(0.0)
        if opened.began_with(flat.data_ptr()):
            return
        differing = self.differing(opened)
        untrained = sum(opened.iterations()) == 0
        if untrained or _started_at() < opened.created_at:
            what = "which has been trained since"
            if untrained and differing is not None:
                what = f"{differing} differs first"
            raise WeightsDiffer(
                f"the model of the process with index {index} began with other weights than that "
                f"of index 0, which made {opened.path} ({what}): {self._CURE}"
            )

    def error_of_nodes(self, opened: Buffer, node: int, others: str) -> WeightsDiffer:
        """The error for a node that began this job with other weights than ``others``, as its
        streamer found; the buffer holds what they stream, and is not trained yet."""
        differing = self.differing(opened)
        if sum(opened.iterations()):
            what = "which has been trained since"
        elif differing:
            what = f"{differing} differs first of what they stream"
        else:
            what = "in what this node streams: their own error names the parameter"
        return WeightsDiffer(
            f"{others} began this job with other weights than node {node}, this one ({what}): "
            f"{self._CURE}"
        )

    def differing(self, opened: Buffer) -> str | None:
        """The first parameter that has other bits in the buffer."""
        flat = torch.frombuffer(opened, dtype=torch.int32)
        offsets = {name: at for name, _, at in opened.tensors()}
        for place, first in self._first:
            at = offsets[place.name]
            mine = first.cpu().contiguous().add(0.0).view(-1).view(torch.int32)
            if not torch.equal(flat[at : at + mine.numel()], mine):
                return place.name
        return None


def _started_at() -> float:
    """When this process started, seconds since 1970, by the clock that buffers are made by."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    # The end of the tick: who may have started later has.
    ticks = int(fields[19]) + 1
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age
