"""A buffer in step with a GPU of the driver's stand-in, as `share` has it; PyTorch's part is played by
calls of the driver. For package.rs, and for a GPU by hand."""

import ctypes
import gc
import glob
import shutil
import sys
import tempfile
import time

import numpy

import dogwild
from dogwild import _native
from dogwild.device import Exported

GPU = int(sys.argv[1])
cuda = ctypes.CDLL("libcuda.so.1")


def done(result):
    assert result == 0, result


folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
buffer = dogwild.Buffer.create(f"{folder}/n0", 1, [("w", [100_000])], "fresh")
host = numpy.frombuffer(buffer, dtype=numpy.float32)
host[:] = numpy.arange(len(host))
buffer.publish()
# The context that a library of this process has, and works in.
context = ctypes.c_void_p()
done(cuda.cuInit(0))
done(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), GPU))
done(cuda.cuCtxSetCurrent(context))

weights = _native.DeviceWeights.start(f"{folder}/n0", GPU, 0)
there = Exported(weights).__cuda_array_interface__
(address, read_only), (words,) = there["data"], there["shape"]
assert not read_only and words >= len(host), there
here = numpy.empty(len(host), dtype=numpy.float32)
bytes_ = ctypes.c_size_t(here.nbytes)
stream = ctypes.c_void_p(weights.stream)


def read():
    done(cuda.cuMemcpyDtoHAsync_v2(here.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(address), bytes_, stream))
    done(cuda.cuStreamSynchronize(stream))


def threads():
    for task in glob.glob("/proc/self/task/*/comm"):
        try:
            with open(task, encoding="utf-8") as file:
                yield file.read()
        except OSError:
            pass


def settle():
    wanted = weights.cycles + 3
    while weights.cycles < wanted:
        weights.check()
        time.sleep(0.001)


read()
assert (here == host).all(), "the device begins with the buffer's weights"
for step in range(20):
    read()
    here += 1.0
    done(cuda.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(address), here.ctypes.data_as(ctypes.c_void_p), bytes_, stream))
    done(cuda.cuStreamSynchronize(stream))
settle()
assert (host == numpy.arange(len(host)) + 20).all(), "the buffer has the steps of the device"
host += 5.0
settle()
read()
assert (here == numpy.arange(len(host)) + 25).all(), "the device has what was added to the buffer"
weights.stop()
assert weights.ended
weights.check()
del weights, there
gc.collect()
# The memory goes on a thread of its own.
until = time.monotonic() + 300
while any("dogwild-free" in name for name in threads()):
    assert time.monotonic() < until, "the memory goes"
    time.sleep(0.01)
done(cuda.cuDevicePrimaryCtxRelease_v2(GPU))
shutil.rmtree(folder)
print("in step")
