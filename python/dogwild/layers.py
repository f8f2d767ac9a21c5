"""The layers of a PyTorch model, as the reliable path sends them."""

from __future__ import annotations

import ctypes
import hashlib
import json
from dataclasses import dataclass, field

import torch
from torch import nn

from .binding import check, device_of
from .errors import NotShareable


@dataclass
class Layer:
    """The parameters of one module, whose gradients travel together."""

    name: str
    module: nn.Module
    #: Name and parameter, in the order in which they lie in memory.
    parameters: list[tuple[str, nn.Parameter]] = field(default_factory=list)
    #: Its gradient is a sum of products of two vectors: a Linear layer that shares no parameter.
    factors: bool = False


def layers_of(model: nn.Module) -> list[Layer]:
    """The layers that learn, in the order of the model; of tied parameters the first place counts.

    Raises :class:`~dogwild.errors.NotShareable` by name for what has no gradient in float32, on the
    CPU or one GPU.
    """
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    found: list[Layer] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        layer = Layer(prefix or type(model).__name__, module)
        for attribute, parameter in module._parameters.items():
            if parameter is None or not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{prefix}.{attribute}" if prefix else attribute
            check(name, parameter)
            if parameter.numel():
                layer.parameters.append((name, parameter))
        if layer.parameters:
            layer.factors = _has_factors(layer, uses)
            found.append(layer)
    if not found:
        raise NotShareable("the model has no parameter that requires a gradient")
    device_of([one for layer in found for one in layer.parameters])
    return found


def _has_factors(layer: Layer, uses: dict[int, int]) -> bool:
    module = layer.module
    return (
        isinstance(module, nn.Linear)
        and type(module).forward is nn.Linear.forward
        and "forward" not in module.__dict__
        and layer.parameters[0][1] is module.weight
        and all(uses[id(parameter)] == 1 for _, parameter in layer.parameters)
    )


def model_file(layers: list[Layer], batch: int, rows: int | None) -> str:
    """The layers as a model file (docs/reference/reliable-protocol.md), with the rule ``mean``."""
    return json.dumps(
        {
            "images": batch,
            "step": {"rule": "mean"},
            "layers": [
                {
                    "name": layer.name,
                    "factors": layer.factors,
                    **({"rows": rows} if layer.factors and rows is not None else {}),
                    "tensors": [
                        {"name": name, "shape": list(parameter.shape)}
                        for name, parameter in layer.parameters
                    ],
                }
                for layer in layers
            ],
        }
    )


def hash_of(layers: list[Layer]) -> int:
    """A hash of the weights, which is never 0."""
    digest = hashlib.blake2b(digest_size=8)
    for layer in layers:
        for _, parameter in layer.parameters:
            values = parameter.detach().cpu().contiguous()
            size = values.numel() * values.element_size()
            digest.update((ctypes.c_char * size).from_address(values.data_ptr()))
    return int.from_bytes(digest.digest(), "little") or 1


class FactorLinear(torch.autograd.Function):
    """A Linear layer whose weight gradient is not computed: its factors go to ``take``."""

    @staticmethod
    def forward(ctx, x, weight, bias, take):  # type: ignore[no-untyped-def,override]
        ctx.save_for_backward(x, weight)
        ctx.take = take
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def,override]
        x, weight = ctx.saved_tensors
        ctx.take(_factor(grad), _factor(x))
        of_x = grad.to(weight.dtype) @ weight if ctx.needs_input_grad[0] else None
        return of_x if of_x is None else of_x.to(x.dtype), None, None, None


def _factor(values: torch.Tensor) -> torch.Tensor:
    """``[..., width]`` as ``[width, rows]``, in float32 without gaps, in memory of the host."""
    rows = values.detach().reshape(-1, values.shape[-1])
    factor: torch.Tensor = rows.t().to(torch.float32).contiguous().cpu()
    return factor
