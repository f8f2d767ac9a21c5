"""`share`: the parameters of a PyTorch model in a shared buffer."""

from __future__ import annotations

import os
import time
from typing import Literal

import torch
from torch import nn

from . import binding
from .ahead import Ahead
from .device import OnDevice
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
    device: Literal["host"] | None = None,
    timeout: float = 300.0,
) -> Shared:
    """Puts the parameters of ``model`` into a buffer that other processes and nodes share.

    Each parameter (float32) becomes a view of the buffer; its shape stays. Any optimiser that steps
    in place then trains the shared weights. Those of a model on a GPU become views of a copy on
    that GPU, which threads of this process keep in step with the buffer. Of tied parameters there
    is one copy; those that need no gradient stay out unless ``frozen``. Buffers of the model, such
    as the running statistics of BatchNorm, stay this process's own, unless ``buffers="shared"``:
    then those in float32 are shared as parameters are. The optimiser's state is this process's own.

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

    ``device="host"``: as on a GPU, with a copy in memory of this process: to try on any machine what
    a GPU will do.

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
    if device not in (None, "host"):
        raise ValueError(
            f'device={device!r}: give "host", or nothing: a model on a GPU stays there'
        )
    here = where_am_i(node, nodes, index)
    name = name or (f"{here.source}-{here.job}" if here.job else "dogwild")
    alone = here.nodes == 1 or stream == "off"
    if buffer is None:
        suffix = "" if here.nodes == 1 else f"-n{here.node}"
        buffer = f"/dev/shm/dogwild-{name}{suffix}".replace(" ", "-")
    found = binding.places(model, frozen, buffers == "shared")
    where = binding.device_of([(place.name, place.parameter) for place in found])
    apart = where.type == "cuda" or device == "host"
    if device == "host" and where.type == "cuda":
        raise ValueError(f'device="host": the model is on {where}, where it stays')
    if apart and state == "shared":
        raise ValueError('state="shared": the optimiser of a model on a device has its state there')
    kept = _state_of(optimizer, found) if state == "shared" else None
    until = time.monotonic() + timeout
    path = os.fspath(buffer)
    opened = open_buffer(path, name, found, existing, here.index, until)
    beginning = Beginning(found) if check_weights else None
    if beginning is not None and here.index > 0:
        beginning.check_process(opened, here.index)
    if opened.created:
        binding.fill(found, opened)
        opened.publish()
    solver = opened.claim_solver(here.index)
    streamer = on_device = None
    try:
        if kept is not None:
            kept.open(opened, here.index, replace=existing == "fresh")
        if not apart:
            # Only now: a model that is refused stays as it was.
            binding.bind(found, opened)
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
        shared = Shared(optimizer, found, opened, solver, streamer, here.node, alone, kept)
        shared.wait_until_ready(until, timeout)
        if beginning is not None:
            shared.check_nodes(beginning)
        if apart:
            # Only now: the buffer has the weights that all begin with.
            on_device = OnDevice(opened, where, here.index)
            binding.bind(found, opened, on_device.flat)
        flat = None if on_device is None else on_device.flat
        ahead = Ahead(found, opened, solver, flat) if walk_ahead else None
    except BaseException as error:
        if on_device is not None:
            on_device.close()
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
    shared.hook(ahead, on_device)
    return shared


def _state_of(
    optimizer: torch.optim.Optimizer | None, found: list[binding.Place]
) -> OptimizerState:
    if optimizer is None:
        raise ValueError('state="shared" is about an optimiser: give share(model, optimizer)')
    return OptimizerState(optimizer, {id(place.parameter): place.name for place in found})
