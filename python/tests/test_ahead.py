"""Optimisers that walk ahead on four nodes of one host: they learn as one process does.

All nodes are in this process, each with a model, a buffer and a streamer of its own, and take
turns. So a test costs no more than its steps.
"""

import functools
import os
import shutil
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

import dogwild

torch.set_num_threads(1)
STEPS = 320


def mlp(*widths):
    layers = []
    for one, other in zip(widths, widths[1:]):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def points(number, seed):
    """Points, and what a model that no one knows says of them."""
    torch.manual_seed(42)
    teacher = mlp(20, 30, 10)
    with torch.no_grad():
        for one in teacher.parameters():
            one.mul_(3.0)
        x = torch.randn(number, 20, generator=torch.Generator().manual_seed(seed))
        return x, teacher(x).argmax(1)


X, Y = points(20_000, 1)
TEST_X, TEST_Y = points(4_000, 2)

# Of steps as short as these: one of more than 1 % of the weights is not made longer.
OPTIMISERS = {
    "momentum": (torch.optim.SGD, {"lr": 0.002, "momentum": 0.9}),
    "Nesterov": (torch.optim.SGD, {"lr": 0.002, "momentum": 0.9, "nesterov": True}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-4}),
}


class Learner:
    """A process of a job: a model, its optimiser, and its order of the points."""

    def __init__(self, optimizer, seed):
        torch.manual_seed(0)
        # Of several chunks, so that each node masters some of them.
        self.model = mlp(20, 400, 10)
        kind, options = optimizer
        self.optimizer = kind(self.model.parameters(), **options)
        self.order = torch.Generator().manual_seed(seed)
        self.losses = []
        self.strides = []
        self.job = None
        self.averages = False

    def step(self):
        some = torch.randint(len(X), (32,), generator=self.order)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(X[some]), Y[some])
        loss.backward()
        with self.job.averaging() if self.averages else nullcontext():
            self.optimizer.step()
            stride = self.job.stride if self.job else 1.0
        self.losses.append(loss.item())
        if self.job is not None:
            self.strides.append(stride)

    def accuracy(self):
        with torch.no_grad():
            return (self.model(TEST_X).argmax(1) == TEST_Y).float().mean().item()


@functools.cache
def plain(name):
    """How one process learns with as many steps as all have together."""
    one = Learner(OPTIMISERS[name], 100)
    for _ in range(STEPS):
        one.step()
    return one.accuracy(), max(one.losses)


class WalkAhead(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.jobs = []
        self.addCleanup(self.close)

    def close(self):
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda job: job.close(), self.jobs))

    def cluster(self, name, nodes=4, processes=1, **more):
        """The learners of a job that is ready, node by node."""
        places = [(node, index) for node in range(nodes) for index in range(processes)]
        learners = [Learner(OPTIMISERS[name], 200 + place) for place in range(len(places))]

        def share(learner, place):
            learner.job = dogwild.share(
                learner.model,
                learner.optimizer,
                name=os.path.basename(self.folder),
                buffer=f"{self.folder}/n{place[0]}",
                node=place[0],
                nodes=nodes,
                index=place[1],
                timeout=120,
                **more,
            )
            self.jobs.append(learner.job)

        with ThreadPoolExecutor(len(places)) as threads:
            list(threads.map(share, learners, places))
        self.learners = learners
        return learners

    def rounds(self, learners, number):
        for _ in range(number):
            for one in learners:
                one.step()
            done = sum(len(one.losses) for one in self.learners)
            # A machine under load has streamers that come late: no node is two rounds ahead.
            for one in learners:
                while one.job.iterations < done - 2 * len(self.learners):
                    time.sleep(0.001)
            time.sleep(0.001)

    def finish(self, learners):
        with ThreadPoolExecutor(len(learners)) as threads:
            equal = list(threads.map(lambda one: one.job.finish(120), learners))
        self.assertEqual(equal, [True] * len(learners))
        return [one.accuracy() for one in learners]

    def check(self, name, learners):
        """As many steps of all are worth as much as those of one process."""
        found = self.finish(learners)
        self.assertEqual(len(set(found)), 1)
        wanted, worst = plain(name)
        strides = [sum(one.strides) / len(one.strides) for one in learners]
        self.assertGreater(found[0], wanted - 0.03, strides)
        self.assertGreater(min(strides), 1.5)
        # No step made it worse than those who know nothing.
        self.assertLess(max(loss for one in learners for loss in one.losses), 1.5 * worst)

    def learns(self, name, **more):
        learners = self.cluster(name, **more)
        self.rounds(learners, STEPS // len(learners))
        self.check(name, learners)

    def test_nesterov(self):
        self.learns("Nesterov")

    def test_on_devices(self):
        self.learns("momentum", device="host")

    def test_rmsprop(self):
        self.learns("RMSprop")

    def test_two_processes_on_each_node(self):
        self.learns("momentum", processes=2)

    def test_one_that_stands_still_for_long(self):
        learners = self.cluster("momentum")
        slow, others = learners[1], [learners[0], *learners[2:]]
        self.rounds(learners, 16)
        self.rounds(others, 64)
        # It goes on with the portion and the momentum that it had before.
        self.rounds(learners, 12)
        self.rounds([slow], STEPS - sum(len(one.losses) for one in learners))
        self.check("momentum", learners)

    def test_averages_of_plain_steps(self):
        """For a part of the training no node walks ahead; then all do, and none has lost anything."""
        learners = self.cluster("momentum")
        for averages in (True, False):
            for one in learners:
                one.averages = averages
            self.rounds(learners, STEPS // len(learners) // 2)
        half = STEPS // len(learners) // 2
        for one in learners:
            self.assertEqual(set(one.strides[:half]), {1.0})
            self.assertGreater(sum(one.strides[half:]) / half, 1.5)
        found = self.finish(learners)
        self.assertEqual(len(set(found)), 1)
        # Half of the steps counted for a quarter.
        self.assertGreater(plain("momentum")[0], found[0])
        self.assertGreater(found[0], 0.5)

    def test_without_it_the_same_steps_are_worth_less(self):
        learners = self.cluster("RMSprop", walk_ahead=False)
        self.rounds(learners, STEPS // len(learners))
        self.assertLess(self.finish(learners)[0], plain("RMSprop")[0] - 0.04)


if __name__ == "__main__":
    unittest.main()
