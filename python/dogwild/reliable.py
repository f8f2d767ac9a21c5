"""`poseidon`: when ``backward()`` returns, each gradient is the mean over all workers."""

from __future__ import annotations

import copy
import os
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .errors import DogwildError, NotShareable
from .joining import Job, Joined, alone_error, join
from .layers import FactorLinear, Layer, hash_of, layers_of, model_file
from .where import rank_of


def poseidon(
    model: nn.Module,
    *,
    batch: int,
    rank: int | None = None,
    workers: int | None = None,
    servers: int | None = None,
    policy: str = "hybcomm",
    rows: int | None = None,
    address: str | None = None,
    name: str | None = None,
    key_file: str | os.PathLike[str] | None = None,
    timeout: float = 300.0,
) -> Poseidon:
    """Makes ``backward()`` leave the mean gradient over all workers in each ``p.grad``.

    Each layer is sent as soon as its gradient is there, while the backward pass goes on. Every
    worker has to call ``backward()`` equally often. The optimiser is each worker's own: equal
    models stay equal to the bit, but for ``sfb`` and ``onebit``, whose means each worker computes
    in the same order too.

    ``batch``: samples of one worker in one iteration; the policy chooses by it. ``rank`` of
    ``workers``: default from torch.distributed if that is initialised, from torchrun, Slurm or
    Open MPI, else 0 of 1. ``servers``: hosted by the first so many workers (default: as
    many as have something to hold; with "p2p" none).
    ``policy``: "hybcomm", "sacp", "cheapest", or one scheme for all layers: "ps", "sfb", "adam",
    "onebit" (Linear layers; "onebit-all": all), "p2p".
    ``rows``: rows of a Linear layer's input in one iteration, at most (default: ``batch``); more
    where it is applied to places of a sequence. ``address``: HOST:PORT at which worker 0 listens;
    default by torch.distributed or torchrun. ``name``: the job, the same for all.

    The model may be on a GPU: gradients come down as they are there, and the means go up.

    Raises :class:`~dogwild.errors.NotShareable` by name for a parameter that is not float32, on the
    CPU or one GPU, :class:`~dogwild.errors.WeightsDiffer` if the models do not begin equal, and
    :class:`~dogwild.errors.PeerLost` if others do not come within ``timeout`` seconds.
    """
    if batch < 1 or (rows is not None and rows < 1):
        raise ValueError(f"batch={batch}, rows={rows}: give 1 or more")
    layers = layers_of(model)
    job = Job(name, model_file(layers, batch, rows), policy, servers, address, key_file, timeout)
    joined = join(job, rank_of(rank, workers), hash_of(layers))
    return Poseidon(layers, joined)


