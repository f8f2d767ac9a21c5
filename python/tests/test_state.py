"""The state of an optimiser in a file next to the buffer: what a killed trainer goes on with."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import torch
from torch import nn
from torch.nn import functional as F

import dogwild

# As the trainers: the bits are compared.
torch.set_num_threads(1)
torch.manual_seed(3)
X, Y = torch.randn(64, 20), torch.randint(0, 10, (64,))

#: A trainer: all pictures in each step, so the losses of a run are those of any other.
TRAINS = """
import json, os, signal, sys, torch, dogwild
from torch import nn
from torch.nn import functional as F
job = json.loads(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(3)
X, Y = torch.randn(64, 20), torch.randint(0, 10, (64,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10))
make = getattr(torch.optim, job["optimizer"])
optimizer = make(model.parameters(), **job["options"])
with dogwild.share(model, optimizer, buffer=job["buffer"], state=job["state"]) as shared:
    while (step := shared.local_iterations) < job["steps"]:
        if step == job.get("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        optimizer.step()
        print(json.dumps([step, loss.item()]), flush=True)
    print(json.dumps(["end", F.cross_entropy(model(X), Y).item()]), flush=True)
"""

ADAM = {"optimizer": "Adam", "options": {"lr": 2e-3}}
MOMENTUM = {"optimizer": "SGD", "options": {"lr": 0.02, "momentum": 0.9}}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10))


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()


def read(path):
    """Names and values in a file, by its own words."""
    with open(path, "rb") as file:
        data = file.read()
    magic, _, _, length, whole = struct.unpack_from("<8sIIQQ", data)
    assert magic == b"DOGWOPTM" and whole == len(data)
    begin = -(-(32 + length) // 4096) * 4096
    kinds = {"torch.float32": (torch.float32, 4), "int": (torch.int64, 8)}
    found = {}
    for name, key, dtype, shape, at in json.loads(data[32 : 32 + length])["values"]:
        dtype, size = kinds[dtype]
        part = bytearray(data[begin + at : begin + at + size * max(1, torch.Size(shape).numel())])
        found[name, key] = torch.frombuffer(part, dtype=dtype).view(shape)
    return found


class State(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.path = f"{self.folder}/n0"
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def share(self, model, optimizer, **more):
        return dogwild.share(
            model, optimizer, **{"buffer": self.path, "state": "shared", "name": "a", **more}
        )

    def trainer(self, **job):
        job = {"buffer": self.path, "state": "shared", **job}
        command = [sys.executable, "-W", "ignore", "-c", TRAINS, json.dumps(job)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def said(self, process):
        """What a trainer says until its end, however that comes."""
        lines = process.communicate()[0].splitlines()
        return [json.loads(line) for line in lines if line.endswith("]")]

    def test_a_killed_trainer_goes_on_with_its_momentum(self):
        running = self.trainer(steps=1_000_000, **MOMENTUM)
        for _ in range(20):
            running.stdout.readline()
        running.kill()
        running.wait()
        kept = read(f"{self.path}.optimizer0")
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
        with self.assertLogs("dogwild", "INFO") as said, self.share(model, optimizer, name=None):
            for name, one in model.named_parameters():
                momentum = optimizer.state[one]["momentum_buffer"]
                self.assertTrue(momentum.any(), name)
                self.assertTrue(torch.equal(momentum, kept[name, "momentum_buffer"]), name)
            # What comes now is in the file too.
            train(model, optimizer)
            now = read(f"{self.path}.optimizer0")["0.weight", "momentum_buffer"]
            self.assertTrue(torch.equal(now, optimizer.state[model[0].weight]["momentum_buffer"]))
            self.assertFalse(torch.equal(now, kept["0.weight", "momentum_buffer"]))
        self.assertIn("goes on with the state of 4 of 4 parameters", said.output[0])

    def losses(self, job, steps):
        """What a run says that is not killed."""
        model = net()
        optimizer = getattr(torch.optim, job["optimizer"])(model.parameters(), **job["options"])
        losses = []
        for _ in range(steps + 1):
            losses.append(F.cross_entropy(model(X), Y).item())
            train(model, optimizer)
        return losses

    def test_between_two_steps_a_kill_loses_nothing(self):
        ends = {}
        for state in ("shared", "own"):
            self.path = f"{self.folder}/{state}"
            first = self.trainer(steps=40, dies_at=20, state=state, **ADAM)
            self.assertEqual(len(self.said(first)), 20)
            self.assertEqual(first.returncode, -signal.SIGKILL)
            ends[state] = self.said(self.trainer(steps=40, state=state, **ADAM))[-1]
            same = ends[state] == ["end", self.losses(ADAM, 40)[-1]]
            # Without it the moments are lost, so it is the state that does it.
            self.assertEqual(same, state == "shared", ends)

    def test_a_kill_at_any_moment_costs_a_step_at_most(self):
        steps = 120
        plain = self.losses(ADAM, steps)
        moment = random.Random(1)
        kills, last = 3, 0
        for kill in range(kills):
            running = self.trainer(steps=steps, **ADAM)
            while last < (kill + 1) * 20:
                last = json.loads(running.stdout.readline())[0]
            time.sleep(moment.uniform(0, 0.003))
            running.kill()
            said = self.said(running)
            last = said[-1][0] if said else last
        end = self.said(self.trainer(steps=steps, **ADAM))[-1]
        self.assertEqual(end[0], "end")
        # Each kill may have undone a step, or let a step count twice for the moments.
        self.assertLess(plain[steps - kills], plain[steps // 2])
        self.assertLessEqual(end[1], plain[steps - kills] + 1e-3)

    def test_optimisers_train_as_they_do_without_it(self):
        made = {
            "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1),
            "plain SGD": lambda p: torch.optim.SGD(p, 0.1),
            "Nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
            "Adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
            "foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
            "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
            "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.1),
            "Adadelta": lambda p: torch.optim.Adadelta(p),
            "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
            "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
            "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
            "ASGD": lambda p: torch.optim.ASGD(p, 0.1),
        }
        for name, make in made.items():
            with self.subTest(name):
                self.path = f"{self.folder}/{name}".replace(" ", "-")
                plain, model = net(), net()
                theirs, ours = make(plain.parameters()), make(model.parameters())
                noise = torch.random.get_rng_state()
                with self.share(model, ours) as job:
                    # Nothing of what it will have was there before it is made.
                    self.assertTrue(torch.equal(torch.random.get_rng_state(), noise))
                    train(model, ours, 3)
                    self.assertEqual(job.state_path, f"{self.path}.optimizer0")
                # Another process would have made another optimiser.
                model = net()
                ours = make(model.parameters())
                with self.share(model, ours):
                    train(model, ours, 3)
                    saved = ours.state_dict()["state"]
                train(plain, theirs, 6)
                for one, other in zip(model.parameters(), plain.parameters()):
                    self.assertTrue(torch.equal(one, other.detach() + 0.0))
                for one, other in zip(saved.values(), theirs.state_dict()["state"].values()):
                    for key, value in other.items():
                        if isinstance(value, torch.Tensor):
                            self.assertTrue(torch.equal(one[key], value), key)
                        else:
                            self.assertEqual(one[key], value)

    def test_a_state_that_is_loaded_or_taken_away(self):
        model, other = net(), net()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        donor = torch.optim.Adam(other.parameters(), 0.01)
        train(other, donor, 5)
        with self.share(model, optimizer) as job:
            train(model, optimizer)
            optimizer.load_state_dict(donor.state_dict())
            train(model, optimizer)
            kept = read(job.state_path)
            self.assertEqual(kept["0.bias", "step"], 6)
            now = optimizer.state[model[0].bias]["exp_avg"]
            self.assertTrue(torch.equal(now, kept["0.bias", "exp_avg"]))
            optimizer.state.pop(model[2].bias)
            model[2].bias.grad = None
            optimizer.step()
        # What it is left with is its own.
        kept = read(job.state_path)
        train(model, optimizer)
        after = read(job.state_path)
        self.assertTrue(torch.equal(kept["0.bias", "exp_avg"], after["0.bias", "exp_avg"]))
        again = torch.optim.Adam(model.parameters(), 0.01)
        with self.share(model, again):
            self.assertNotIn(model[2].bias, again.state)
            self.assertEqual(again.state[model[0].bias]["step"], 7)

    def test_what_an_optimiser_has_goes_into_a_new_file(self):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        train(model, optimizer, 3)
        momentum = optimizer.state[model[0].weight]["momentum_buffer"].clone()
        with self.share(model, optimizer) as job:
            kept = read(job.state_path)["0.weight", "momentum_buffer"]
            self.assertTrue(torch.equal(kept, momentum))
            # It lies there: nothing is copied from now on.
            optimizer.state[model[0].weight]["momentum_buffer"].fill_(3.0)
            kept = read(job.state_path)["0.weight", "momentum_buffer"]
            self.assertTrue((kept == 3.0).all())

    def test_processes_of_a_node_have_a_file_each(self):
        models = [net() for _ in range(2)]
        optimizers = [torch.optim.Adam(model.parameters(), 0.01) for model in models]
        with self.share(models[0], optimizers[0]), self.share(models[1], optimizers[1], index=1):
            train(models[0], optimizers[0], 2)
            train(models[1], optimizers[1], 3)
            steps = [read(f"{self.path}.optimizer{k}")["0.bias", "step"] for k in (0, 1)]
            self.assertEqual(steps, [2, 3])

    def refused(self, words, model, optimizer, error=dogwild.BufferMismatch, **more):
        before = model[0].weight.data_ptr()
        with self.assertRaisesRegex(error, words):
            self.share(model, optimizer, **more)
        return before == model[0].weight.data_ptr()

    def test_a_file_of_something_else_is_named(self):
        def adam(model, **more):
            return torch.optim.Adam(model.parameters(), 0.01, **more)

        model = net()
        file = f"{self.path}.optimizer0"
        with self.share(model, adam(model)) as job:
            job.step()
        model = net()
        sgd = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        self.assertTrue(self.refused(f"{file} has the state of Adam, .* with SGD", model, sgd))
        self.assertFalse(sgd.state)
        words = r"0.bias step \(torch.float32, shape \[\]\) where this has 0.weight max_exp_avg_sq"
        self.refused(words, model, adam(model, amsgrad=True))
        fewer = torch.optim.Adam(model[0].parameters())
        self.refused("only it has 2.weight step", model, fewer)
        groups = torch.optim.Adam([*model[2].parameters(), *model[0].parameters()])
        self.refused("0.weight step .* where this has 2.weight step", model, groups)
        with self.share(model, sgd, state="own"):
            pass
        with open(file, "r+b") as damaged:
            damaged.seek(40)
            damaged.write(b"#")
        self.refused(f"{file} is damaged.*remove {file}", model, adam(model))
        os.truncate(file, 20)
        self.refused("does not begin with DOGWOPTM|damaged", model, adam(model))
        with open(file, "wb") as other:
            other.write(b"my only copy of something else")
        self.refused("is not a file of an optimiser's state.*move it away", model, adam(model))
        os.unlink(file)
        os.mkfifo(file)
        self.refused("is not a file", model, adam(model))
        os.unlink(file)
        os.symlink("/etc/passwd", file)
        self.refused("cannot be opened", model, adam(model))

    def test_a_file_of_another_buffer_is_named_or_replaced(self):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        with self.share(model, optimizer):
            train(model, optimizer)
        os.unlink(self.path)
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        words = f"{self.path}.optimizer0 belongs to another buffer of this name: remove"
        self.refused(words, model, optimizer)
        # A buffer that nothing has trained would win over other first weights.
        self.assertFalse(os.path.exists(self.path))
        with self.share(model, optimizer, existing="fresh"):
            self.assertFalse(optimizer.state)
            train(model, optimizer)
        os.unlink(self.path)
        self.refused("belongs to another job", model, optimizer, name="b")
        # What is not dogwild's is not replaced either.
        with open(f"{self.path}.optimizer0", "wb") as other:
            other.write(b"my only copy of something else")
        self.refused("move it away", model, optimizer, existing="fresh")
        self.assertFalse(os.path.exists(self.path))

    def test_what_cannot_be_kept_is_refused_before_anything_is_made(self):
        class Lists(torch.optim.SGD):
            def step(self, closure=None):
                for group in self.param_groups:
                    for one in group["params"]:
                        self.state[one]["seen"] = [1]

        model = net()
        lbfgs = torch.optim.LBFGS(model.parameters())
        self.refused("LBFGS does not step 0.weight by itself", model, lbfgs, dogwild.NotShareable)
        lists = Lists(model.parameters(), 0.1)
        self.refused("Lists keeps 'seen' of 0.weight as a list", model, lists, dogwild.NotShareable)
        self.refused("give share", model, None, ValueError)
        self.refused('give "own" or "shared"', model, lists, ValueError, state="else")
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_state_of_another_kind_is_named_once(self):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with self.share(model, optimizer), self.assertLogs("dogwild", "WARNING") as said:
            optimizer.param_groups[0]["momentum"] = 0.9
            train(model, optimizer, 3)
        self.assertEqual(len(said.output), 4)
        self.assertRegex(said.output[0], r"0.weight: momentum_buffer \(float32.*is not kept in")

    def test_a_full_file_system(self):
        folder = f"{self.folder}/small"
        os.mkdir(folder)
        code = (
            "import os, torch, dogwild, sys\n"
            "model = torch.nn.Linear(1000, 1000)\n"
            "optimizer = torch.optim.Adam(model.parameters())\n"
            "path = sys.argv[1] + '/n0'\n"
            "try: dogwild.share(model, optimizer, buffer=path, state='shared')\n"
            "except dogwild.NoSpace as error: print('refused:', error)\n"
            "print(os.listdir(sys.argv[1]), len(optimizer.state))\n"
            "dogwild.share(model, optimizer, buffer=path)\n"
        )
        mount = f'mount -t tmpfs -o size=10m none "{folder}" && exec "$0" -c "$1" "{folder}"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount]
        ended = subprocess.run([*command, sys.executable, code], capture_output=True, text=True)
        words = "refused: .*n0.optimizer0 for the optimiser's state needs 7.6 MiB, .* MiB free.*own"
        self.assertRegex(ended.stdout, words, ended.stderr)
        self.assertIn("[] 0", ended.stdout)
        self.assertEqual(ended.returncode, 0, ended.stderr)


if __name__ == "__main__":
    unittest.main()
