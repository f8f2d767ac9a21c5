"""`share`: the parameters of a PyTorch model in a shared buffer."""

from __future__ import annotations

import logging
import os
import time
import types
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import nn

from . import binding
from ._native import Buffer
from .ahead import Ahead
from .errors import BufferMismatch, NoSpace, PeerLost, WeightsDiffer
from .opening import Beginning, open_buffer
from .optimizer_state import OptimizerState
from .streamer import Streamer
from .where import where_am_i

log = logging.getLogger("dogwild")

#: Seconds between two looks while something is waited for, and between two lines about it.
_LOOK_S = 0.005
_SAY_S = 5.0
#: Seconds that other nodes have to see that the weights differ.
_OTHERS_SEE_S = 10.0
#: What a streamer says of a node that holds what all others hold.
_EQUAL = 3


def share(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    name: str | None = None,
    buffer: str | os.PathLike[str] | None = None,
    node: int | None = None,
    nodes: int | None = None,
    index: int | None = None,
    stream: Literal["process", "external", "off"] = "process",
    transport: str = "udp",
    iface: str | None = None,
    join: tuple[str, ...] = (),
    rate: str | None = None,
    merge: Literal["mean", "sum"] = "mean",
    key_file: str | os.PathLike[str] | None = None,
    stream_options: tuple[str, ...] = (),
    frozen: bool = False,
    existing: Literal["resume", "fresh", "refuse"] = "resume",
    check_weights: bool = True,
    walk_ahead: bool = True,
    state: Literal["own", "shared"] = "own",
    timeout: float = 300.0,
) -> Shared:
    """Puts the parameters of ``model`` into a buffer that other processes and nodes share.

    Each parameter (float32, on the CPU) becomes a view of the buffer; its shape stays. Any
    optimiser that steps in place then trains the shared weights. Of tied parameters there is one
    copy; those that need no gradient stay out unless ``frozen``. Buffers of the model, such as the
    running statistics of BatchNorm, stay this process's own, and so does the optimiser's state.

    ``name``: the job, the same on all nodes (default: the launcher's number of it, or "dogwild").
    ``buffer``: the file (default ``/dev/shm/dogwild-NAME``, with ``-nK`` where there are several
    nodes). ``node``, ``nodes`` and ``index`` (of the process on its node): default from torchrun,
    Slurm or Open MPI, else one node. ``stream``: who streams where there are several nodes; a
    process that index 0 starts, "external" (``dogwild stream``, started by hand), or "off": this
    node alone. ``transport``, ``iface``, ``join`` (hosts), ``rate`` (as "64MB", per second),
    ``merge``, ``key_file``, ``stream_options``: flags of ``dogwild stream``. ``existing``: what
    becomes of a buffer that is there: its weights win ("resume"), it is replaced, or refused.
    ``check_weights``: nodes, and processes of a node, that begin a new job together must have the
    same weights. ``timeout``: seconds to wait for the buffer and for the other nodes.

    With ``merge="mean"`` the steps of all nodes make one weighted mean. ``walk_ahead``: the
    optimiser's steps are longer by what that leaves out, so that all count; this takes memory for
    two more copies of the weights. Without it steps count for less the more nodes there are.
    ``merge="sum"`` adds all steps up, which is for two nodes or short delays.

    ``state="shared"``: the optimiser's state (momentum, moments, counts of steps) is in the file
    ``<buffer>.optimizer<index>``. A process that is killed goes on with it when it shares the same
    buffer again. What the file has then wins over what the optimiser has.

    Raises the errors of :mod:`dogwild.errors`: ``NotShareable``, ``BufferInUse``,
    ``BufferMismatch``, ``NoSpace``, ``WeightsDiffer``, ``StreamerFailed``, and ``PeerLost`` at the
    timeout.
    """
    if stream not in ("process", "external", "off"):
        raise ValueError(f'stream={stream!r}: give "process", "external" or "off"')
    if merge not in ("mean", "sum"):
        raise ValueError(f'merge={merge!r}: give "mean" or "sum"')
    if state not in ("own", "shared"):
        raise ValueError(f'state={state!r}: give "own" or "shared"')
    here = where_am_i(node, nodes, index)
    name = name or (f"{here.source}-{here.job}" if here.job else "dogwild")
    alone = here.nodes == 1 or stream == "off"
    if buffer is None:
        suffix = "" if here.nodes == 1 else f"-n{here.node}"
        buffer = f"/dev/shm/dogwild-{name}{suffix}".replace(" ", "-")
    found = binding.places(model, frozen)
    kept = _state_of(optimizer, found) if state == "shared" else None
    until = time.monotonic() + timeout
    path = os.fspath(buffer)
    opened = open_buffer(path, name, found, existing, here.index, until)
    beginning = Beginning(found) if check_weights else None
    if beginning is not None and here.index > 0:
        beginning.check_process(opened, here.index)
    if opened.created:
        binding.bind(found, opened, fresh=True)
        opened.publish()
    solver = opened.claim_solver(here.index)
    streamer = None
    try:
        if kept is not None:
            kept.open(opened, here.index, replace=existing == "fresh")
        if not opened.created:
            # Only now: a model that is refused stays as it was.
            binding.bind(found, opened, fresh=False)
        if alone:
            opened.start_alone()
        elif stream == "process" and here.index == 0 and not _has_streamer(opened):
            options = ["--buffer", path, "--node", str(here.node), "--nodes", str(here.nodes)]
            options += ["--transport", transport, "--merge", merge]
            for flag, value in (("--iface", iface), ("--rate", rate), ("--key-file", key_file)):
                options += [] if value is None else [flag, os.fspath(value)]
            for host in join:
                options += ["--join", host]
            streamer = Streamer([*options, *stream_options])
        ahead = Ahead(found, opened, solver) if walk_ahead else None
        shared = Shared(optimizer, found, opened, solver, streamer, here.node, alone, ahead, kept)
        shared._wait_until_ready(until, timeout)
        if beginning is not None:
            shared._check_nodes(beginning)
    except BaseException as error:
        if streamer is not None:
            streamer.close(timeout=0.0)
        solver.release()
        free = not any(alive for *_, alive in opened.components())
        refused = free and isinstance(error, (BufferMismatch, NoSpace))
        if opened.created and (refused or isinstance(error, WeightsDiffer)):
            # It would win over the right weights of the next try.
            os.unlink(path)
            if kept is not None:
                kept.discard()
        raise
    if kept is not None:
        kept.bind()
    shared._hook()
    return shared


