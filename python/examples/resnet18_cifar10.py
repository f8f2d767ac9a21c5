"""ResNet-18 on CIFAR-10, trained by two nodes of this host.

    python python/examples/resnet18_cifar10.py                    # both nodes, one epoch together
    python python/examples/resnet18_cifar10.py --steps 10 --batch 8 --test 200
    python python/examples/resnet18_cifar10.py --node 0 --name j  # one of them; the other: --node 1

$DOGWILD_CIFAR10 or --data names the folder of the binary version: data_batch_1.bin to
data_batch_5.bin and test_batch.bin. At the end both nodes hold the same bits. The running
statistics of BatchNorm are each node's own, so the two may differ a little in accuracy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F

import dogwild

TRAINING, TEST = [f"data_batch_{number}.bin" for number in range(1, 6)], ["test_batch.bin"]
#: A label, and 32 rows of 32 pixels in red, then in green, then in blue.
RECORD = 1 + 3 * 32 * 32


class Residual(nn.Module):
    """Two convolutions, and what goes around them."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.after_first = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.after_second = nn.BatchNorm2d(channels)
        self.around = nn.Sequential()
        if stride != 1 or before != channels:
            self.around.append(nn.Conv2d(before, channels, 1, stride, bias=False))
            self.around.append(nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.after_first(self.first(x)))
        return F.relu(self.after_second(self.second(y)) + self.around(x))


def resnet18() -> nn.Module:
    """ResNet-18 for pictures of 32 x 32 pixels: 11,173,962 parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    before = 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(before, channels, stride), Residual(channels, channels, 1)]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def pictures(folder: Path, names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures as bytes, of shape (n, 3, 32, 32), and labels as int64, of shape (n)."""
    parts = []
    for name in names:
        file = folder / name
        if not file.is_file():
            raise SystemExit(
                f"{file} is not there: name the folder of CIFAR-10's binary version with --data"
            )
        data = numpy.fromfile(file, numpy.uint8)
        if not len(data) or len(data) % RECORD:
            raise SystemExit(f"{file}: {len(data)} bytes are no records of {RECORD}")
        parts.append(data.reshape(-1, RECORD))
    records = torch.from_numpy(numpy.concatenate(parts))
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


def prepared(pixels: torch.Tensor) -> torch.Tensor:
    """As float32, of mean 0 and deviation 1 or so."""
    return (pixels.float() / 255.0 - 0.47) / 0.25


def accuracy(model: nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> float:
    """The part of the pictures that the model knows."""
    model.eval()
    with torch.no_grad():
        parts = zip(pixels.split(100), labels.split(100))
        right = sum(int((model(prepared(x)).argmax(1) == y).sum()) for x, y in parts)
    return right / len(labels)


def train(args: argparse.Namespace) -> None:
    """Trains as one node, and prints what came of it as JSON."""
    pixels, labels = pictures(args.data, TRAINING)
    tested, wanted = (part[: args.test] for part in pictures(args.data, TEST))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    # Each node has half of the pictures.
    mine = torch.arange(args.node, len(labels), 2)
    order = torch.Generator().manual_seed(1000 + args.node)
    mine = mine[torch.randperm(len(mine), generator=order)]
    steps = args.steps or math.ceil(len(mine) / args.batch)
    faults = ("--loss", args.loss) if args.loss else ()
    losses = []
    with dogwild.share(
        model,
        optimizer,
        name=args.name,
        buffer=args.buffer and f"{args.buffer}-n{args.node}",
        node=args.node,
        nodes=2,
        stream_options=faults,
    ) as job:
        falls = dogwild.ClusterLR(optimizer, lambda done: 0.1 ** (done / (2 * steps)), job)
        for step in range(steps):
            some = mine[torch.arange(step * args.batch, (step + 1) * args.batch) % len(mine)]
            x = prepared(pixels[some])
            # Half of them in a mirror.
            flipped = torch.rand(len(x), generator=order) < 0.5
            x[flipped] = x[flipped].flip(3)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels[some])
            loss.backward()
            optimizer.step()
            falls.step()
            losses.append(loss.item())
            if (step + 1) % 10 == 0 or step + 1 == steps:
                logging.info("step %d, of all %d: loss %.3f", step + 1, job.iterations, losses[-1])
            if job.stop_requested:
                break
        equal = job.finish()
        result = {
            "node": args.node,
            "parameters": sum(one.numel() for one in model.parameters()),
            "iterations": job.iterations,
            "equal": equal,
            "digest": hashlib.sha256(memoryview(job.buffer)).hexdigest(),
            "losses": [losses[0], losses[-1]],
            "accuracy": accuracy(model, tested, wanted),
        }
        # In one write, unlike `print` of a Python without buffers: two processes say it at once.
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


def both() -> int:
    """Starts this program as each of the two nodes. The first error code, or 0."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dogwild-resnet-") as folder:
        job = ["--name", Path(folder).name, "--buffer", f"{folder}/buffer"]
        # What the user gives comes last, and wins.
        nodes = [[*job, "--node", str(node), *sys.argv[1:]] for node in (0, 1)]
        running = [subprocess.Popen([sys.executable, __file__, *options]) for options in nodes]
        codes = [one.wait() for one in running]
    return next((code for code in codes if code), 0)


def main() -> None:
    default = os.environ.get("DOGWILD_CIFAR10")
    options = argparse.ArgumentParser(description="ResNet-18 on CIFAR-10, on shared weights.")
    options.add_argument(
        "--data",
        type=Path,
        default=Path(default) if default else None,
        help="folder of the binary version (default: $DOGWILD_CIFAR10)",
    )
    options.add_argument("--node", type=int, choices=(0, 1), help="one node alone (default: both)")
    options.add_argument("--name", help="the job, the same on both nodes")
    options.add_argument("--buffer", help="files of the buffers, before -n0 and -n1")
    options.add_argument("--steps", type=int, help="of each node (default: once its pictures)")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--lr", type=float, default=0.02)
    options.add_argument("--test", type=int, default=10_000, help="pictures to test")
    options.add_argument("--loss", help="part of the frames that the streamer loses, as 30%%")
    args = options.parse_args()
    if args.data is None:
        options.error("give --data, the folder of CIFAR-10's binary version")
    if args.node is None:
        raise SystemExit(both())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    train(args)


if __name__ == "__main__":
    main()
