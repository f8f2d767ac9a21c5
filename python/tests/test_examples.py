"""The examples on real data, as a user starts them. $DOGWILD_DATA/mnist has MNIST, and
$DOGWILD_CIFAR10 is the folder of CIFAR-10's binary version."""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import dogwild
from test_reliable import free_address

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples")


LIBC = ctypes.CDLL(None)


def end_with_the_tests():
    """For a process that is starting: it does not outlive the tests (PR_SET_PDEATHSIG)."""
    LIBC.prctl(1, signal.SIGKILL)


def start(*options, environ=None, example="mnist_share", stdout=subprocess.PIPE):
    command = [sys.executable, "-W", "ignore", f"{EXAMPLES}/{example}.py", *options]
    return subprocess.Popen(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
        preexec_fn=end_with_the_tests,
    )


def wait_for(state, *processes):
    """What `state` gives, once that is true. The processes have to run meanwhile."""
    while not (found := state()):
        for process in processes:
            if process.poll() is not None:
                raise AssertionError("a process ended early:\n" + process.communicate()[1])
        time.sleep(0.01)
    return found


def opened(path):
    """The buffer, or none if it is not there yet."""
    try:
        return dogwild.Buffer.open(path)
    except dogwild.BufferNotReady:
        return None


class Job(unittest.TestCase):
    """A job with a name of its own and a folder for its buffers."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.name = os.path.basename(self.folder)

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *options, **more):
        process = start(*options, **more)
        # If the test fails.
        self.addCleanup(process.kill)
        return process

    def results(self, processes):
        found = []
        for process in processes:
            out, log = process.communicate()
            self.assertEqual(process.returncode, 0, log)
            found.append(json.loads(out))
        return found

    def node(self, node, *options):
        place = ["--name", self.name, "--node", str(node), "--nodes", "2"]
        return self.start(*place, "--buffer", f"{self.folder}/{node}", *options)


class MnistShare(Job):
    def test_two_nodes_learn_while_a_third_of_the_frames_is_lost(self):
        options = ["--iterations", "110", "--loss", "30%"]
        one, other = self.results([self.node(node, *options) for node in (0, 1)])
        self.assertTrue(one["equal"] and other["equal"])
        self.assertEqual(one["digest"], other["digest"])
        # One process has 0.868 after 110 steps, two nodes 0.924 and 0.930.
        self.assertGreater(one["accuracy"], 0.88)

    def test_two_processes_of_one_host_train_one_model(self):
        options = ["--iterations", "75", "--buffer", f"{self.folder}/n"]
        indices = [{"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "LOCAL_RANK": str(k)} for k in (0, 1)]
        found = self.results([self.start(*options, environ=index) for index in indices])
        last = max(found, key=lambda one: one["iterations"])
        # What one did the other has seen.
        self.assertEqual(last["iterations"], 150)
        self.assertGreater(last["accuracy"], 0.75)

    def test_data_that_is_not_there_is_named(self):
        process = start("--data", self.folder)
        _, log = process.communicate()
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("train-images-idx3-ubyte[.gz] is not there", log)


class MnistKilled(Job):
    def test_a_streamer_and_a_trainer_are_killed_while_a_third_of_the_frames_is_lost(self):
        options = ["--iterations", "100000", "--batch", "16", "--test", "2000", "--loss", "30%"]
        nodes = [self.node(node, *options) for node in (0, 1)]
        buffers = [
            wait_for(lambda path=f"{self.folder}/{node}": opened(path), *nodes) for node in (0, 1)
        ]

        def streamers():
            found = buffers[0].components()
            return [pid for role, _, pid, alive in found if role == "stream" and alive]

        def node_0_makes(steps):
            goal = buffers[0].iterations()[0] + steps
            wait_for(lambda: buffers[0].iterations()[0] >= goal, *nodes)

        node_0_makes(20)
        [streamer] = streamers()
        os.kill(streamer, signal.SIGKILL)
        wait_for(lambda: streamers() not in ([], [streamer]), *nodes)
        node_0_makes(20)
        old = streamers()
        nodes[0].kill()
        _, log = nodes[0].communicate()
        self.assertIn("the streamer was ended by signal 9: starting it again", log)
        killed_at = buffers[0].iterations()[0]
        # At once: the streamer of the killed one still ends then. The next comes after it.
        nodes[0] = self.node(0, *options)
        wait_for(lambda: streamers() not in ([], old), *nodes)
        node_0_makes(40)
        # Node 1 does not wait for one that it takes for gone.
        wait_for(lambda: buffers[1].iterations()[1] >= killed_at + 40, *nodes)
        for buffer in buffers:
            buffer.stop = True
        one, other = self.results(nodes)
        self.assertTrue(one["equal"] and other["equal"])
        self.assertEqual(one["digest"], other["digest"])
        # No step is lost, and none is counted twice: both know what each of them has made.
        made = [buffer.iterations()[0] for buffer in buffers]
        self.assertGreaterEqual(made[0], killed_at + 40)
        self.assertEqual([one["iterations"], other["iterations"]], [sum(made)] * 2)
        # 0.867 to 0.930 in five runs.
        self.assertGreater(one["accuracy"], 0.7)


class MnistTorchrun(Job):
    OPTIONS = ["--iterations", "60", "--batch", "32", "--test", "2000"]

    def run_two(self, example, *options):
        """Two processes of an example on this host, and what they say."""
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
        command += ["--nproc_per_node", "2", "--master_port", free_address().rpartition(":")[2]]
        # Debian's torch 1.13 runs with Python 3.11 only if it takes the output itself.
        command += ["--redirects", "1", "--tee", "1", "--log_dir", self.folder]
        # Seconds between two looks: with its 5 it would be the longest part.
        command += ["--monitor_interval", "0.1"]
        command += [f"{EXAMPLES}/{example}.py", *self.OPTIONS, *options]
        done = subprocess.run(
            command, capture_output=True, text=True, preexec_fn=end_with_the_tests
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        # Each line begins with the name of its process.
        lines = [line.partition("]:")[2] for line in done.stdout.splitlines()]
        return [json.loads(line) for line in lines]

    def test_two_processes_train_one_model(self):
        found = self.run_two("mnist_share", "--buffer", f"{self.folder}/n")
        self.assertEqual(sorted(one["index"] for one in found), [0, 1])
        for one in found:
            self.assertEqual((one["node"], one["iterations"], one["equal"]), (0, 120, True))
        self.assertEqual(found[0]["digest"], found[1]["digest"])
        # 0.834 to 0.836 in four runs.
        self.assertGreater(found[0]["accuracy"], 0.6)

    def test_two_workers_find_each_other_on_the_reliable_path(self):
        schemes = check_workers(self, self.run_two("mnist_poseidon", "--policy", "ps"))
        self.assertEqual(set(schemes.values()), {"ps"})


def check_workers(test, found):
    """Two workers with one model, which knows something. Gives how its layers travelled."""
    one, other = sorted(found, key=lambda one: one["rank"])
    test.assertEqual([(one["rank"], one["workers"]) for one in (one, other)], [(0, 2), (1, 2)])
    for key in ("digest", "schemes", "accuracy"):
        test.assertEqual(one[key], other[key])
    # 0.738 in each run: the same steps give the same bits.
    test.assertGreater(one["accuracy"], 0.6)
    return one["schemes"]


class MnistPoseidon(Job):
    def test_two_workers_end_with_the_same_bits(self):
        place = ["--workers", "2", "--address", free_address()]
        options = [*place, "--iterations", "60", "--batch", "32", "--test", "2000"]
        workers = [
            self.start("--rank", str(rank), *options, example="mnist_poseidon") for rank in (1, 0)
        ]
        schemes = check_workers(self, self.results(workers))
        self.assertEqual(schemes, {"0": "ps", "2": "ps", "5": "sfb", "7": "ps"})

    def test_a_worker_of_several_needs_an_address(self):
        process = self.start("--workers", "2", "--rank", "1", example="mnist_poseidon")
        _, log = process.communicate()
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("give address=HOST:PORT", log)


class LiveBuffer(Job):
    def walk(self, *options):
        """What a walk says, and what it saves."""
        file = f"{self.folder}/saved.safetensors"
        process = self.start("--out", file, *options, example="live_buffer")
        out, log = process.communicate()
        self.assertEqual(process.returncode, 0, log)
        with open(file, "rb") as saved:
            return process.pid, out, saved.read()

    def check(self, out, saved):
        """The parts of every walk."""
        self.assertIn("n0: 8 tensors\n", out)
        self.assertRegex(out, r"\n  0\.weight   20 x 1 x 5 x 5\n(.*\n)*  7\.bias     10\n")
        [(begin, end, rate)] = re.findall(r"step (\d+), then (\d+): ([\d.]+) steps/s", out)
        self.assertGreaterEqual(int(end), int(begin) + 30)
        self.assertGreater(float(rate), 0.0)
        moved = re.findall(r"  (\d\.\w+) +norm +([\d.]+), moved ([\d.]+) ", out)
        self.assertEqual(len(moved), 8)
        for name, norm, distance in moved:
            self.assertTrue(0.0 < float(distance) < float(norm), name)
        seen = re.findall(r"accuracy at step (\d+): ([\d.]+)", out)
        self.assertEqual(len(seen), 3)
        self.assertTrue(int(end) < int(seen[0][0]) < int(seen[1][0]) < int(seen[2][0]), seen)
        # 0.886 to 0.923 in eight runs.
        self.assertGreater(float(seen[2][1]), 0.6)
        [step] = re.findall(r"safetensors: \d+ weights after (\d+) iterations", out)
        self.assertGreater(int(step), int(seen[2][0]))
        length = int.from_bytes(saved[:8], "little")
        header = json.loads(saved[8 : 8 + length])
        self.assertEqual(header["__metadata__"]["iterations"], step)
        self.assertEqual(header["7.bias"]["shape"], [10])
        self.assertEqual(len(saved), 8 + length + 4 * 431_080)

    def test_two_nodes_are_started_looked_at_and_ended(self):
        pid, out, saved = self.walk()
        self.check(out, saved)
        [(before, after)] = re.findall(r"bytes_sent: ([\d,]+), then ([\d,]+)", out)
        self.assertLess(int(before.replace(",", "")), int(after.replace(",", "")))
        ends = re.findall(r"node (\d) ended after (\d+) steps .* ([\d.]+), (.*) bits of", out)
        self.assertEqual([(node, bits) for node, _, _, bits in ends], [("0", "the"), ("1", "the")])
        self.assertEqual(ends[0][1:], ends[1][1:])
        self.assertFalse(os.path.exists(f"/dev/shm/dogwild-live-{pid}"))
        works = re.findall(r"(?:solver|stream) 0: process (\d+), which runs", out)
        self.assertEqual(len(works), 2)
        for process in works:
            self.assertFalse(os.path.exists(f"/proc/{process}"))

    def test_a_job_that_runs_is_looked_at_and_goes_on(self):
        options = ["--iterations", "100000", "--batch", "16", "--test", "500"]
        path = f"{self.folder}/n0"
        trainer = self.start("--name", self.name, "--buffer", path, *options)
        buffer = wait_for(lambda: opened(path), trainer)
        wait_for(lambda: buffer.iterations()[0] > 0, trainer)
        _, out, saved = self.walk("--buffer", path)
        self.check(out, saved)
        self.assertRegex(out, r"step \d+: it trains\n$")
        self.assertNotIn("ended", out)
        wait_for(lambda steps=buffer.iterations()[0]: buffer.iterations()[0] > steps, trainer)
        buffer.stop = True
        [result] = self.results([trainer])
        self.assertTrue(result["equal"])

    def test_what_is_missing_is_named(self):
        for options, says in [
            (["--buffer", f"{self.folder}/none"], f"{self.folder}/none"),
            (["--data", self.folder], "t10k-images-idx3-ubyte[.gz] is not there"),
        ]:
            process = self.start(*options, example="live_buffer")
            _, log = process.communicate()
            self.assertNotEqual(process.returncode, 0)
            self.assertIn(says, log.splitlines()[-1])


def both_nodes(test, example, *options):
    """What the two nodes say that an example starts; they must end equal."""
    # Each read gives what one write has written (`O_DIRECT` in pipe(2)), and a Python without
    # buffers writes all at once, or it mixes the lines of the two.
    reader, writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    process = start(*options, environ={"PYTHONUNBUFFERED": "1"}, example=example, stdout=writer)
    os.close(writer)
    _, log = process.communicate()
    with open(reader, "rb", buffering=0) as pipe:
        lines = list(iter(lambda: pipe.read(65536), b""))
    test.assertEqual(process.returncode, 0, log)
    found = [json.loads(line) for line in lines]
    test.assertTrue(all(line.endswith(b"\n") for line in lines), lines)
    test.assertEqual(sorted(one["node"] for one in found), [0, 1], log)
    test.assertTrue(all(one["equal"] for one in found), log)
    test.assertEqual(len({one["digest"] for one in found}), 1)
    return found


class Transformer(unittest.TestCase):
    def test_it_learns_the_characters_of_the_documentation(self):
        options = ["--width", "64", "--depth", "2", "--context", "32", "--lr", "3e-3"]
        options += ["--steps", "60", "--loss", "10%"]
        for one in both_nodes(self, "char_transformer", *options):
            self.assertEqual(one["iterations"], 120)
            # Who knows nothing has 4.5 or so. How much is learnt differs from run to run.
            self.assertGreater(one["before"], 4.0)
            self.assertLess(one["loss"], 3.5)

    def test_a_text_that_is_not_there_is_named(self):
        process = start("--text", "/nowhere", "--node", "0", example="char_transformer")
        _, log = process.communicate()
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("/nowhere: no file", log)


class Resnet(unittest.TestCase):
    def test_both_nodes_step_on_cifar10(self):
        options = ["--steps", "4", "--batch", "8", "--test", "100"]
        for one in both_nodes(self, "resnet18_cifar10", *options):
            self.assertEqual((one["parameters"], one["iterations"]), (11_173_962, 8))
            self.assertGreater(one["losses"][0], 1.5)

    def test_data_that_is_not_there_is_named(self):
        process = start("--data", "/nowhere", "--node", "0", example="resnet18_cifar10")
        _, log = process.communicate()
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("/nowhere/data_batch_1.bin is not there", log)


if __name__ == "__main__":
    unittest.main()
