"""Reading a live job: the tensors in a node's buffer, by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._native import Buffer

if TYPE_CHECKING:
    import numpy
    import torch


class Attached(Mapping[str, "numpy.ndarray[Any, Any]"]):
    """The weights of a job that runs, or of one that ended and left its buffer.

    A mapping from the names of tensors to numpy arrays (float32, of the tensor's shape) over the
    shared memory itself. They cannot be written, and change while the job trains: copy what has to
    be of one moment.
    """

    def __init__(self, buffer: Buffer) -> None:
        import numpy

        self._buffer = buffer
        flat = numpy.frombuffer(memoryview(buffer).toreadonly(), dtype=numpy.float32)
        self._arrays = {}
        for name, shape, at in buffer.tensors():
            size = 1
            for one in shape:
                size *= one
            self._arrays[name] = flat[at : at + size].reshape(shape)

    def __getitem__(self, name: str) -> numpy.ndarray[Any, Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def path(self) -> str:
        """Path of the buffer."""
        return str(self._buffer.path)

    @property
    def iterations(self) -> int:
        """Iterations of all nodes, as far as this one knows."""
        return sum(self._buffer.iterations())

    @property
    def stop_requested(self) -> bool:
        """Whether all components of the node were told to end."""
        return self._buffer.stop

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the node's streamer (docs/reference/summary-json.md); empty without one."""
        return self._buffer.counters()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of all tensors, for ``model.load_state_dict(..., strict=False)``.

        A tensor that several names share (tied weights) is there under the first of them.
        """
        import torch

        return {name: torch.from_numpy(array.copy()) for name, array in self.items()}

    def load_into(self, model: torch.nn.Module) -> None:
        """Copies the weights into ``model``; raises ``KeyError`` for a name that it has not."""
        import torch

        places: dict[str, torch.Tensor] = dict(model.named_buffers())
        places.update(model.named_parameters())
        with torch.no_grad():
            for name, tensor in self.state_dict().items():
                if name not in places:
                    raise KeyError(f"{self.path} has a tensor {name!r}, the model has none")
                places[name].copy_(tensor)


def attach(path: str | os.PathLike[str]) -> Attached:
    """Opens the buffer ``path`` of a job for reading.

    Raises :class:`~dogwild.errors.BufferNotReady` where there is none yet, and
    :class:`~dogwild.errors.DogwildError` if the file is not a buffer.
    """
    return Attached(Buffer.open(os.fspath(path)))
