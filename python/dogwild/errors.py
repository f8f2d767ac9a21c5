"""What can go wrong: one class for each thing that a user can act on."""


class DogwildError(RuntimeError):
    """Anything that dogwild refuses or cannot do."""


class NotShareable(DogwildError, TypeError):
    """A parameter cannot lie in the buffer: its dtype, its device, its layout."""


class BufferNotReady(DogwildError):
    """There is no such buffer yet, or its first weights are still being set."""


class BufferInUse(DogwildError):
    """Another process works on the buffer in this place, or the buffer exists already."""


class BufferMismatch(DogwildError):
    """The buffer, or a file next to it, is of another model, job or optimiser."""


class WeightsDiffer(DogwildError):
    """Models of several workers do not begin with the same weights."""


class NoSpace(DogwildError):
    """The file system of the buffer has not enough free memory."""


class StreamerFailed(DogwildError):
    """The streamer of this node ended with an error; the text has its last log line."""


class Detached(DogwildError):
    """A parameter of the model does not lie in the buffer any more."""


class Diverged(DogwildError):
    """Weights are NaN or infinite."""


class PeerLost(DogwildError):
    """Other nodes did not come, or did not take what was added here, in time."""
