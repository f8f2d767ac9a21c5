"""A worker of the reliable path for test_reliable.py: trains, and says what came of it as JSON.

Arguments as JSON: rank, workers, address (null: by torchrun), how ("ddp" or a policy), steps, and
what the test needs besides.
"""

import hashlib
import json
import logging
import os
import signal
import sys

import torch
from torch import nn
from torch.nn import functional as F

import dogwild


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 12 * 12, 40),
        nn.ReLU(),
        nn.Linear(40, 10),
    )


def say(**what):
    print(json.dumps(what), flush=True)


def main():
    # In the background of a shell it is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    torch.set_num_threads(1)
    rank = job.get("rank", int(os.environ.get("RANK", "0")))
    model = net(job.get("seed", 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if job["how"] in ("ddp", "distributed") or "hook" in job:
        torch.distributed.init_process_group(
            "gloo", f"tcp://{job.pop('address')}", rank=rank, world_size=job["workers"]
        )
    if job["how"] == "ddp":
        train(nn.parallel.DistributedDataParallel(model), model, optimizer, rank, job)
        return
    if "hook" in job:
        try:
            parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
            with dogwild.comm_hook(parallel, policy=job["how"]) as hook:
                train(parallel, model, optimizer, rank, job)
            say(traffic=hook.traffic)
        except (dogwild.DogwildError, RuntimeError) as error:
            say(error=type(error).__name__, text=str(error))
        return
    if job["how"] == "distributed":
        job["how"] = "hybcomm"
        del job["rank"], job["workers"]
    try:
        sync = dogwild.poseidon(
            model,
            batch=16,
            rank=job.get("rank"),
            workers=job.get("workers"),
            policy=job["how"],
            address=job.get("address"),
            timeout=job.get("timeout", 60),
        )
        with sync:
            say(joined=rank, schemes=sync.schemes)
            train(model, model, optimizer, rank, job)
        say(traffic=sync.traffic)
    except dogwild.DogwildError as error:
        say(error=type(error).__name__, text=str(error))


def train(net, model, optimizer, rank, job):
    data = torch.Generator().manual_seed(100 + rank)
    for step in range(job["steps"]):
        if step == job.get("fails_at"):
            raise ValueError("the data is at its end")
        if step == job.get("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(16, 1, 28, 28, generator=data)
        y = torch.randint(0, 10, (16,), generator=data)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    say(
        hash=hashlib.sha256(bits).hexdigest(),
        weights=[round(float(p.double().norm()), 4) for p in model.parameters()],
    )


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        say(error="ValueError", text=str(error))
