"""Time to 98 % on MNIST by two processes of one host, in turns: `dogwild.share` on one buffer and on
two nodes, Hogwild of torch.multiprocessing, DistributedDataParallel over Gloo, and PCCL where it is
installed (pypccl 1.0.0, which needs glibc 2.38 and a libcuda.so.1).

    DOGWILD_DATA=DIR python python/benches/to_accuracy.py --rounds 5
    DOGWILD_DATA=DIR python python/benches/to_accuracy.py --ways share ddp --target 0.97
    DOGWILD_DATA=DIR dogwild-lab run 2 --rate 100Mbit --loss 10% -- \\
        python python/benches/to_accuracy.py --ways nodes ddp --ddp-steps 100

In a lab (as root; DOGWILD_LAB names the program) each process is on its own host, which leaves
``nodes`` and ``ddp``.

LeNet, batches of 64, SGD with momentum; one seed for each round, the same for all ways. Process 0
keeps a copy of its weights every 50 of its steps, with the time. Copies are tested after the end,
on the full test set, so no test is in the times. A time is that since all were ready.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from mnist_share import accuracy, images, lenet  # noqa: E402

WAYS = ("share", "nodes", "hogwild", "ddp", "pccl")
#: Those of which each process may be on a host of its own.
OVER_A_LINK = ("nodes", "ddp", "pccl")
EVERY = 50


class Learner:
    """One process: its model, its order of the images, its copies."""

    def __init__(self, data: Path, seed: int, rank: int) -> None:
        torch.set_num_threads(1)
        self.x, self.y = images(data, "train")
        torch.manual_seed(seed)
        self.model: nn.Module = lenet()
        self.order = torch.Generator().manual_seed(1000 * seed + rank)
        self.copies: list[tuple[float, int, dict[str, torch.Tensor]]] = []

    def train(self, net: nn.Module, steps: int, lr: float, keep: bool) -> None:
        """Steps of ``net``, whose parameters are those of the model."""
        optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
        self.steps(net, optimizer, steps, keep)

    def steps(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, steps: int, keep: bool
    ) -> None:
        began = time.monotonic()
        for step in range(1, steps + 1):
            some = torch.randint(len(self.x), (64,), generator=self.order)
            optimizer.zero_grad()
            F.cross_entropy(net(self.x[some]), self.y[some]).backward()
            optimizer.step()
            if keep and step % EVERY == 0:
                copy = {key: one.detach().clone() for key, one in self.model.state_dict().items()}
                self.copies.append((time.monotonic() - began, step, copy))

    def result(self, data: Path, target: float) -> dict[str, Any]:
        """When the target was reached first, s, and after how many own steps."""
        # All others have ended.
        torch.set_num_threads(2)
        x, y = images(data, "t10k")
        model, best = lenet(), 0.0
        for seconds, step, copy in self.copies:
            model.load_state_dict(copy)
            now = accuracy(model, x, y)
            best = max(best, now)
            if now >= target:
                return {"s": seconds, "steps": step, "accuracy": now}
        last = self.copies[-1][0] / self.copies[-1][1]
        return {"s": None, "accuracy": best, "s_per_step": last}


def share(args: argparse.Namespace, rank: int) -> None:
    """A process on one buffer, or a node (``nodes``)."""
    import dogwild

    one = Learner(args.data, args.seed, rank)
    optimizer = torch.optim.SGD(one.model.parameters(), lr=args.lr, momentum=0.9)
    several = args.way == "nodes"
    with dogwild.share(
        one.model,
        optimizer,
        name=args.meeting,
        buffer=f"{args.folder}/n{rank if several else 0}",
        node=rank if several else 0,
        nodes=2 if several else 1,
        index=0 if several else rank,
        iface="eth0" if in_a_lab() else None,
    ) as job:
        Path(args.folder, f"ready{rank}").touch()
        while not Path(args.folder, f"ready{1 - rank}").exists():
            time.sleep(0.001)
        one.steps(one.model, optimizer, args.steps, rank == 0)
        job.finish()
    if rank == 0:
        print(json.dumps(one.result(args.data, args.target)), flush=True)


def _hogwild(rank: int, model: nn.Module, args: argparse.Namespace, ready: Any) -> None:
    one = Learner(args.data, args.seed, rank)
    one.model = model
    ready.wait()
    one.train(model, args.steps, args.lr, rank == 0)
    if rank == 0:
        print(json.dumps(one.result(args.data, args.target)), flush=True)


def hogwild(args: argparse.Namespace) -> None:
    """As examples/mnist_hogwild of PyTorch: a model in shared memory, an optimiser for each."""
    import torch.multiprocessing as mp

    torch.manual_seed(args.seed)
    model = lenet()
    model.share_memory()
    ready = mp.get_context("spawn").Barrier(2)
    mp.spawn(_hogwild, (model, args, ready), nprocs=2)  # type: ignore[no-untyped-call]


def ddp(args: argparse.Namespace, rank: int) -> None:
    """DistributedDataParallel: means of gradients, in step."""
    import torch.distributed as dist

    dist.init_process_group("gloo", f"tcp://{args.meeting}", rank=rank, world_size=2)
    one = Learner(args.data, args.seed, rank)
    net = nn.parallel.DistributedDataParallel(one.model)
    dist.barrier()
    one.train(net, args.steps, args.lr, rank == 0)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(one.result(args.data, args.target)), flush=True)


def pccl(args: argparse.Namespace, rank: int) -> None:
    """PCCL: the same means as DDP, of all gradients at once, by its ring."""
    import pccl as library

    if rank == 0:
        master: Any = library.MasterNode(listen_address=args.meeting)
        master.run()
    ring: Any = library.Communicator(args.meeting)
    ring.connect(n_attempts=15)
    while ring.get_attribute(library.Attribute.GLOBAL_WORLD_SIZE) < 2:
        if ring.are_peers_pending():
            ring.update_topology()
        time.sleep(0.001)
    one = Learner(args.data, args.seed, rank)
    parameters = list(one.model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=args.lr, momentum=0.9)

    def mean(*_: Any) -> None:
        mine = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        ring.all_reduce(mine, mine, op=library.ReduceOp.AVG)
        for parameter, part in zip(parameters, mine.split([p.numel() for p in parameters])):
            parameter.grad = part.view_as(parameter)

    # Both begin at once.
    ready = torch.zeros(1)
    ring.all_reduce(ready, ready, op=library.ReduceOp.AVG)
    optimizer.register_step_pre_hook(mean)
    one.steps(one.model, optimizer, args.steps, rank == 0)
    if rank == 0:
        print(json.dumps(one.result(args.data, args.target)), flush=True)
    # Its own threads end with the process.
    sys.stdout.flush()
    os._exit(0)


def in_a_lab() -> bool:
    return "DOGWILD_LAB_ADDRS" in os.environ


def on_host(rank: str) -> list[str]:
    """What starts a process on its host of the lab, if there is one."""
    program = os.environ.get("DOGWILD_LAB", "dogwild-lab")
    return [program, "exec", ".", rank, "--"] if in_a_lab() else []


def free_address() -> str:
    """Where process 0 waits for the other."""
    host = os.environ.get("DOGWILD_LAB_ADDRS", "127.0.0.1").split()[0]
    with socket.socket() as free:
        free.bind((host, 0))
        return f"{host}:{free.getsockname()[1]}"


def run(args: argparse.Namespace, way: str, seed: int) -> dict[str, Any]:
    """One training by one way, in processes of its own."""
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
    in_step = way in ("ddp", "pccl")
    meeting = free_address() if in_step else os.path.basename(folder)
    steps = args.ddp_steps if in_step and args.ddp_steps else args.steps
    options = ["--way", way, "--seed", str(seed), "--folder", folder, "--meeting", meeting]
    options += ["--data", str(args.data), "--steps", str(steps), "--lr", str(args.lr)]
    options += ["--target", str(args.target)]
    ranks = ["0"] if way == "hogwild" else ["0", "1"]
    try:
        processes = [
            subprocess.Popen(
                [*on_host(rank), sys.executable, "-W", "ignore", __file__, *options, "--rank", rank],
                stdout=subprocess.PIPE,
                env=dict(os.environ, GLOO_SOCKET_IFNAME="eth0" if in_a_lab() else "lo"),
                text=True,
            )
            for rank in ranks
        ]
        said = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(f"{way} failed")
        # PCCL says more on standard output.
        results = [line for line in said[0].splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(results[-1])
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    default = os.environ.get("DOGWILD_DATA")
    options = argparse.ArgumentParser(description="Time to an accuracy, in turns.")
    options.add_argument("--data", type=Path, default=Path(default, "mnist") if default else None)
    options.add_argument("--rounds", type=int, default=5, help="seeds, each by all ways")
    options.add_argument("--ways", nargs="+", default=default_ways(), choices=WAYS)
    options.add_argument("--steps", type=int, default=900, help="of each process")
    options.add_argument("--ddp-steps", type=int, help="the same of DDP and PCCL, over a slow link")
    options.add_argument("--target", type=float, default=0.98)
    options.add_argument("--lr", type=float, default=0.01)
    options.add_argument("--seed", type=int, default=1, help="of the first round")
    for name in ("--way", "--folder", "--meeting"):
        options.add_argument(name, help=argparse.SUPPRESS)
    options.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.data is None:
        options.error("give --data, the folder of MNIST's idx files")
    if in_a_lab() and not args.way and not set(args.ways) <= set(OVER_A_LINK):
        options.error(f"--ways: in a lab of hosts give {' or '.join(OVER_A_LINK)}")
    if not args.way and not set(args.ways) <= set(default_ways()):
        options.error("--ways pccl: it is not here (pip install pypccl; glibc 2.38, libcuda.so.1)")
    if args.way == "hogwild":
        hogwild(args)
    elif args.way == "ddp":
        ddp(args, args.rank)
    elif args.way == "pccl":
        pccl(args, args.rank)
    elif args.way:
        share(args, args.rank)
    else:
        compare(args)


def default_ways() -> list[str]:
    """All that are installed."""
    return [way for way in WAYS if way != "pccl" or importlib.util.find_spec("pccl")]


def compare(args: argparse.Namespace) -> None:
    """All ways in turns; a table at the end."""
    times: dict[str, list[float]] = {way: [] for way in args.ways}
    for seed in range(args.seed, args.seed + args.rounds):
        for way in args.ways:
            found = run(args, way, seed)
            print(f"seed {seed}, {way}: {json.dumps(found)}", flush=True)
            times[way].append(found["s"] if found["s"] is not None else float("inf"))
    for way, all_s in times.items():
        median, least, most = statistics.median(all_s), min(all_s), max(all_s)
        print(f"{way:8} {median:6.1f} s to {args.target:.0%} ({least:.1f} to {most:.1f})")


if __name__ == "__main__":
    main()
