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
    Diverged,
    DogwildError,
    NoSpace,
    NotShareable,
    PeerLost,
    StreamerFailed,
    WeightsDiffer,
)

if TYPE_CHECKING:
    from .ddp import CommHook, comm_hook
    from .rate import ClusterLR
    from .reliable import Poseidon, poseidon
    from .job import Shared
    from .shared import share

__all__ = [
    "Attached",
    "Buffer",
    "BufferInUse",
    "BufferMismatch",
    "BufferNotReady",
    "ClusterLR",
    "CommHook",
    "Detached",
    "Diverged",
    "DogwildError",
    "NoSpace",
    "NotShareable",
    "PeerLost",
    "Poseidon",
    "Shared",
    "StreamerFailed",
    "WeightsDiffer",
    "__version__",
    "attach",
    "comm_hook",
    "poseidon",
    "share",
]


def __getattr__(name: str) -> Any:
    # What needs torch is imported when it is asked for.
    if name in ("Shared", "share"):
        from . import shared

        return getattr(shared, name)
    if name == "ClusterLR":
        from . import rate

        return rate.ClusterLR
    if name in ("CommHook", "comm_hook"):
        from . import ddp

        return getattr(ddp, name)
    if name in ("Poseidon", "poseidon"):
        from . import reliable

        return getattr(reliable, name)
    raise AttributeError(f"module 'dogwild' has no attribute {name!r}")
