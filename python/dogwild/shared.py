"""`share`: the parameters of a PyTorch model in a shared buffer."""

from __future__ import annotations

import os
import time
from typing import Literal

import torch
from torch import nn

from . import binding
from .ahead import Ahead
from .errors import BufferMismatch, NoSpace, WeightsDiffer
from .job import Shared, has_streamer
from .opening import Beginning, open_buffer
from .optimizer_state import OptimizerState
from .streamer import Streamer
from .where import where_am_i


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
    buffers: Literal["local", "shared"] = "local",
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
    running statistics of BatchNorm, stay this process's own, unless ``buffers="shared"``: then
    those in float32 are shared as parameters are. The optimiser's state is this process's own.

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
    if buffers not in ("local", "shared"):
        raise ValueError(f'buffers={buffers!r}: give "local" or "shared"')
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
    found = binding.places(model, frozen, buffers == "shared")
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
        elif stream == "process" and here.index == 0:
            options = ["--buffer", path, "--node", str(here.node), "--nodes", str(here.nodes)]
            options += ["--transport", transport, "--merge", merge]
            for flag, value in (("--iface", iface), ("--rate", rate), ("--key-file", key_file)):
                options += [] if value is None else [flag, os.fspath(value)]
            for host in join:
                options += ["--join", host]
            streamer = Streamer([*options, *stream_options], lambda: has_streamer(opened))
        ahead = Ahead(found, opened, solver) if walk_ahead else None
        shared = Shared(optimizer, found, opened, solver, streamer, here.node, alone, ahead, kept)
        shared.wait_until_ready(until, timeout)
        if beginning is not None:
            shared.check_nodes(beginning)
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
    shared.hook()
    return shared


def _state_of(
    optimizer: torch.optim.Optimizer | None, found: list[binding.Place]
) -> OptimizerState:
    if optimizer is None:
        raise ValueError('state="shared" is about an optimiser: give share(model, optimizer)')
    return OptimizerState(optimizer, {id(place.parameter): place.name for place in found})
