"""One worker that keeps in step as DistributedDataParallel does, over Gloo, and sleeps for what its
layers take: RECORDING BUCKET_BYTES WARM_UP ITERATIONS. Prints what an iteration took."""
import json
import sys
import time

import torch
import torch.distributed as dist

with open(sys.argv[1]) as file:
    layers = json.load(file)["layers"]
bucket_bytes, warm_up, iterations = (int(word) for word in sys.argv[2:])
dist.init_process_group("gloo")
torch.set_num_threads(1)


def floats(shape):
    outputs, inputs = shape["outputs"], shape["inputs"]
    return outputs * inputs + (outputs if shape["bias"] else 0)


# As DistributedDataParallel makes them: gradients in the order of the backward pass, whole, until a
# bucket is full. (The first one of PyTorch is smaller.)
buckets, last_of = [], {}
for number, layer in reversed(list(enumerate(layers))):
    if not buckets or 4 * buckets[-1] >= bucket_bytes:
        buckets.append(0)
    buckets[-1] += floats(layer["shape"])
    last_of[len(buckets) - 1] = number
gradients = [torch.ones(size) for size in buckets]
bucket_of = {number: bucket for bucket, number in last_of.items()}


def carried():
    with open("/proc/net/dev") as lines:
        line = next(line for line in lines if line.strip().startswith("eth0:"))
    words = line.split(":")[1].split()
    return int(words[0]) + int(words[8])


def iterate():
    due = time.perf_counter() + sum(layer["forward_us"] for layer in layers) / 1e6
    works = []
    for number, layer in reversed(list(enumerate(layers))):
        due += layer["backward_us"] / 1e6
        time.sleep(max(0, due - time.perf_counter()))
        if number in bucket_of:
            works.append(dist.all_reduce(gradients[bucket_of[number]], async_op=True))
    for work, gradient in zip(works, gradients):
        work.wait()
        gradient /= dist.get_world_size()


for iteration in range(warm_up + iterations):
    if iteration == warm_up:
        dist.barrier()
        began = time.perf_counter(), carried()
    iterate()
seconds, bytes_moved = (
    (end - begin) / iterations
    for begin, end in zip(began, (time.perf_counter(), carried()))
)
print(json.dumps({"iteration_s": seconds, "bytes": bytes_moved}))
