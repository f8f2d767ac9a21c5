"""A model whose parameters lie on a device, in step with the buffer: the host device, which works
as a GPU does, and a GPU where there is one."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch
from torch import nn
from torch.nn import functional as F

import dogwild
from dogwild.device import Exported

X, Y = torch.randn(64, 20), torch.randint(0, 10, (64,))

#: A process that trains on a device of its own until it is killed.
TRAINS = """
import sys, torch, dogwild
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
path, index, place, device = sys.argv[1:]
model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10)).to(place)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with dogwild.share(model, optimizer, buffer=path, index=int(index), device=device or None) as job:
    print("ready", flush=True)
    while not job.stop_requested:
        optimizer.zero_grad()
        x, y = torch.randn(8, 20).to(place), torch.randint(0, 10, (8,)).to(place)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        print("step", flush=True)
"""


def net(place="cpu"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10)).to(place)


def bits(model):
    flat = torch.cat([one.detach().flatten() for one in model.parameters()])
    return flat.cpu().view(torch.int32)


class OnTheHostDevice(unittest.TestCase):
    #: Where the model is, and the device that `share` is told.
    place, device = "cpu", "host"

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.path = f"{self.folder}/n0"

    def share(self, model, optimizer=None, **more):
        return dogwild.share(model, optimizer, buffer=self.path, **{"device": self.device, **more})

    def net(self):
        return net(self.place)

    def trainer(self, index):
        """The command of a process that trains on a device of its own."""
        return [sys.executable, "-W", "ignore", "-c", TRAINS, *self.where(index)]

    def where(self, index):
        return self.path, str(index), self.place, self.device or ""

    def in_buffer(self):
        """The weights of the buffer, in the order of the model."""
        live = dogwild.attach(self.path)
        flat = torch.cat([torch.tensor(live[name]).flatten() for name, _ in net().named_parameters()])
        return flat.view(torch.int32)

    def train(self, model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(X.to(self.place)), Y.to(self.place)).backward()
            optimizer.step()

    def test_steps_reach_the_buffer_and_the_buffer_reaches_the_model(self):
        model, plain = self.net(), self.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with self.share(model, optimizer) as job:
            places = [one.data_ptr() for one in model.parameters()]
            memory = job.buffer.address
            self.assertFalse(memory <= places[0] < memory + 4 * len(job.buffer))
            self.assertTrue(torch.equal(bits(model), bits(plain)))
            self.train(model, optimizer, 30)
            self.assertEqual(places, [one.data_ptr() for one in model.parameters()])
            self.assertEqual(job.iterations, 30)
            self.assertTrue(job.finish(60))
            self.assertTrue(torch.equal(self.in_buffer(), bits(model)))
            # Another component adds to the buffer.
            before = model[0].weight[0, 0].item()
            flat = torch.frombuffer(job.buffer, dtype=torch.float32)
            flat[job.buffer.tensors()[0][2]] += 1.0
            self.assertTrue(job.finish(60))
            self.assertAlmostEqual(model[0].weight[0, 0].item(), before + 1.0, 5)
        # Nothing else trains: these are the steps of the optimiser alone, but for what is lost where
        # a step meets a position, as on the host device it may.
        alone = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
        self.train(plain, alone, 30)
        plain[0].weight.data[0, 0] += 1.0
        far = lambda a, b: sum(
            (x - y).abs().sum().item() for x, y in zip(a.parameters(), b.parameters())
        )
        self.assertLess(far(model, plain), 0.3 * far(plain, self.net()))
        roles = dogwild.Buffer.open(self.path).components()
        self.assertEqual([one for one in roles if one[3]], [])
        # What was done is in the buffer, also without finish().
        self.assertTrue(torch.equal(self.in_buffer(), bits(model)))

    def test_what_close_finds_on_the_device_is_in_the_buffer(self):
        model = self.net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        job = self.share(model, optimizer)
        self.train(model, optimizer, 20)
        job.close()
        self.assertTrue(torch.equal(self.in_buffer(), bits(model)))
        # The model goes on by itself, and the buffer stays.
        there = self.in_buffer()
        self.train(model, optimizer, 2)
        self.assertTrue(torch.equal(self.in_buffer(), there))
        self.assertFalse(torch.equal(bits(model), there))

    def test_processes_on_devices_of_their_own(self):
        """One that is killed, and one that shares in its place, next to one that goes on."""
        start = lambda index: subprocess.Popen(
            self.trainer(index),
            stdout=subprocess.PIPE,
            text=True,
        )
        def steps(process, number):
            for _ in range(number):
                self.assertIn(process.stdout.readline(), ("ready\n", "step\n"))

        processes = [start(0)]
        steps(processes[0], 1)
        processes.append(start(1))
        for process in processes:
            steps(process, 20)
        processes[1].send_signal(signal.SIGKILL)
        processes[1].wait()
        processes[1].stdout.close()
        processes[1] = start(1)
        steps(processes[1], 20)
        dogwild.Buffer.open(self.path).stop = True
        for process in processes:
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0)
        buffer = dogwild.Buffer.open(self.path)
        self.assertGreater(sum(buffer.iterations()), 60)
        # Both components have left; the weights are numbers.
        self.assertEqual([one for one in buffer.components() if one[3]], [])
        self.assertTrue(torch.frombuffer(buffer, dtype=torch.float32).isfinite().all())

    def test_two_components_of_one_index(self):
        model = self.net()
        with self.share(model):
            buffer = dogwild.Buffer.open(self.path)
            from dogwild.device import OnDevice

            with self.assertRaisesRegex(dogwild.BufferInUse, "in use by process"):
                OnDevice(buffer, torch.device(self.place), 0)
            other = OnDevice(buffer, torch.device(self.place), 1)
            with torch.no_grad():
                model[2].bias.add_(1.0)
            at = next(at for name, _, at in buffer.tensors() if name == "2.bias")
            until = time.monotonic() + 60
            while not torch.equal(other.flat[at : at + 10], model[2].bias.detach()):
                self.assertLess(time.monotonic(), until, "the other copy has the step")
            other.close()

    def test_a_forked_child_leaves_the_device_alone(self):
        model = self.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.share(model, optimizer) as job:
            child = os.fork()
            if child == 0:
                del job, model, optimizer
                os._exit(0)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.train(model, optimizer, 5)
            self.assertTrue(job.finish(60))
            self.assertTrue(torch.equal(self.in_buffer(), bits(model)))

    def test_ways_out_and_weights_that_are_no_numbers(self):
        model = self.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.share(model, optimizer) as job:
            model[0].weight.data = model[0].weight.detach().clone()
            with self.assertRaisesRegex(dogwild.Detached, "0.weight does not lie in the buffer"):
                self.train(model, optimizer, 4)
        model = self.net()
        with self.share(model) as job:
            # The buffer gets none of it, and the device gets that weight from the buffer again.
            with torch.no_grad():
                model[2].bias[3] = float("nan")
            until = time.monotonic() + 60
            while not model[2].bias.isfinite().all():
                self.assertLess(time.monotonic(), until, "the weight is healed")
            self.assertTrue(job.finish(60))
            self.assertTrue(torch.equal(self.in_buffer(), bits(model)))
            self.assertTrue(torch.frombuffer(job.buffer, dtype=torch.float32).isfinite().all())

    def test_an_interpreter_that_ends_without_close(self):
        end = TRAINS.split("    print")[0].replace("with ", "job = ").replace(" as job:", "")
        end += "\nwith torch.no_grad():\n    model[2].bias.add_(1.0)\n"
        command = [sys.executable, "-W", "ignore", "-c", end, *self.where(0)]
        subprocess.run(command, check=True)
        after = torch.tensor(dogwild.attach(self.path)["2.bias"])
        torch.testing.assert_close(after, net()[2].bias.detach() + 1.0)

    def test_what_is_refused(self):
        model = self.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for more, words in (
            ({"device": "gpu"}, 'give "host", or nothing'),
            ({"state": "shared"}, "has its state there"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                self.share(model, optimizer, **more)
        apart = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2).to("meta"))
        with self.assertRaisesRegex(dogwild.NotShareable, "1.weight is on meta"):
            self.share(apart)
        self.assertEqual(os.listdir(self.folder), [])


@unittest.skipUnless(torch.cuda.is_available(), "torch finds no GPU")
class OnAGpu(OnTheHostDevice):
    """As on the host device; no update is lost here, since steps and positions are on one stream."""

    place, device = "cuda:0", None


class Interface(unittest.TestCase):
    def test_what_other_libraries_read(self):
        """CUDA's array interface, version 3, with what torch and CuPy ask of it."""
        folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        with dogwild.share(net(), buffer=f"{folder}/n0", device="host") as job:
            told = Exported(job._device._weights).__cuda_array_interface__
            self.assertEqual(told["version"], 3)
            self.assertEqual(told["typestr"], "<f4")
            self.assertEqual(told["data"], (job._device.flat.data_ptr(), False))
            self.assertGreaterEqual(told["shape"][0], len(job.buffer))


if __name__ == "__main__":
    unittest.main()
