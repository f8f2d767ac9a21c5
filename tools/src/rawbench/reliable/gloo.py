"""One worker of an all-reduce over Gloo: WEIGHTS WARM_UP ITERATIONS. Prints what one took."""
import json
import resource
import sys
import time

import torch
import torch.distributed as dist

weights, warm_up, iterations = (int(word) for word in sys.argv[1:])
dist.init_process_group("gloo")
torch.set_num_threads(1)
gradient = torch.ones(weights)


def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), usage.ru_utime + usage.ru_stime, usage.ru_minflt


for iteration in range(warm_up + iterations):
    if iteration == warm_up:
        dist.barrier()
        began = used()
    dist.all_reduce(gradient)
    # The mean, as DistributedDataParallel makes it.
    gradient /= dist.get_world_size()
ended = used()
seconds, cpu_s, faults = (
    (end - begin) / iterations for begin, end in zip(began, ended)
)
print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "page_faults": faults}))
