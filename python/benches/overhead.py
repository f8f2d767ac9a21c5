"""What a step costs more on a shared buffer: LeNet, batches of 64, one thread on a core of its own.

    python python/benches/overhead.py --rounds 15

Ways, in turns: `plain` is the model as it is, `view` has its parameters in a buffer, `stream` in
that of a node whose streamer keeps it in step with another node, and `ahead` walks ahead too (the
default of `share`). The other node trains likewise. All but the steps that are measured has the
other core. CPU time is that of the thread; figures are medians of the rounds, as times of `plain`
in the same round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import dogwild

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from mnist_share import lenet  # noqa: E402


class Way:
    """A model with its optimiser, on random images."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model: nn.Module = lenet()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.x, self.y = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))

    def steps(self, number: int) -> tuple[float, float]:
        """Seconds of CPU and of the clock for a step."""
        cpu, clock = time.thread_time(), time.perf_counter()
        for _ in range(number):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
        return (time.thread_time() - cpu) / number, (time.perf_counter() - clock) / number


def other(folder: str, name: str) -> None:
    """The other node of a job: it trains at a pace until its folder is gone."""
    one = Way()
    with dogwild.share(
        one.model, one.optimizer, name=name, buffer=f"{folder}/{name}-1", node=1, nodes=2
    ):
        while os.path.exists(folder):
            one.steps(1)
            time.sleep(0.1)


def main() -> None:
    options = argparse.ArgumentParser(description="What a step on a shared buffer costs.")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--steps", type=int, default=30, help="of each way in a round")
    options.add_argument("--other", nargs=2, help=argparse.SUPPRESS)
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.other:
        other(*args.other)
        return
    own, rest = sorted(os.sched_getaffinity(0))[:2]
    # What is started by this process, streamers too, runs on the other core.
    os.sched_setaffinity(0, {rest})
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
    ways = {way: Way() for way in ("plain", "view", "stream", "ahead")}
    others = [
        subprocess.Popen([sys.executable, "-W", "ignore", __file__, "--other", folder, name])
        for name in ("stream", "ahead")
    ]
    jobs = [dogwild.share(ways["view"].model, ways["view"].optimizer, buffer=f"{folder}/view")]
    for name in ("stream", "ahead"):
        jobs.append(
            dogwild.share(
                ways[name].model,
                ways[name].optimizer,
                name=name,
                buffer=f"{folder}/{name}-0",
                node=0,
                nodes=2,
                walk_ahead=name == "ahead",
            )
        )
    try:
        os.sched_setaffinity(0, {own})
        measure(ways, args.rounds, args.steps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for job in jobs:
            job.close()
        for process in others:
            process.wait()


def measure(ways: dict[str, Way], rounds: int, steps: int) -> None:
    """All ways in turns, each round beginning with another one."""
    ratios: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    plain = []
    names = list(ways)
    for way in ways.values():
        way.steps(5)
    for turn in range(rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        found = {name: ways[name].steps(steps) for name in order}
        plain.append(found["plain"])
        for name, (cpu, clock) in found.items():
            ratios[name].append((cpu / found["plain"][0], clock / found["plain"][1]))
    cpu, clock = (1e3 * statistics.median(one) for one in zip(*plain))
    print(f"plain: {cpu:.2f} ms of CPU, {clock:.2f} ms a step")
    for name in names[1:]:
        for what, all_ratios in zip(("CPU", "clock"), zip(*ratios[name])):
            low, high = statistics.quantiles(all_ratios, n=4)[0::2]
            median = statistics.median(all_ratios)
            print(f"{name:7} {what:6} {median:.3f} times plain (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
