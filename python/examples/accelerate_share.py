"""LeNet on MNIST in a loop of Accelerate, trained by two nodes of this host.

    python python/examples/accelerate_share.py --data DIR         # both nodes
    python python/examples/accelerate_share.py --node 0 --name j  # one of them; the other: --node 1

It needs ``pip install accelerate``. Accelerate prepares what it always does; dogwild shares the
model and the optimiser inside. Start it without ``accelerate launch``, which would keep processes
in step by itself. DIR holds MNIST's four idx files, packed by gzip or not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dogwild
from mnist_share import accuracy, images, lenet


def train(args: argparse.Namespace) -> None:
    """Trains as one node, and prints what came of it as JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    order = torch.Generator().manual_seed(1000 + args.node)
    loader = DataLoader(
        TensorDataset(*images(args.data, "train")), args.batch, shuffle=True, generator=order
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    with dogwild.share(
        accelerator.unwrap_model(model),
        # The one inside makes the steps.
        optimizer.optimizer,
        name=args.name,
        buffer=args.buffer and f"{args.buffer}-n{args.node}",
        node=args.node,
        nodes=2,
    ) as job:
        while done < args.steps and not job.stop_requested:
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = F.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                done += accelerator.sync_gradients
                if accelerator.sync_gradients and done % 50 == 0:
                    logging.info("step %d, of all %d: loss %.4f", done, job.iterations, loss.item())
                if done >= args.steps or job.stop_requested:
                    break
        equal = job.finish()
        result = {
            "node": args.node,
            "iterations": job.iterations,
            "equal": equal,
            "digest": hashlib.sha256(memoryview(job.buffer)).hexdigest(),
            "accuracy": accuracy(model, *images(args.data, "t10k")),
        }
        # In one write, unlike `print` of a Python without buffers: two processes say it at once.
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


def both() -> int:
    """Starts this program as each of the two nodes. The first error code, or 0."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dogwild-accelerate-") as folder:
        job = ["--name", Path(folder).name, "--buffer", f"{folder}/buffer"]
        # What the user gives comes last, and wins.
        nodes = [[*job, "--node", str(node), *sys.argv[1:]] for node in (0, 1)]
        running = [subprocess.Popen([sys.executable, __file__, *options]) for options in nodes]
        codes = [one.wait() for one in running]
    return next((code for code in codes if code), 0)


def main() -> None:
    default = os.environ.get("DOGWILD_DATA")
    options = argparse.ArgumentParser(description="LeNet on MNIST, shared in Accelerate's loop.")
    options.add_argument(
        "--data",
        type=Path,
        default=Path(default, "mnist") if default else None,
        help="folder of the idx files (default: mnist in $DOGWILD_DATA)",
    )
    options.add_argument("--node", type=int, choices=(0, 1), help="one node alone (default: both)")
    options.add_argument("--name", help="the job, the same on both nodes")
    options.add_argument("--buffer", help="files of the buffers, before -n0 and -n1")
    options.add_argument("--steps", type=int, default=150, help="of each node")
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--accumulate", type=int, default=1, help="batches of one step")
    args = options.parse_args()
    if args.data is None:
        options.error("give --data, the folder of MNIST's idx files")
    if args.node is None:
        raise SystemExit(both())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    train(args)


if __name__ == "__main__":
    main()
