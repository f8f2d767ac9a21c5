"""Two nodes on loopback, each a process with a streamer: equal bits whatever happens on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import torch
from torch import nn

import dogwild

HERE = os.path.dirname(os.path.abspath(__file__))


#: A node whose gradients are ones: how far the weights go counts steps.
WALKS = """
import json, sys, time, torch, dogwild
from torch import nn
folder, node, ahead, rate, steps = sys.argv[1:]
torch.set_num_threads(1)
model = nn.Linear(200, 100)
with torch.no_grad():
    [one.fill_(1.0) for one in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=float(rate))
strides = []
with dogwild.share(
    model,
    optimizer,
    name=folder,
    buffer=f"{folder}/n{node}",
    node=int(node),
    nodes=2,
    walk_ahead=ahead == "ahead",
) as job:
    places = [one.data_ptr() for one in model.parameters()]
    for _ in range(int(steps)):
        optimizer.zero_grad()
        sum(one.sum() for one in model.parameters()).backward()
        optimizer.step()
        strides.append(job.stride)
        time.sleep(0.005)
    assert places == [one.data_ptr() for one in model.parameters()]
    equal = job.finish()
    walked = 1.0 - model.weight.mean().item()
    print(json.dumps([equal, walked / float(rate) / job.iterations, max(strides)]))
