"""Processes that begin one job together, and rates that follow all their steps."""

import copy
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn
from torch.nn import functional as F

import dogwild

X, Y = torch.randn(64, 20), torch.randint(0, 10, (64,))

#: A process of its own, with weights of its own.
JOINS = """
import sys, torch, dogwild
from torch import nn
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10))
dogwild.share(model, buffer=sys.argv[1], index=1)
"""


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10))


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()


class Begin(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.path = f"{self.folder}/n0"
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def share(self, model, optimizer=None, **more):
        return dogwild.share(model, optimizer, buffer=self.path, **more)

    def test_processes_that_begin_with_other_weights_are_named(self):
        other = net()
        with torch.no_grad():
            other[2].bias[3] += 1.0
        with self.share(net()) as job:
            with self.assertRaisesRegex(dogwild.WeightsDiffer, "index 1 .*index 0.*2.bias differs"):
                self.share(other, index=1)
            # Who is refused has left nothing, and is as before.
            roles = [one[:2] for one in job.buffer.components() if one[3]]
            self.assertEqual(roles, [("solver", 0)])
            self.assertFalse(torch.equal(other[2].bias, job.state_dict()["2.bias"]))
            taken = copy.deepcopy(other)
            with self.share(taken, index=1, check_weights=False):
                self.assertTrue(torch.equal(taken[2].bias, job.state_dict()["2.bias"]))
            job.step()
            with self.assertRaisesRegex(dogwild.WeightsDiffer, "has been trained since"):
                self.share(other, index=1)
            with self.share(net(), index=1):
                pass

    def test_a_process_that_began_later_joins(self):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with self.share(model, optimizer):
            train(model, optimizer)
            command = [sys.executable, "-W", "ignore", "-c", JOINS, self.path]
            ended = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        # A job that goes on has its own weights.
        other = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10))
        with self.share(other):
            self.assertTrue(torch.equal(other[0].weight, model[0].weight))

    def test_rates_follow_the_steps_of_all(self):
        def halved(steps):
            return 0.5 ** (steps // 4)

        first, second = net(), net()
        groups = [
            {"params": first[0].parameters(), "lr": 0.2},
            {"params": first[2].parameters()},
        ]
        one = torch.optim.SGD(groups, 0.1)
        other = torch.optim.SGD(second.parameters(), 0.1)
        with self.share(first, one) as job, self.share(second, other, index=1):
            schedule = dogwild.ClusterLR(one, halved, job)
            self.assertIsInstance(schedule, torch.optim.lr_scheduler._LRScheduler)
            self.assertEqual([group["lr"] for group in one.param_groups], [0.2, 0.1])
            train(second, other, 3)
            train(first, one)
            schedule.step()
            self.assertEqual(schedule.get_last_lr(), [0.1, 0.05])
            train(second, other, 4)
            schedule.step()
            self.assertEqual([group["lr"] for group in one.param_groups], [0.05, 0.025])
            kept = schedule.state_dict()
        # A job that goes on has its schedule from the buffer, and its first rates from the user.
        again = net()
        optimizer = torch.optim.SGD(again.parameters(), 0.4)
        with self.share(again, optimizer) as job:
            schedule = dogwild.ClusterLR(optimizer, halved, job)
            self.assertEqual(schedule.get_last_lr(), [0.1])
            schedule.load_state_dict({"base_lrs": kept["base_lrs"][:1]})
            train(again, optimizer)
            schedule.step()
            self.assertEqual(schedule.get_last_lr(), [0.05])


if __name__ == "__main__":
    unittest.main()