class Poseidon:
    """A model on the reliable path. See :func:`poseidon`.

    A context manager: an exception that leaves it ends the run for all workers at once, with its
    text; else :meth:`close` does in order.
    """

    def __init__(self, layers: list[Layer], joined: Joined) -> None:
        self._layers, self._joined, self._worker = layers, joined, joined.worker
        self._on_host = layers[0].parameters[0][1].device.type == "cpu"
        self._undo: list[Callable[[], None]] = []
        self._paused = False
        self._armed = False
        self._closed = False
        self._sent: set[int] = set()
        self._left = [0] * len(layers)
        self._views: dict[int, torch.Tensor] = {}
        self._factors: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._calls: dict[int, int] = {}
        self._before: dict[int, torch.Tensor] = {}
        self._schemes: dict[str, str] = {}
        flat = torch.frombuffer(joined.worker, dtype=torch.float32)
        for place, (name, scheme, rows, tensors) in enumerate(joined.worker.layers()):
            layer = layers[place]
            self._schemes[name] = scheme
            for (_, parameter), (_, at, size) in zip(layer.parameters, tensors):
                self._views[id(parameter)] = flat[at : at + size].view(parameter.shape)
            if scheme in ("sfb", "adam"):
                self._take_factors(place, layer, rows)
            else:
                for _, parameter in layer.parameters:
                    self._hook(place, parameter)
            self._left[place] = len(layer.parameters)

    @property
    def schemes(self) -> Mapping[str, str]:
        """How each layer travels, by its name."""
        return dict(self._schemes)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that this worker has sent and received, headers included."""
        sent, received = self._worker.traffic()
        return sent, received

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it gradients are added up here alone; the next ``backward()`` sends the sum."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def close(self) -> None:
        """Ends the run for all workers, in order, and leaves the model as it was.

        A worker that goes on after another has closed gets :class:`~dogwild.errors.PeerLost`.
        """
        if self._closed:
            return
        if self._armed:
            return self.abort("closed in the middle of a backward pass")
        self._release()
        self._joined.close()

    def abort(self, why: str) -> None:
        """Ends the run for all workers at once; they get ``why``."""
        if self._closed:
            return
        self._release()
        self._joined.abort(why)

    def __enter__(self) -> Poseidon:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(f"{kind.__name__}: {error}")

    def _release(self) -> None:
        self._closed = True
        for undo in self._undo:
            undo()
        # The memory of the means goes with the worker: gradients that are there stay.
        for layer in self._layers:
            for _, parameter in layer.parameters:
                if parameter.grad is not None and self._on_host:
                    parameter.grad = parameter.grad.clone()
        self._views.clear()

    def _hook(self, place: int, parameter: nn.Parameter) -> None:
        def done(*_: object) -> None:
            self._gradient(place, parameter)

        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            hooked: Any = parameter.register_post_accumulate_grad_hook
            handle = hooked(done)
        else:
            # torch before 2.1. The node lives as long as something holds it.
            view = parameter.expand_as(parameter)
            assert view.grad_fn is not None
            node: Any = view.grad_fn.next_functions[0][0]
            handle = node.register_hook(done)
            self._undo.append(lambda: node and None)
        self._undo.append(handle.remove)

    def _gradient(self, place: int, parameter: nn.Parameter) -> None:
        """A gradient is added up: sends its layer, if it was the last of it."""
        if self._paused or self._closed:
            return
        self._arm(place)
        self._put(parameter)
        self._left[place] -= 1
        if self._left[place] == 0:
            self._send(place)

    def _put(self, parameter: nn.Parameter) -> None:
        """Puts the gradient of a parameter into the memory of the means; not on a GPU, it is a view of
        that then."""
        view, gradient = self._views[id(parameter)], parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient.is_sparse:
            raise NotShareable("a sparse gradient: make the Embedding with sparse=False")
        elif gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
        if self._on_host:
            parameter.grad = view

    def _send(self, place: int) -> None:
        self._sent.add(place)
        self._worker.send_gradient(place)

    def _take_factors(self, place: int, layer: Layer, rows: int) -> None:
        module = layer.module

        def take(u: torch.Tensor, v: torch.Tensor) -> None:
            if self._closed:
                return
            self._factors.setdefault(place, []).append((u, v))
            self._calls[place] = self._calls.get(place, 0) - 1
            if self._paused:
                return
            self._arm(place)
            if self._calls[place] <= 0:
                self._send_factors(place, layer, rows)

        def forward(x: torch.Tensor) -> torch.Tensor:
            weight, bias = module.weight, module.bias
            if not torch.is_grad_enabled():
                return nn.functional.linear(x, weight, bias)  # type: ignore[arg-type]
            self._calls[place] = self._calls.get(place, 0) + 1
            apply: Any = FactorLinear.apply
            factored: torch.Tensor = apply(x, weight, bias, take)
            return factored

        module.forward = _Forward(module, forward)  # type: ignore[assignment]
        self._undo.append(lambda: module.__dict__.pop("forward", None) and None)

    def _send_factors(self, place: int, layer: Layer, most: int) -> None:
        parts = self._factors.pop(place, [])
        if not parts:
            return
        u, v = (parts[0] if len(parts) == 1 else [torch.cat(side, 1) for side in zip(*parts)])
        rows = int(u.shape[1])
        if rows > most:
            why = (
                f"{layer.name} got {rows} rows in one iteration, and {most} were announced: "
                f"give poseidon(rows={rows}), the same on all workers"
            )
            self.abort(why)
            raise DogwildError(why)
        self._sent.add(place)
        self._worker.send_factors(place, (u.data_ptr(), u.numel()), (v.data_ptr(), v.numel()))

    def _arm(self, place: int) -> None:
        """Begins an iteration with the first gradient of a backward pass."""
        if self._armed:
            if place in self._sent:
                why = "a backward pass before this one ended early, with a part of it sent"
                self.abort(why)
                raise DogwildError(f"{why}: the run is over")
            return
        self._joined.begin()
        self._armed = True
        self._sent.clear()
        for at, layer in enumerate(self._layers):
            self._left[at] = len(layer.parameters)
            if isinstance(layer.module.__dict__.get("forward"), _Forward):
                self._keep_before(layer)
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _keep_before(self, layer: Layer) -> None:
        """A gradient that was not set to zero is added to, as by any backward pass."""
        for _, parameter in layer.parameters:
            if parameter.grad is not None and bool(parameter.grad.any()):
                self._before[id(parameter)] = parameter.grad.clone()

    def _end(self) -> None:
        """The backward pass is over: waits for the means."""
        self._armed = False
        try:
            for place, layer in enumerate(self._layers):
                if place in self._sent:
                    continue
                if isinstance(layer.module.__dict__.get("forward"), _Forward):
                    # Calls without a backward pass, or one that recomputes: what came is all.
                    self._calls[place] = 0
                    self._send_factors(place, layer, self._most(place))
                else:
                    for _, parameter in layer.parameters:
                        self._put(parameter)
                    self._send(place)
            alone = self._worker.end()
        except BaseException as error:
            if not self._closed:
                self.abort(str(error))
            raise
        for layer in self._layers:
            for _, parameter in layer.parameters:
                self._take(parameter)
        for layer in self._layers:
            for _, parameter in layer.parameters:
                before = self._before.pop(id(parameter), None)
                if before is not None and parameter.grad is not None:
                    parameter.grad.add_(before)
        if alone:
            raise alone_error()

    def _take(self, parameter: nn.Parameter) -> None:
        """The gradient becomes the mean."""
        view = self._views[id(parameter)]
        if self._on_host:
            parameter.grad = view
        elif parameter.grad is None:
            parameter.grad = view.to(parameter.device)
        else:
            with torch.no_grad():
                parameter.grad.copy_(view)

    def _most(self, place: int) -> int:
        return self._worker.layers()[place][2]


class _Forward:
    """The forward pass of a Linear layer whose factors are taken. A copy of the layer has its own,
    plain one."""

    def __init__(self, module: nn.Module, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._module, self._call = module, call

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        return self._call(input)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = memo.get(id(self._module))
        if twin is None:
            twin = copy.deepcopy(self._module, memo)
        return types.MethodType(type(twin).forward, twin)

    def __reduce__(self) -> Any:
        raise DogwildError(
            "a model on the reliable path is not pickled: save its state_dict(), or close() first"
        )
