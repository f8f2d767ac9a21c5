"""The weights of `dogwild gpu --ipc`, opened by this process as the guide says: on the driver's
stand-in (package.rs), or by hand on a GPU."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import numpy

import dogwild

cuda = ctypes.CDLL("libcuda.so.1")


class Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def done(result):
    assert result == 0, result


folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
path = f"{folder}/n0"
buffer = dogwild.Buffer.create(path, 1, [("w", [100_000])], "fresh")
host = numpy.frombuffer(buffer, dtype=numpy.float32)
host[:] = numpy.arange(len(host))
buffer.publish()
words = [os.environ["DOGWILD_BIN"], "gpu", "--device", "0", "--ipc", "--buffer", path]
# It does not outlive this process (PR_SET_PDEATHSIG).
dies = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
component = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=dies)
while not os.path.exists(f"{path}.gpu0.ipc"):
    assert component.poll() is None, component.stderr.read()
    time.sleep(0.01)
with open(f"{path}.gpu0.ipc", encoding="utf-8") as file:
    told = json.load(file)
assert told["pid"] == component.pid and told["weights"]["words"] >= len(host), told

context, stream = ctypes.c_void_p(), ctypes.c_void_p()
done(cuda.cuInit(0))
count = ctypes.c_int()
done(cuda.cuDeviceGetCount(ctypes.byref(count)))


def uuid(gpu):
    found = (ctypes.c_ubyte * 16)()
    done(cuda.cuDeviceGetUuid(found, gpu))
    return bytes(found).hex()


# The first one of nvidia-smi has another number for the driver.
(gpu,) = (gpu for gpu in range(count.value) if uuid(gpu) == told["weights"]["device_uuid"])
done(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu))
done(cuda.cuCtxSetCurrent(context))
done(cuda.cuStreamCreate(ctypes.byref(stream), 1))
handle = Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(told["weights"]["handle"])))
address = ctypes.c_uint64()
done(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1))
here = numpy.empty(len(host), dtype=numpy.float32)
place, size = here.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(here.nbytes)


def read():
    done(cuda.cuMemcpyDtoHAsync_v2(place, address, size, stream))
    done(cuda.cuStreamSynchronize(stream))


def wait(what, is_so):
    until = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < until and component.poll() is None, what
        time.sleep(0.01)


read()
assert (here == host).all(), "the device has the weights of the buffer"
here += 1.0
expected = numpy.arange(len(host), dtype=numpy.float32) + 1


def is_given():
    # A weight that the component's kernel has read and not yet written keeps what the kernel
    # writes. So it is written again; the others do not change by that.
    done(cuda.cuMemcpyHtoDAsync_v2(address, place, size, stream))
    done(cuda.cuStreamSynchronize(stream))
    return (host == expected).all()


wait("what this process did is in the buffer", is_given)
host += 2.0


def is_here():
    read()
    return (here == expected + 2).all()


wait("what was added to the buffer is here", is_here)
done(cuda.cuIpcCloseMemHandle(address))
done(cuda.cuStreamDestroy_v2(stream))
done(cuda.cuDevicePrimaryCtxRelease_v2(gpu))
component.send_signal(signal.SIGINT)
_, log = component.communicate(timeout=300)
assert component.returncode == 0, log
if "STANDIN_GPUS" in os.environ:
    assert "STANDIN: violations 0; left: 0 alloc" in log, log
assert not os.path.exists(f"{path}.gpu0.ipc")
del here, place
shutil.rmtree(folder)
print("in step")
