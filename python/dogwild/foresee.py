"""What state an optimiser will have, before its first step makes it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .errors import NotShareable

#: Some optimisers make a part of their state in the second step.
_STEPS = 2
_CURE = 'keep it in this process alone (state="own")'


@dataclass(frozen=True)
class Kept:
    """One value of a parameter's state: a tensor, or a number of Python."""

    key: str
    #: As ``str(dtype)`` says it ("torch.float32"), or "int" or "float".
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.key} ({self.dtype.removeprefix('torch.')}, shape {list(self.shape)})"


@dataclass(frozen=True)
class Foreseen:
    """All state of one parameter."""

    name: str
    parameter: nn.Parameter
    kept: tuple[Kept, ...]


def foresee(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> list[Foreseen]:
    """The state of each parameter that requires a gradient, in the order of the groups.

    ``names``: those of parameters, by ``id``. Copies of the parameters make two steps, one
    parameter at a time. Neither the optimiser nor the random numbers of torch notice that.

    Raises :class:`~dogwild.errors.NotShareable` for an optimiser that needs a closure (LBFGS), and
    for state that is neither a tensor on the CPU nor a number.
    """
    found = []
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if not parameter.requires_grad:
                continue
            name = names.get(id(parameter), f"parameter {place} of group {number}")
            state = _after_steps(optimizer, group, parameter, name)
            pairs = ((key, value) for key, value in state.items() if value is not None)
            kept = tuple(_kept(optimizer, name, str(key), value) for key, value in pairs)
            found.append(Foreseen(name, parameter, kept))
    return found


def _after_steps(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter, name: str
) -> dict[Any, Any]:
    """The state of a copy of ``parameter`` after steps with a gradient of zeros."""
    copy = nn.Parameter(parameter.detach().clone())
    copy.grad = torch.zeros_like(copy)
    # A constructor need not take what groups have, so none is called.
    shadow = object.__new__(type(optimizer))
    shadow.__dict__.update(optimizer.__dict__)
    # What schedulers put around it steps the optimiser itself.
    shadow.__dict__.pop("step", None)
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        shadow.__dict__[hooks] = OrderedDict()
    shadow.state = defaultdict(dict)
    before = optimizer.state.get(parameter, {})
    if before:
        shadow.state[copy] = {key: _copied(value) for key, value in before.items()}
    shadow.param_groups = [{**group, "params": [copy]}]
    try:
        with torch.random.fork_rng(devices=[]):
            for _ in range(_STEPS):
                type(optimizer).step(shadow)
    except Exception as error:
        raise NotShareable(
            f"{type(optimizer).__name__} does not step {name} by itself, so the size of its state "
            f"is not known ({error}): {_CURE}"
        ) from error
    return dict(shadow.state.get(copy, {}))


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def kept_as(key: str, value: Any) -> Kept | None:
    """How a value is kept; none if it cannot be."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout != torch.strided:
            return None
        return Kept(key, str(value.dtype), tuple(value.shape))
    if isinstance(value, (int, float)):
        return Kept(key, "float" if isinstance(value, float) else "int", ())
    return None


def _kept(optimizer: torch.optim.Optimizer, name: str, key: str, value: Any) -> Kept:
    kept = kept_as(key, value)
    if kept is None:
        what = type(value).__name__
        if isinstance(value, torch.Tensor):
            what = f"tensor ({value.layout}) on {value.device}"
        raise NotShareable(
            f"{type(optimizer).__name__} keeps {key!r} of {name} as a {what}: a file holds tensors "
            f"of the CPU and numbers; {_CURE}"
        )
    return kept