def _state_of(
    optimizer: torch.optim.Optimizer | None, found: list[binding.Place]
) -> OptimizerState:
    if optimizer is None:
        raise ValueError('state="shared" is about an optimiser: give share(model, optimizer)')
    return OptimizerState(optimizer, {id(place.parameter): place.name for place in found})


def _has_streamer(opened: Buffer) -> bool:
    return any(role == "stream" and alive for role, _, _, alive in opened.components())


def _nodes(mask: int) -> str:
    """The nodes of a bit mask, in words."""
    which = [str(node) for node in range(64) if mask >> node & 1]
    return ("node " if len(which) == 1 else "nodes ") + ", ".join(which)


class Shared:
    """A model whose parameters are shared. Made by :func:`share`; leave it by ``with`` or close().

    After that, and in any process that inherits the model, the parameters stay views of the buffer.
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
        ahead: Ahead | None,
        kept: OptimizerState | None,
    ) -> None:
        self._optimizer = optimizer
        self._places = found
        self._buffer = buffer
        self._solver = solver
        self._streamer = streamer
        self._node = node
        self._alone = alone
        self._ahead = ahead
        self._kept = kept
        self._watch = binding.Watch(found)
        self._unhook: Any = None
        self._closed = False

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
        return 1.0 if self._ahead is None else self._ahead.stride

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
        left the buffer, and :class:`~dogwild.errors.StreamerFailed`.
        """
        self._watch.step()
        if self._streamer is not None:
            self._streamer.check()
        return int(self._solver.step())

    def finish(self, timeout: float = 300.0) -> bool:
        """Waits until all that was added here is with the other nodes, and all nodes have finished.

        True: all nodes hold the same weights, bit for bit. False: what was added here is with the
        others, but some of them have not finished within ``timeout`` seconds. A step after it
        takes it back. Every process of a node has to call it.

        Raises :class:`~dogwild.errors.PeerLost` if the others did not take all in time.
        """
        self._watch.all()
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
        if self._kept is not None:
            self._kept.release()
        self._solver.release()
        if self._streamer is not None:
            self._streamer.close()

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_until_ready(self, until: float, timeout: float) -> None:
        say = time.monotonic() + _SAY_S / 5
        while not self._buffer.is_ready:
            if self._streamer is not None:
                self._streamer.check()
            now = time.monotonic()
            if _has_streamer(self._buffer):
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

    def _check_nodes(self, beginning: Beginning) -> None:
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

    def _hook(self) -> None:
        """Counts the optimiser's steps, and walks ahead with them."""
        optimizer = self._optimizer
        if optimizer is None:
            return
        # A bound method, as schedulers look for one.
        before = optimizer.step

        def step(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            with self._ahead.step() if self._ahead else nullcontext():
                loss = before(*args, **kwargs)
            if self._kept is not None:
                self._kept.keep()
            self.step()
            return loss

        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
        self._unhook = lambda: setattr(optimizer, "step", before)