"""


class Worker:
    """A process of worker.py: what it says, and its log."""

    def __init__(self, folder, node, *options, timeout=60, **environ):
        name = os.path.basename(folder)
        self.process = subprocess.Popen(
            [sys.executable, f"{HERE}/worker.py", folder, str(node), name, str(timeout), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        self.log = []
        self._seen = threading.Condition()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self):
        for line in self.process.stderr:
            with self._seen:
                self.log.append(line.rstrip())
                self._seen.notify_all()
        with self._seen:
            self.log.append("END")
            self._seen.notify_all()

    def logs(self, words):
        """Waits for a line of the log with `words`."""
        with self._seen:
            found = lambda: any(words in line for line in self.log) or "END" in self.log
            self._seen.wait_for(found)
            if not any(words in line for line in self.log):
                raise AssertionError(f"never logged {words!r}:\n" + "\n".join(self.log))

    def next(self, key):
        """The next of what it says, which must have `key`."""
        line = self.process.stdout.readline()
        if not line:
            self._thread.join()
            raise AssertionError(f"ended before {key!r}:\n" + "\n".join(self.log))
        return json.loads(line)[key], json.loads(line)

    def trains(self):
        """Waits until it has made some steps; gives the process number of its streamer."""
        streamer, _ = self.next("ready")
        self.next("steps")
        return streamer

    def end(self):
        _, said = self.next("equal")
        self.process.wait()
        return said

    def fails(self, words):
        self.process.wait(60)
        self.logs(words)
        self._thread.join()
        return [line for line in self.log if words in line][-1]

    def kill(self):
        self.process.kill()
        self.process.wait()


class Nodes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.workers = []

    def tearDown(self):
        for worker in self.workers:
            worker.kill()
            worker.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def worker(self, node, *options, **more):
        self.workers.append(Worker(self.folder, node, *options, **more))
        return self.workers[-1]

    def stop(self):
        open(f"{self.folder}/stop", "w").close()

    def ends_equal(self, *workers):
        self.stop()
        said = [worker.end() for worker in workers]
        self.assertEqual([one["equal"] for one in said], [True] * len(said))
        self.assertEqual(len({one["digest"] for one in said}), 1)
        self.assertEqual(len({one["weights"] for one in said}), 1)
        self.assertTrue(all(one["iterations"] > 200 for one in said), said)
        return said

    def test_two_nodes_end_equal(self):
        workers = [self.worker(node) for node in range(2)]
        for worker in workers:
            worker.trains()
        # An evaluator: it reads what they write.
        live = dogwild.attach(f"{self.folder}/n0")
        before = live["0.weight"].copy()
        while (live["0.weight"] == before).all():
            time.sleep(0.01)
        self.ends_equal(*workers)
        for worker in workers:
            self.assertEqual(worker.process.returncode, 0)
        with self.assertRaises(ValueError):
            live["0.weight"][0] = 0.0

    def test_at_a_loss_of_30_percent(self):
        workers = [self.worker(node, "--loss", "30%") for node in range(2)]
        for worker in workers:
            worker.trains()
        self.ends_equal(*workers)

    def test_after_a_streamer_was_killed(self):
        workers = [self.worker(node) for node in range(2)]
        streamer = [worker.trains() for worker in workers][0]
        os.kill(streamer, signal.SIGKILL)
        workers[0].logs("ended by signal 9: starting it again")
        said = self.ends_equal(*workers)
        self.assertNotEqual(said[0]["streamer"], streamer)

    def test_after_a_trainer_was_killed(self):
        workers = [self.worker(node, STATE="shared") for node in range(2)]
        streamer = [worker.trains() for worker in workers][0]
        workers[0].kill()
        # Its streamer sees the end of its input, and ends in order.
        while os.path.exists(f"/proc/{streamer}"):
            time.sleep(0.01)
        again = self.worker(0, STATE="shared")
        again.logs("goes on with the state of 4 of 4 parameters")
        again.trains()
        self.ends_equal(again, workers[1])

    def test_trainers_on_devices_of_which_one_was_killed(self):
        workers = [self.worker(0, DEVICE="host"), self.worker(1)]
        streamer = [worker.trains() for worker in workers][0]
        workers[0].kill()
        while os.path.exists(f"/proc/{streamer}"):
            time.sleep(0.01)
        again = self.worker(0, DEVICE="host")
        again.trains()
        self.ends_equal(again, workers[1])

    def test_a_missing_peer_is_named_and_ctrl_c_ends_the_wait(self):
        worker = self.worker(0, timeout=600)
        worker.logs("waiting for node 1")
        worker.process.send_signal(signal.SIGINT)
        worker.process.wait()
        worker.logs("KeyboardInterrupt")
        roles = dogwild.Buffer.open(f"{self.folder}/n0").components()
        self.assertEqual([one for one in roles if one[3]], [])

    def test_a_missing_peer_and_a_timeout(self):
        model = nn.Linear(4, 2)
        with self.assertRaisesRegex(dogwild.PeerLost, "node 1 did not come within 3 s"):
            dogwild.share(
                model,
                name=os.path.basename(self.folder),
                buffer=f"{self.folder}/n0",
                node=0,
                nodes=2,
                timeout=3.0,
            )

    def test_nodes_that_begin_with_other_weights_are_named(self):
        workers = [self.worker(node, SEED=str(node)) for node in range(2)]
        for node, worker in enumerate(workers):
            said = worker.fails("WeightsDiffer: ")
            self.assertIn(f"node {1 - node} began this job with other weights than node {node}", said)
            self.assertRegex(said, r"\(\d\.(weight|bias) differs first.*same seed.*same file")
            self.assertFalse(os.path.exists(f"{self.folder}/n{node}"))
        # What was wrong is left nowhere.
        workers = [self.worker(node) for node in range(2)]
        for worker in workers:
            worker.trains()
        self.ends_equal(*workers)

    def test_one_parameter_that_differs_is_named_by_the_node_that_sees_it(self):
        workers = [self.worker(node, ALTER="2.bias" if node else "") for node in range(2)]
        said = [worker.fails("WeightsDiffer: ") for worker in workers]
        self.assertIn("2.bias differs first", "".join(said))
        self.assertIn("their own error names the parameter", "".join(said))

    def test_other_weights_are_taken_on_request_and_by_a_node_that_is_back(self):
        workers = [self.worker(node, SEED=str(node), TAKE="1") for node in range(2)]
        streamer = [worker.trains() for worker in workers][1]
        workers[1].kill()
        while os.path.exists(f"/proc/{streamer}"):
            time.sleep(0.01)
        # With its buffer, and then without it.
        for lost in (False, True):
            if lost:
                shutil.move(f"{self.folder}/n1", f"{self.folder}/old")
            again = self.worker(1, SEED="7")
            streamer = again.trains()
            if not lost:
                again.kill()
                while os.path.exists(f"/proc/{streamer}"):
                    time.sleep(0.01)
        self.ends_equal(workers[0], again)

    def walks(self, ahead, rate, steps):
        command = [sys.executable, "-W", "ignore", "-c", WALKS, self.folder]
        nodes = [
            subprocess.Popen(
                [*command, str(node), ahead, rate, steps], stdout=subprocess.PIPE, text=True
            )
            for node in (0, 1)
        ]
        said = [json.loads(node.communicate()[0]) for node in nodes]
        shutil.rmtree(self.folder)
        os.mkdir(self.folder)
        self.assertTrue(all(equal for equal, _, _ in said), said)
        return said

    def test_steps_are_as_long_as_those_of_all_nodes(self):
        for _, walked, stride in self.walks("ahead", "1e-4", "200"):
            self.assertGreater(stride, 1.5)
            self.assertTrue(0.85 < walked < 1.15, walked)
        # Where a node masters its step counts, elsewhere half of it does.
        for _, walked, stride in self.walks("one", "1e-4", "200"):
            self.assertEqual(stride, 1.0)
            self.assertTrue(0.65 < walked < 0.85, walked)

    def test_no_step_is_longer_than_one_percent_of_the_weights(self):
        # One plain step is 0.8 % of the weights at first, and more later.
        for _, _, stride in self.walks("ahead", "8e-3", "30"):
            self.assertTrue(1.1 < stride < 1.3, stride)

    def test_a_streamer_that_fails(self):
        with self.assertRaisesRegex(dogwild.StreamerFailed, "exit code 2.*--nonsense"):
            dogwild.share(
                nn.Linear(4, 2),
                buffer=f"{self.folder}/n0",
                node=0,
                nodes=2,
                stream_options=("--nonsense",),
            )


if __name__ == "__main__":
    unittest.main()
