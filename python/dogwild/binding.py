"""What a model has in a buffer: which tensors they are, and whether they still are there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import nn

from ._native import Buffer
from .errors import Detached, Diverged, NotShareable

#: Parameters whose place is looked at in each step; all are every hundred steps.
_EVERY = 100


@dataclass
class Place:
    """One parameter, or a buffer of the model: where it has it, and where it lies in memory."""

    name: str
    module: nn.Module
    attribute: str
    parameter: torch.Tensor
    pointer: int = 0

    def now(self) -> torch.Tensor | None:
        """What the model has there at present."""
        of = self.module._parameters
        return (of if self.attribute in of else self.module._buffers).get(self.attribute)


def places(model: nn.Module, frozen: bool, buffers: bool = False) -> list[Place]:
    """The parameters to share, each once: of tied ones the first name counts.

    ``frozen``: those that require no gradient too. ``buffers``: what the model saves besides in
    float32, such as running statistics, too; counts of steps stay each process's own. Raises
    :class:`~dogwild.errors.NotShareable` by name for what cannot lie in the buffer.
    """
    found: list[Place] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen:
                continue
            name = f"{prefix}.{attribute}" if prefix else attribute
            seen.add(id(parameter))
            if not (parameter.requires_grad or frozen):
                continue
            check(name, parameter)
            if not parameter.numel():
                continue
            found.append(Place(name, module, attribute, parameter))
        if buffers:
            found += _buffers(prefix, module, seen)
    if not any(isinstance(place.parameter, nn.Parameter) for place in found):
        raise NotShareable(
            "the model has no parameter that is trained: set requires_grad, or give frozen=True"
        )
    return found


def _buffers(prefix: str, module: nn.Module, seen: set[int]) -> list[Place]:
    """The buffers of a module that are saved, in float32, each once."""
    found: list[Place] = []
    for attribute, tensor in module._buffers.items():
        saved = attribute not in module._non_persistent_buffers_set
        if tensor is None or id(tensor) in seen or not saved or tensor.dtype != torch.float32:
            continue
        seen.add(id(tensor))
        name = f"{prefix}.{attribute}" if prefix else attribute
        check(name, tensor)
        if tensor.numel():
            found.append(Place(name, module, attribute, tensor))
    return found


def device_of(found: list[tuple[str, torch.Tensor]]) -> torch.device:
    """Where all of these, by name, are: the CPU, or one GPU.

    Raises :class:`~dogwild.errors.NotShareable` by name for what is elsewhere.
    """
    first, tensor = found[0]
    device: torch.device = tensor.device
    for name, tensor in found:
        where = tensor.device
        if where.type not in ("cpu", "cuda"):
            raise NotShareable(
                f"{name} is on {where}: parameters are on the CPU, or on a GPU of NVIDIA's"
            )
        if where != device:
            raise NotShareable(
                f"{name} is on {where}, and {first} on {device}: "
                "share a model that is on one device, or each part with a name of its own"
            )
    return device


def check_cpu(name: str, parameter: torch.Tensor) -> None:
    """Raises :class:`~dogwild.errors.NotShareable` for what is not float32 on the CPU."""
    check(name, parameter)
    if parameter.device.type != "cpu":
        raise NotShareable(
            f"{name} is on {parameter.device}: a hook of DDP takes gradients in memory of the "
            "host; use dogwild.poseidon() without DDP, or keep the model on the CPU"
        )


def check(name: str, parameter: torch.Tensor) -> None:
    """Raises :class:`~dogwild.errors.NotShareable` for what is not float32."""
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise NotShareable(f"{name} has no shape yet: run the model once before share()")
    if parameter.dtype != torch.float32:
        raise NotShareable(
            f"{name} is {parameter.dtype}: the buffer holds float32; call model.float() first, "
            "and use torch.autocast to compute in another dtype"
        )


def views(
    found: list[Place], buffer: Buffer, flat: torch.Tensor
) -> Iterator[tuple[Place, torch.Tensor, int]]:
    """For each place its part of ``flat``, which has the weights of the buffer, and the offset."""
    offsets = {name: at for name, _, at in buffer.tensors()}
    for place in found:
        at, parameter = offsets[place.name], place.parameter
        yield place, flat[at : at + parameter.numel()].view(parameter.shape), at


def fill(found: list[Place], buffer: Buffer) -> None:
    """The buffer gets the values of the parameters."""
    flat = torch.frombuffer(buffer, dtype=torch.float32)
    with torch.no_grad():
        for place, view, _ in views(found, buffer, flat):
            # -0.0 becomes 0.0: replicas are compared bit for bit.
            view.copy_(place.parameter).add_(0.0)


def bind(found: list[Place], buffer: Buffer, flat: torch.Tensor | None = None) -> None:
    """Makes each parameter a view of the buffer, or of ``flat``, its weights on a device."""
    there = torch.frombuffer(buffer, dtype=torch.float32) if flat is None else flat
    path = str(buffer.path)
    with torch.no_grad():
        for place, view, at in views(found, buffer, there):
            place.parameter.data = view
            place.pointer = place.parameter.data_ptr()
            if flat is None:
                _bound[place.pointer] = (path, at)


class Watch:
    """Looks whether all parameters are still where they were put."""

    def __init__(self, found: list[Place]) -> None:
        self._places = found
        self._steps = 0

    def step(self) -> None:
        """Looks at one parameter, and at all of them every hundred steps."""
        self._steps += 1
        if self._steps % _EVERY == 0:
            self.all()
        else:
            self._look(self._places[self._steps % len(self._places)])

    def all(self) -> None:
        """Looks at all parameters.

        Raises for the first :class:`~dogwild.errors.Detached`, or
        :class:`~dogwild.errors.Diverged` if its weights are no numbers.
        """
        for place in self._places:
            self._look(place)
        for place in self._places:
            # A sum is one pass, and is finite only if all of them are.
            with torch.no_grad():
                tensor = place.parameter
                finite = math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())
            if not finite:
                raise Diverged(
                    f"{place.name} has weights that are NaN or infinite: the training has diverged. "
                    "Take a lower rate, limit the gradient (clip_grad_norm_), or go on from weights "
                    'that were saved before (existing="fresh")'
                )

    def _look(self, place: Place) -> None:
        now = place.now()
        if now is place.parameter and now.data_ptr() == place.pointer and now.is_contiguous():
            return
        how = (
            "its memory was replaced (p.data = ..., a change of dtype, device or memory format)"
            if now is place.parameter
            else "another parameter has taken its place (load_state_dict(assign=True), weight_norm)"
        )
        raise Detached(
            f"{place.name} does not lie in the buffer any more: {how}. "
            "Change the model before share(), or copy into it in place (load_state_dict, copy_)"
        )


#: Where parameters in buffers are, by address: path of the buffer, and offset in weights.
_bound: dict[int, tuple[str, int]] = {}
#: Buffers that were opened for parameters that came from other processes.
_opened: dict[str, torch.Tensor] = {}


def _rebuild(path: str, at: int, shape: tuple[int, ...], grad: bool) -> nn.Parameter:
    if path not in _opened:
        _opened[path] = torch.frombuffer(Buffer.open(path), dtype=torch.float32)
    size = 1
    for one in shape:
        size *= one
    view = _opened[path][at : at + size].view(shape)
    _bound[view.data_ptr()] = (path, at)
    return nn.Parameter(view, requires_grad=grad)


def _reduce(parameter: nn.Parameter) -> Any:
    """How a parameter goes to another process: by its place, which torch would move it out of."""
    bound = _bound.get(parameter.data_ptr()) if parameter.device.type == "cpu" else None
    if bound is None:
        return _reduce_of_torch(parameter)
    path, at = bound
    return _rebuild, (path, at, tuple(parameter.shape), parameter.requires_grad)


def _register() -> Any:
    import torch.multiprocessing.reductions as reductions

    ForkingPickler.register(nn.Parameter, _reduce)
    return reductions.reduce_tensor


_reduce_of_torch = _register()
