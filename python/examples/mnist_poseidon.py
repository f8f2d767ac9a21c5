"""LeNet on MNIST by the reliable path: several workers, mean gradients, your own optimiser.

    python python/examples/mnist_poseidon.py --data DIR                       # one worker
    python python/examples/mnist_poseidon.py --workers 2 --address HOST0:7700 --rank 0   # host 0
    python python/examples/mnist_poseidon.py --workers 2 --address HOST0:7700 --rank 1   # host 1
    torchrun --nproc-per-node 2 python/examples/mnist_poseidon.py --data DIR
    srun -n 4 python python/examples/mnist_poseidon.py --address HOST0:7700   # HOST0: of rank 0

DIR holds MNIST's four idx files, packed by gzip or not. All workers have the same seed for the
model, and each its own pictures. They make equally many steps and end with the same bits.
``--gpu 0`` has the model and the images on a GPU of the host.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import dogwild
from dogwild.where import rank_of
from mnist_share import accuracy, images, lenet


def digest(model: nn.Module) -> str:
    """A hash of all parameters: equal models have the same."""
    total = hashlib.sha256()
    for parameter in model.parameters():
        total.update(parameter.detach().cpu().numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    default = os.environ.get("DOGWILD_DATA")
    options = argparse.ArgumentParser(description="LeNet on MNIST, by the reliable path.")
    options.add_argument(
        "--data",
        type=Path,
        default=Path(default, "mnist") if default else None,
        help="folder of the idx files (default: mnist in $DOGWILD_DATA)",
    )
    options.add_argument("--rank", type=int, help="which worker this is, from 0")
    options.add_argument("--workers", type=int, help="how many workers there are")
    options.add_argument("--address", metavar="HOST:PORT", help="where worker 0 listens")
    options.add_argument(
        "--policy",
        default="hybcomm",
        choices=("hybcomm", "sacp", "cheapest", "ps", "sfb", "adam", "onebit", "p2p"),
        help="how layers travel (default: hybcomm)",
    )
    options.add_argument("--iterations", type=int, default=500, help="the same for all workers")
    options.add_argument("--batch", type=int, default=64, help="of each worker")
    options.add_argument("--lr", type=float, default=0.01)
    options.add_argument("--momentum", type=float, default=0.9)
    options.add_argument("--gpu", type=int, help="where the model is (default: the processor)")
    options.add_argument("--test", type=int, help="images to test on (default: all 10,000)")
    args = options.parse_args()
    if args.data is None:
        options.error("give --data, the folder of MNIST's idx files")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")

    here = rank_of(args.rank, args.workers)
    place = torch.device("cpu" if args.gpu is None else f"cuda:{args.gpu}")
    x, y = (one[here.rank :: here.workers].to(place) for one in images(args.data, "train"))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = lenet().to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    order = torch.Generator().manual_seed(1000 + here.rank)

    with dogwild.poseidon(
        model,
        batch=args.batch,
        rank=args.rank,
        workers=args.workers,
        policy=args.policy,
        address=args.address,
    ) as sync:
        for step in range(1, args.iterations + 1):
            some = torch.randint(len(x), (args.batch,), generator=order).to(place)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[some]), y[some])
            # The gradients are then the mean over all workers.
            loss.backward()
            optimizer.step()
            if step % 100 == 0 or step == args.iterations:
                logging.info("step %d: loss %.4f", step, loss.item())
    test = (one.to(place) for one in images(args.data, "t10k", args.test))
    result = {
        "rank": here.rank,
        "workers": here.workers,
        "schemes": sync.schemes,
        "digest": digest(model),
        "accuracy": accuracy(model, *test),
    }
    # In one write, unlike `print` of a Python without buffers: two processes say it at once.
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
