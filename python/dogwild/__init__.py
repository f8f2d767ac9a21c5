"""Weights of one model in step on many processes and hosts, without locks and without waiting.

``share(model, optimizer)`` puts a PyTorch model into a shared buffer, which streamers keep in step
with those of other nodes; ``attach(path)`` reads the buffer of a job that runs. torch is needed for
``share`` alone, and numpy for arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._native import Buffer, __version__
from .attach import Attached, attach
from .errors import (
    BufferInUse,
    BufferMismatch,
    BufferNotReady,
    Detached,
    DogwildError,
    NoSpace,
    NotShareable,
    PeerLost,
    StreamerFailed,
)

if TYPE_CHECKING:
    from .shared import Shared, share

__all__ = [
    "Attached",
    "Buffer",
    "BufferInUse",
    "BufferMismatch",
    "BufferNotReady",
    "Detached",
    "DogwildError",
    "NoSpace",
    "NotShareable",
    "PeerLost",
    "Shared",
    "StreamerFailed",
    "__version__",
    "attach",
    "share",
]


def __getattr__(name: str) -> Any:
    # What needs torch is imported when it is asked for.
    if name in ("Shared", "share"):
        from . import shared

        return getattr(shared, name)
    raise AttributeError(f"module 'dogwild' has no attribute {name!r}")
