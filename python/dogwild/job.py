"""The model that :func:`dogwild.share` has shared: its steps, and its end."""

from __future__ import annotations

import logging
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from . import binding
from ._native import Buffer
from .ahead import Ahead
from .device import OnDevice
from .errors import PeerLost
from .opening import Beginning
from .optimizer_state import OptimizerState
from .streamer import Streamer

log = logging.getLogger("dogwild")

#: Seconds between two looks while something is waited for, and between two lines about it.
_LOOK_S = 0.005
_SAY_S = 5.0
#: Seconds that other nodes have to see that the weights differ.
_OTHERS_SEE_S = 10.0
#: What a streamer says of a node that holds what all others hold.
_EQUAL = 3


def has_streamer(opened: Buffer) -> bool:
    return any(role == "stream" and alive for role, _, _, alive in opened.components())


def _nodes(mask: int) -> str:
    """The nodes of a bit mask, in words."""
    which = [str(node) for node in range(64) if mask >> node & 1]
    return ("node " if len(which) == 1 else "nodes ") + ", ".join(which)


class Shared:
    """A model whose parameters are shared. Made by :func:`dogwild.share`; leave it by ``with`` or close().

    After that, and in any process that inherits the model, the parameters stay views of the buffer.
    Those on a device stay where they are, and are in step with it no more.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None,
        found: list[binding.Place],
        buffer: Buffer,
        solver: Any,
        streamer: Streamer | None,
        node: int,
        alone: bool,
        kept: OptimizerState | None,
    ) -> None:
        self._optimizer = optimizer
        self._places = found
        self._buffer = buffer
        self._solver = solver
        self._streamer = streamer
        self._node = node
        self._alone = alone
        self._kept = kept
        self._ahead: Ahead | None = None
        self._device: OnDevice | None = None
        self._watch = binding.Watch(found)
        self._unhook: Any = None
        self._closed = False
        self._averages = False

    @property
    def buffer(self) -> Buffer:
        """The buffer itself."""
        return self._buffer

    @property
    def path(self) -> str:
        """Path of the buffer, for :func:`dogwild.attach`."""
        return str(self._buffer.path)

    @property
    def iterations(self) -> int:
        """Steps of all nodes together, as far as this one knows."""
        return sum(self._buffer.iterations())

    @property
    def local_iterations(self) -> int:
        """Steps of all processes of this node, those before a restart included."""
        return self._buffer.iterations()[0]

    @property
    def stop_requested(self) -> bool:
        """Whether someone asks this node to end: a loop may look at it."""
        return self._buffer.stop

    @property
    def stats(self) -> dict[str, int]:
        """Counters of the streamer (docs/reference/summary-json.md); empty without one."""
        return self._buffer.counters()

    @property
    def stride(self) -> float:
        """How many steps the last one of the optimiser was: 1, or more where it walks ahead."""
        return 1.0 if self._ahead is None or self._averages else self._ahead.stride

    @property
    def state_path(self) -> str | None:
        """Path of the file with the optimiser's state; none with ``state="own"``."""
        return None if self._kept is None else self._kept.path

    @property
    def streamer_pid(self) -> int | None:
        """Process number of the streamer that this process runs, if it runs one."""
        return None if self._streamer is None else self._streamer.pid

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the shared parameters, by name."""
        return {place.name: place.parameter.detach().clone() for place in self._places}

    def step(self) -> int:
        """Counts a step; the optimiser's own steps are counted without it.

        Returns the steps of all nodes. Raises :class:`~dogwild.errors.Detached` if a parameter has
        left the buffer, :class:`~dogwild.errors.Diverged` (it looks every hundred steps), and
        :class:`~dogwild.errors.StreamerFailed`.
        """
        self._watch.step()
        if self._device is not None:
            self._device.check()
        if self._streamer is not None:
            self._streamer.check()
        return int(self._solver.step())

    @contextmanager
    def averaging(self) -> Iterator[None]:
        """Within it the optimiser takes its steps as they are, and does not walk ahead.

        The weights of all nodes are then averaged, each node's work with its portion of all steps.
        This is for optimisers and rates whose steps cannot be longer, for any part of a training.
        On a single node it changes nothing.
        """
        before, self._averages = self._averages, True
        try:
            yield
        finally:
            self._averages = before

    def finish(self, timeout: float = 300.0) -> bool:
        """Waits until all that was added here is with the other nodes, and all nodes have finished.

        True: all nodes hold the same weights, bit for bit. False: what was added here is with the
        others, but some of them have not finished within ``timeout`` seconds. A step after it
        takes it back. Every process of a node has to call it.

        Raises :class:`~dogwild.errors.PeerLost` if the others did not take all in time.
        """
        self._watch.all()
        if self._device is None:
            return self._finish(timeout)
        # The buffer has what was done on the device, then the device what is in the buffer.
        self._device.settle(timeout)
        equal = self._finish(timeout)
        self._device.settle(timeout)
        return equal

    def _finish(self, timeout: float) -> bool:
        """As :meth:`finish`, of what is in the buffer."""
        self._buffer.normalise()
        self._solver.finish()
        until = time.monotonic() + timeout
        say = time.monotonic() + _SAY_S
        if self._alone:
            return self._wait_for_processes(until, say, timeout)
        while True:
            if self._streamer is not None:
                self._streamer.check()
            level, chunks, unsettled = self._buffer.settled() or (0, 0, 0)
            if level == _EQUAL:
                return True
            now = time.monotonic()
            lack = f"{_nodes(unsettled)} to finish" if unsettled else "positions of the last steps"
            if now >= until:
                if level == 0:
                    raise PeerLost(
                        f"{chunks} chunks that were changed here may not be with the other nodes "
                        f"after {timeout:g} s, which waits for {lack}; "
                        "they stay in the buffer: share it again, and they go out"
                    )
                log.warning("all is delivered; still waiting after %g s for %s", timeout, lack)
                return False
            if now >= say:
                say = now + _SAY_S
                log.info("waiting for %s", lack)
            time.sleep(_LOOK_S)

    def _wait_for_processes(self, until: float, say: float, timeout: float) -> bool:
        """Waits until all processes of this node have finished. False: they have not in time."""
        while True:
            working = self._buffer.unfinished()
            if not working:
                return True
            now = time.monotonic()
            which = ", ".join(str(index) for index in working)
            lack = f"the process{'es' if len(working) > 1 else ''} with index {which} to finish"
            if now >= until:
                log.warning("still waiting after %g s for %s", timeout, lack)
                return False
            if now >= say:
                say = now + _SAY_S
                log.info("waiting for %s", lack)
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Ends the streamer, after what it has is with other nodes, and leaves the buffer.

        The file stays, and the weights in it: ``share`` it again, or remove it
        (``dogwild clean``).
        """
        if self._closed:
            return
        self._closed = True
        if self._unhook is not None:
            self._unhook()
        if self._device is not None:
            self._device.close()
        if self._kept is not None:
            self._kept.release()
        self._solver.release()
        if self._streamer is not None:
            self._streamer.close()

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_until_ready(self, until: float, timeout: float) -> None:
        say = time.monotonic() + _SAY_S / 5
        while not self._buffer.is_ready:
            if self._streamer is not None:
                self._streamer.check()
            now = time.monotonic()
            if has_streamer(self._buffer):
                counters = self._buffer.counters()
                # Where the ranges of a silent node were taken over, it is missing all the same.
                unseen = counters["unseen_ranges"] & ~(1 << self._node)
                unseen = unseen or counters["unsettled_nodes"]
                lack = _nodes(unseen) if unseen else "the other nodes"
            else:
                lack = "a streamer on this buffer (dogwild stream)"
            if now >= until:
                raise PeerLost(
                    f"{lack} did not come within {timeout:g} s: start them with the same name, "
                    "nodes and model, or look whether frames pass (dogwild doctor)"
                )
            if now >= say:
                say = now + _SAY_S
                log.info("waiting for %s", lack)
            time.sleep(_LOOK_S)

    def check_nodes(self, beginning: Beginning) -> None:
        """Raises :class:`~dogwild.errors.WeightsDiffer` if nodes began a new job differently."""
        others = self._buffer.counters().get("other_first_weights", 0)
        # A node that goes on may have begun otherwise, once.
        if not others or self._buffer.iterations()[0] > 0:
            return
        error = beginning.error_of_nodes(self._buffer, self._node, _nodes(others))
        # The others see it too, and need what is streamed here to name a parameter.
        self._solver.finish()
        until = time.monotonic() + _OTHERS_SEE_S
        while (self._buffer.settled() or (0,))[0] != _EQUAL and time.monotonic() < until:
            time.sleep(_LOOK_S)
        raise error

    def hook(self, ahead: Ahead | None, device: OnDevice | None) -> None:
        """Counts the optimiser's steps, and walks ahead with them."""
        self._ahead, self._device = ahead, device
        optimizer = self._optimizer
        if optimizer is None:
            return
        # A bound method, as schedulers look for one.
        before = optimizer.step

        def step(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            ahead = None if self._averages else self._ahead
            with self._device.step() if self._device else nullcontext():
                with ahead.step() if ahead else nullcontext():
                    loss = before(*args, **kwargs)
                if self._kept is not None:
                    self._kept.keep()
                self.step()
            return loss

        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
        self._unhook = lambda: setattr(optimizer, "step", before)
