"""`comm_hook`: the gradients of a DistributedDataParallel model by the reliable path."""

from __future__ import annotations

import os
import queue
import threading
from typing import Any, Literal

import torch
from torch.nn.parallel import DistributedDataParallel

from .binding import check_cpu
from .joining import Job, Joined, alone_error, join
from .layers import Layer, hash_of, model_file
from .where import rank_of


def comm_hook(
    ddp: DistributedDataParallel,
    *,
    policy: Literal["ps", "p2p", "onebit"] = "ps",
    servers: int | None = None,
    address: str | None = None,
    name: str | None = None,
    key_file: str | os.PathLike[str] | None = None,
    timeout: float = 300.0,
) -> CommHook:
    """Makes ``ddp`` send its gradients by the reliable path instead of its process group.

    Each bucket goes as soon as DDP has it. ``policy``: "ps" (two workers have the bits of Gloo's
    all-reduce), "p2p" (the same bits, without a server) or "onebit", which sends a bit per weight
    and keeps the rest for the next step. The ranks are those of torch.distributed; ``servers``, ``address``, ``name``, ``key_file`` and
    ``timeout`` are those of :func:`~dogwild.poseidon`.

    DDP sees whole gradients only; factors (``sfb``, ``hybcomm``) need :func:`~dogwild.poseidon`.
    """
    if policy not in ("ps", "p2p", "onebit"):
        raise ValueError(
            f"policy={policy!r}: give 'ps', 'p2p' or 'onebit', or use dogwild.poseidon()"
        )
    layers = []
    for parameter_name, parameter in ddp.module.named_parameters():
        if parameter.requires_grad:
            check_cpu(parameter_name, parameter)
            layers.append(Layer(parameter_name, ddp.module, [(parameter_name, parameter)]))
    # Nothing is chosen by it: each gradient travels whole.
    text = model_file(layers, 1, None)
    # Buckets are no fully connected layers, which is all that "onebit" would take.
    how = "onebit-all" if policy == "onebit" else policy
    job = Job(name, text, how, servers, address, key_file, timeout)
    hook = CommHook(layers, join(job, rank_of(), hash_of(layers)))
    ddp.register_comm_hook(hook, _send)
    return hook


class CommHook:
    """What a model under DDP sends by. See :func:`comm_hook`.

    A context manager: an exception that leaves it ends the run for all workers at once. An error of
    the run, which DDP turns into a ``RuntimeError`` of ``backward()``, leaves it as what it is.
    """

    def __init__(self, layers: list[Layer], joined: Joined) -> None:
        self._joined, self._worker = joined, joined.worker
        flat = torch.frombuffer(joined.worker, dtype=torch.float32)
        self._places: dict[int, tuple[int, torch.Tensor]] = {}
        for place, (_, _, _, tensors) in enumerate(joined.worker.layers()):
            parameter, (_, at, size) = layers[place].parameters[0][1], tensors[0]
            self._places[id(parameter)] = (place, flat[at : at + size])
        self._begun = False
        self._closed = False
        self._error: BaseException | None = None
        self._buckets: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._take, name="dogwild-ddp", daemon=True)
        self._thread.start()

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that this worker has sent and received, headers included."""
        sent, received = self._worker.traffic()
        return sent, received

    def close(self) -> None:
        """Ends the run for all workers, in order. The model cannot go on under DDP after it."""
        if self._end():
            self._joined.close()

    def __enter__(self) -> CommHook:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        if kind is None:
            self.close()
        elif self._end():
            self._joined.abort(f"{kind.__name__}: {error}")
            if self._error is not None and kind is RuntimeError:
                # What DDP makes of an error in a future.
                raise self._error

    def _end(self) -> bool:
        if self._closed:
            return False
        self._closed = True
        self._buckets.put(None)
        self._thread.join()
        return True

    def send(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Sends a bucket; the future has the means."""
        if not self._begun:
            self._joined.begin()
            self._begun = True
        taken = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            place, view = self._places[id(parameter)]
            view.copy_(gradient.reshape(-1))
            self._worker.send_gradient(place)
            taken.append((place, view, gradient))
        if bucket.is_last():
            self._begun = False
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._buckets.put((future, bucket.buffer(), taken, bucket.is_last()))
        return future

    def _take(self) -> None:
        """The thread that waits for means."""
        while (item := self._buckets.get()) is not None:
            future, buffer, taken, is_last = item
            try:
                self._worker.wait([place for place, _, _ in taken])
                for _, view, gradient in taken:
                    gradient.copy_(view.view(gradient.shape))
                if is_last and self._worker.end():
                    raise alone_error()
            except BaseException as error:
                self._error = self._error or error
                future.set_exception(error)
            else:
                future.set_result(buffer)


# DDP takes its own annotations alone, or none.
def _send(hook, bucket):  # type: ignore[no-untyped-def]
    return hook.send(bucket)
