"""The examples on real data, as a user starts them. $DOGWILD_DATA/mnist has MNIST."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples")


def start(*options, environ=None):
    command = [sys.executable, "-W", "ignore", f"{EXAMPLES}/mnist_share.py", *options]
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
        options = ["--iterations", "250", "--loss", "30%"]
        one, other = self.results([self.node(node, *options) for node in (0, 1)])
        self.assertTrue(one["equal"] and other["equal"])
        self.assertEqual(one["digest"], other["digest"])
        self.assertGreater(one["accuracy"], 0.9)

    def test_two_processes_of_one_host_train_one_model(self):
        options = ["--iterations", "150", "--buffer", f"{self.folder}/n"]
        indices = [{"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "LOCAL_RANK": str(k)} for k in (0, 1)]
        found = self.results([start(*options, environ=index) for index in indices])
        last = max(found, key=lambda one: one["iterations"])
        # What one did the other has seen.
        self.assertEqual(last["iterations"], 300)
        self.assertGreater(last["accuracy"], 0.85)

    def test_data_that_is_not_there_is_named(self):
        process = start("--data", self.folder)
        _, log = process.communicate()
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("train-images-idx3-ubyte[.gz] is not there", log)


if __name__ == "__main__":
    unittest.main()
