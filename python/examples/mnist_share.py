"""LeNet on MNIST, trained by any number of processes and nodes on shared weights.

    python python/examples/mnist_share.py --data DIR                              # one process
    python python/examples/mnist_share.py --data DIR --index 1                    # one more of it
    python python/examples/mnist_share.py --data DIR --name j --nodes 2 --node 0  # host 0
    python python/examples/mnist_share.py --data DIR --name j --nodes 2 --node 1  # host 1
    torchrun --nproc-per-node 2 python/examples/mnist_share.py --data DIR
    srun -N 2 -n 4 python python/examples/mnist_share.py --data DIR               # two each

Between hosts give ``--iface eth0``, or what it is called there. Where no multicast passes, give
``--join HOST`` too: the host of another node. ``--gpu 0`` has the model on a GPU of the host.

DIR holds MNIST's four idx files, packed by gzip or not. All processes have the same seed for the
model, so they begin with the same weights, and different ones for the order of the images.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import logging
import math
import os
import sys
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F

import dogwild
from dogwild.where import where_am_i


def idx(folder: Path, name: str) -> numpy.ndarray:
    """An idx file of bytes: images (n, rows, columns) or labels (n), as it lies or as NAME.gz."""
    file = folder / name
    packed = folder / f"{name}.gz"
    if not file.is_file() and not packed.is_file():
        raise SystemExit(f"{file}[.gz] is not there: name the folder of MNIST with --data")
    data = file.read_bytes() if file.is_file() else gzip.decompress(packed.read_bytes())
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise SystemExit(f"{file}: not an idx file of bytes")
    start = 4 + 4 * data[3]
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    if len(data) - start != math.prod(shape):
        raise SystemExit(f"{file}: {len(data) - start} bytes where {shape} are announced")
    return numpy.frombuffer(data, numpy.uint8, offset=start).reshape(shape)


def images(
    folder: Path, which: str, most: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images as float32 of 0 to 1, of shape (n, 1, 28, 28), and labels as int64, of shape (n).
    ``most``: no more than the first so many."""
    pixels = torch.from_numpy(idx(folder, f"{which}-images-idx3-ubyte")[:most].copy())
    labels = torch.from_numpy(idx(folder, f"{which}-labels-idx1-ubyte")[:most].astype(numpy.int64))
    return pixels.unsqueeze(1).float() / 255.0, labels


def lenet() -> nn.Module:
    """LeNet as Caffe has it: 431,080 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The part of the images that the model knows."""
    with torch.no_grad():
        parts = zip(x.split(500), y.split(500))
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in parts)
    return right / len(y)


def main() -> None:
    default = os.environ.get("DOGWILD_DATA")
    options = argparse.ArgumentParser(description="LeNet on MNIST, on shared weights.")
    options.add_argument(
        "--data",
        type=Path,
        default=Path(default, "mnist") if default else None,
        help="folder of the idx files (default: mnist in $DOGWILD_DATA)",
    )
    options.add_argument("--name", help="the job, the same on all nodes")
    options.add_argument("--buffer", help="file of the buffer (default: in /dev/shm)")
    options.add_argument("--node", type=int, help="which node this is, from 0")
    options.add_argument("--nodes", type=int, help="how many nodes there are")
    options.add_argument("--index", type=int, help="which process of the node this is, from 0")
    options.add_argument("--iface", help="interface to the other hosts (default: loopback)")
    options.add_argument(
        "--join",
        action="append",
        default=[],
        metavar="HOST",
        help="a host of the job, where multicast does not pass; may be given several times",
    )
    options.add_argument("--epochs", type=float, default=1.0, help="of this process")
    options.add_argument("--iterations", type=int, help="of this process, instead of --epochs")
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--lr", type=float, default=0.01)
    options.add_argument("--momentum", type=float, default=0.9)
    options.add_argument("--test", type=int, help="images to test on (default: all 10,000)")
    options.add_argument("--gpu", type=int, help="where the model is (default: the processor)")
    options.add_argument("--loss", help="part of the frames that the streamer loses, as 30%%")
    args = options.parse_args()
    if args.data is None:
        options.error("give --data, the folder of MNIST's idx files")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")

    here = where_am_i(args.node, args.nodes, args.index)
    place = torch.device("cpu" if args.gpu is None else f"cuda:{args.gpu}")
    x, y = (one.to(place) for one in images(args.data, "train"))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = lenet().to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    order = torch.Generator().manual_seed(1000 + 32 * here.node + here.index)
    steps = args.iterations or math.ceil(args.epochs * len(x) / args.batch)
    faults = ("--loss", args.loss) if args.loss else ()

    with dogwild.share(
        model,
        optimizer,
        name=args.name,
        buffer=args.buffer,
        node=args.node,
        nodes=args.nodes,
        index=args.index,
        iface=args.iface,
        join=tuple(args.join),
        stream_options=faults,
    ) as job:
        for step in range(1, steps + 1):
            some = torch.randint(len(x), (args.batch,), generator=order).to(place)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[some]), y[some])
            loss.backward()
            optimizer.step()
            if step % 100 == 0 or step == steps:
                logging.info("step %d, of all %d: loss %.4f", step, job.iterations, loss.item())
            if job.stop_requested:
                break
        equal = job.finish()
        test = (one.to(place) for one in images(args.data, "t10k", args.test))
        result = {
            "node": here.node,
            "index": here.index,
            "iterations": job.iterations,
            "equal": equal,
            "digest": hashlib.sha256(memoryview(job.buffer)).hexdigest(),
            "accuracy": accuracy(model, *test),
        }
        # In one write, unlike `print` of a Python without buffers: two processes say it at once.
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
