"""The examples on real data, as a user starts them. $DOGWILD_DATA/mnist has MNIST, and
$DOGWILD_CIFAR10 is the folder of CIFAR-10's binary version."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples")


def start(*options, environ=None, example="mnist_share"):
    command = [sys.executable, "-W", "ignore", f"{EXAMPLES}/{example}.py", *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
    )


class MnistShare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.name = os.path.basename(self.folder)

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def results(self, processes):
        found = []
        for process in processes:
            out, log = process.communicate()
            self.assertEqual(process.returncode, 0, log)
            found.append(json.loads(out))
        return found

    def node(self, node, *options):
        place = ["--name", self.name, "--node", str(node), "--nodes", "2"]
        return start(*place, "--buffer", f"{self.folder}/{node}", *options)

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
        found = self.results([start(*options, environ=index) for index in indices])
        last = max(found, key=lambda one: one["iterations"])
        # What one did the other has seen.
        self.assertEqual(last["iterations"], 150)
        self.assertGreater(last["accuracy"], 0.75)

    def test_data_that_is_not_there_is_named(self):
        process = start("--data", self.folder)
        _, log = process.communicate()
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("train-images-idx3-ubyte[.gz] is not there", log)


def both_nodes(test, example, *options):
    """What the two nodes say that an example starts; they must end equal."""
    process = start(*options, example=example)
    out, log = process.communicate()
    test.assertEqual(process.returncode, 0, log)
    found = [json.loads(line) for line in out.splitlines()]
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
