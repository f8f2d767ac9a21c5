"""`state="shared"`: the state of an optimiser in a file next to the buffer.

A trainer that is killed goes on with its momentum when it is started again. The tensors of the
state are views of the file, so nothing is copied after the first step.
"""

from __future__ import annotations

import logging
import math
import os
import struct
from dataclasses import dataclass
from typing import Any

import torch

from ._native import Buffer
from .foresee import Foreseen, Kept, foresee, kept_as
from .state_file import Whose, open_or_make

log = logging.getLogger("dogwild")

#: Values begin at lines of the cache.
_ALIGNED = 64
_NUMBERS = {"int": struct.Struct("<q"), "float": struct.Struct("<d")}


class _Value:
    """One value of a parameter's state, and where it lies in the file."""

    def __init__(self, kept: Kept, at: int) -> None:
        self.kept = kept
        self.at = at
        self.number = _NUMBERS.get(kept.dtype)
        #: The tensor over the file; none for a number.
        self.view: torch.Tensor | None = None
        self.last: int | float | None = None

    @property
    def bytes(self) -> int:
        if self.number is not None:
            return self.number.size
        return _bytes_of(_dtype(self.kept)) * math.prod(self.kept.shape)

    def map(self, memory: Any, begin: int) -> None:
        """``memory`` is that of the file, of which what lives begins at ``begin``."""
        self.at += begin
        if self.number is not None:
            return
        dtype, shape = _dtype(self.kept), self.kept.shape
        count = math.prod(shape)
        if count:
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=self.at)
            self.view = flat.view(shape)
        else:
            self.view = torch.empty(shape, dtype=dtype)

    def read(self, memory: Any) -> torch.Tensor | int | float:
        """What is to be in the optimiser."""
        if self.number is None:
            assert self.view is not None
            return self.view
        (found,) = self.number.unpack_from(memory, self.at)
        assert isinstance(found, (int, float))
        self.last = found
        return found

    def write(self, memory: Any, value: Any) -> Any:
        """Puts ``value`` into the file. Returns what is to be in the optimiser instead."""
        if self.number is None:
            assert self.view is not None
            with torch.no_grad():
                self.view.copy_(value)
            return self.view
        if value != self.last:
            self.number.pack_into(memory, self.at, value)
            self.last = value
        return value


def _bytes_of(dtype: torch.dtype) -> int:
    return int(torch.empty(0, dtype=dtype).element_size())


def _dtype(kept: Kept) -> torch.dtype:
    found = getattr(torch, kept.dtype.removeprefix("torch."))
    assert isinstance(found, torch.dtype)
    return found


@dataclass
class _Slot:
    """The state of one parameter."""

    foreseen: Foreseen
    values: dict[str, _Value]
    #: Where the byte is that says whether it is whole.
    flag: int
    #: Whether a value that has no place was named already.
    named: bool = False


class OptimizerState:
    """The state of ``optimizer`` in a file. ``names``: those of parameters, by ``id``.

    Where the file has a parameter's state already, that replaces the optimiser's. Else what the
    optimiser has goes into the file, now or after the step that makes it.

    The optimiser is as it was until :meth:`bind`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[int, str]) -> None:
        """Raises :class:`~dogwild.errors.NotShareable` for state that a file cannot have."""
        self._optimizer = optimizer
        self._foreseen = foresee(optimizer, names)
        self._slots: list[_Slot] = []
        #: Path of the file.
        self.path = ""
        #: Whether the file was there.
        self.resumed = False

    def open(self, buffer: Buffer, index: int, replace: bool) -> None:
        """Opens the file ``<buffer>.optimizer<index>``, or makes it.

        ``replace``: one of something else makes room. Raises
        :class:`~dogwild.errors.BufferMismatch` and :class:`~dogwild.errors.NoSpace`.
        """
        optimizer, foreseen = self._optimizer, self._foreseen
        path = f"{buffer.path}.optimizer{index}"
        whose = Whose(
            buffer.session, buffer.fingerprint, buffer.created_at, type(optimizer).__name__
        )
        # Flags of all parameters come first.
        at = len(foreseen)
        described = []
        for number, one in enumerate(foreseen):
            values = {}
            for kept in one.kept:
                at = -(-at // _ALIGNED) * _ALIGNED
                values[kept.key] = value = _Value(kept, at)
                described.append([one.name, kept.key, kept.dtype, list(kept.shape), at])
                at += value.bytes
            self._slots.append(_Slot(one, values, number))
        memory, begin, self.resumed = open_or_make(path, whose, described, at, replace)
        self._memory, self.path = memory, path
        for slot in self._slots:
            slot.flag += begin
            for value in slot.values.values():
                value.map(memory, begin)

    def discard(self) -> None:
        """Removes the file, if :meth:`open` made it."""
        if self.path and not self.resumed:
            os.unlink(self.path)

    def bind(self) -> None:
        """Puts what the file has into the optimiser, and the rest of its state into the file."""
        went_on = 0
        for slot in self._slots:
            if self._memory[slot.flag]:
                state = {key: value.read(self._memory) for key, value in slot.values.items()}
                if state:
                    self._optimizer.state[slot.foreseen.parameter] = state
                    went_on += 1
        if self.resumed:
            log.info(
                "the optimiser goes on with the state of %d of %d parameters in %s",
                went_on,
                len(self._slots),
                self.path,
            )
        self.keep()

    def keep(self) -> None:
        """After a step: what it made, or put into another place, goes to the file."""
        for slot in self._slots:
            state = self._optimizer.state.get(slot.foreseen.parameter)
            if not state:
                if self._memory[slot.flag]:
                    self._memory[slot.flag] = 0
                continue
            self._keep(slot, state)

    def release(self) -> None:
        """The optimiser has its state for itself again; the file stays as it is."""
        for slot in self._slots:
            state = self._optimizer.state.get(slot.foreseen.parameter, {})
            for key, value in slot.values.items():
                if value.view is not None and state.get(key) is value.view:
                    state[key] = value.view.clone()

    def _keep(self, slot: _Slot, state: dict[str, Any]) -> None:
        held = 0
        for key, now in state.items():
            value = slot.values.get(key)
            if value is not None and now is value.view and now is not None:
                held += 1
            elif value is not None and kept_as(key, now) == value.kept:
                state[key] = value.write(self._memory, now)
                held += 1
            elif now is not None and not slot.named:
                slot.named = True
                log.warning(
                    "%s: %s of the optimiser's state is of another kind than when the model was "
                    "shared, and is not kept in %s",
                    slot.foreseen.name,
                    kept_as(key, now) or key,
                    self.path,
                )
        # A state of which a part lacks would fail in the first step after a start.
        whole = held == len(slot.values)
        if self._memory[slot.flag] != whole:
            self._memory[slot.flag] = whole
