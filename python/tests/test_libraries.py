"""Callbacks for training libraries: two nodes on loopback that end with equal bits.

Where a library is not installed its tests are skipped, and say so.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

import torch
from torch import nn

import dogwild
from dogwild.callbacks import Sharing

HERE = os.path.dirname(os.path.abspath(__file__))


def needs(*libraries):
    lacking = [one for one in libraries if importlib.util.find_spec(one) is None]
    why = f"SKIPPED: {sys.executable} has no {' and no '.join(lacking)} (pip install)"
    return unittest.skipIf(lacking, why)


class InMemory(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def sharing(self, **more):
        return Sharing(60.0, {"buffer": f"{self.folder}/n0", "name": "a", **more})


class Common(InMemory):
    """What the callbacks have in common, without any library."""

    def test_a_model_is_shared_for_one_training(self):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        # Libraries put an optimiser around the one that steps.
        outer = torch.optim.SGD(model.parameters(), 0.1)
        outer.optimizer = optimizer
        sharing = self.sharing()
        for training in (1, 2):
            sharing.begin(model, [outer], 1)
            self.assertIsNone(sharing.equal)
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            self.assertEqual(sharing.job.iterations, training)
            sharing.end()
            self.assertTrue(sharing.equal)
            self.assertIsNone(sharing.job)
        sharing.end()

    def test_one_that_ends_with_an_error_can_begin_again(self):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        sharing = self.sharing()
        first = sharing.begin(model, [optimizer], 1)
        self.assertIsNot(sharing.begin(model, [optimizer], 1), first)
        sharing.close()
        self.assertEqual([one for one in first.buffer.components() if one[3]], [])

    def test_what_a_trainer_does_by_itself_is_refused(self):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with self.assertRaisesRegex(dogwild.DogwildError, "keeps 2 processes in step.*torchrun"):
            self.sharing().begin(model, [optimizer], 2)
        with self.assertRaisesRegex(dogwild.DogwildError, "there are 2 optimisers"):
            self.sharing().begin(model, [optimizer, optimizer], 1)
        with self.assertRaisesRegex(TypeError, "model= is what the trainer has"):
            self.sharing(model=model)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_library_that_is_not_there_is_named(self):
        for module, library in (("hf", "transformers"), ("lightning", "lightning")):
            code = (
                f"import sys; sys.modules['{library}'] = None\n"
                "import dogwild\n"
                f"try: import dogwild.{module}\n"
                "except ModuleNotFoundError as error: print(error)\n"
            )
            command = [sys.executable, "-W", "ignore", "-c", code]
            ended = subprocess.run(command, capture_output=True, text=True)
            words = f"dogwild.{module} needs {library}.*is not installed: pip install {library}"
            self.assertRegex(ended.stdout, words, ended.stderr)


class TwoNodes(InMemory):
    """The tests of each library."""

    library = ""

    def start(self, node, nodes=2, steps=150, **more):
        job = {"library": self.library, "folder": self.folder, "node": node, "nodes": nodes}
        job = json.dumps({**job, "steps": steps, **more})
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", f"{HERE}/library_worker.py", job],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self, process):
        """What a node prints as JSON, and its log."""
        out, log = process.communicate()
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{\"")]
        self.assertTrue(lines, out + log)
        return lines, out + log

    def ends_equal(self, **more):
        nodes = [self.start(node, **more) for node in (0, 1)]
        said = []
        for node in nodes:
            lines, log = self.said(node)
            self.assertEqual(node.returncode, 0, log)
            self.assertIn("digest", lines[0], log)
            said.append(lines[0])
        self.assertTrue(all(one["equal"] and one["left"] for one in said), said)
        self.assertEqual(said[0]["digest"], said[1]["digest"])
        # Who knows nothing has a half.
        self.assertGreater(said[0]["right"], 0.8)
        return said


@needs("transformers", "accelerate")
class HuggingFace(TwoNodes):
    library = "hf"

    def test_two_nodes_end_equal_and_save_the_same(self):
        said = self.ends_equal(trainer={"gradient_accumulation_steps": 2})
        self.assertEqual([one["steps"] for one in said], [150, 150])
        saved = []
        for node in (0, 1):
            with open(f"{self.folder}/out{node}/model.safetensors", "rb") as file:
                saved.append(file.read())
        self.assertEqual(saved[0], saved[1])

    def test_the_best_model_at_the_end_is_refused(self):
        from dogwild.hf import Share

        share = Share(buffer=f"{self.folder}/n0")
        args = types.SimpleNamespace(load_best_model_at_end=True, world_size=1)
        with self.assertRaisesRegex(dogwild.DogwildError, "load_best_model_at_end"):
            share.on_train_begin(args, None, None, model=nn.Linear(2, 2), optimizer=None)


@needs("lightning")
class Lightning(TwoNodes):
    library = "lightning"

    def test_two_nodes_end_equal(self):
        said = self.ends_equal(trainer={"gradient_clip_val": 1.0})
        self.assertEqual([one["steps"] for one in said], [150, 150])

    def test_an_error_leaves_the_buffer(self):
        lines, log = self.said(self.start(0, nodes=1, fails_at=5, share={"state": "shared"}))
        self.assertEqual(lines[-1], {"error": "ValueError", "text": "the data is at its end"}, log)
        self.assertEqual((lines[0]["left"], lines[0]["equal"], lines[0]["steps"]), (True, None, 5))
        live = dogwild.attach(f"{self.folder}/n0")
        self.assertEqual((live.iterations, len(live)), (5, 4))

    def test_several_optimisers_are_refused(self):
        lines, log = self.said(self.start(0, nodes=1, optimizers=2))
        self.assertIn("there are 2 optimisers", lines[-1]["text"], log)


@needs("accelerate")
class Accelerate(InMemory):
    @unittest.skipUnless("DOGWILD_DATA" in os.environ, "SKIPPED: DOGWILD_DATA names no folder")
    def test_the_example_ends_equal(self):
        example = os.path.join(HERE, "..", "examples", "accelerate_share.py")
        options = ["--steps", "40", "--accumulate", "2", "--batch", "32"]
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", example, *options], capture_output=True, text=True
        )
        self.assertEqual(ended.returncode, 0, ended.stderr)
        nodes = [json.loads(line) for line in ended.stdout.splitlines()]
        self.assertEqual([one["equal"] for one in nodes], [True, True])
        self.assertEqual(nodes[0]["digest"], nodes[1]["digest"])
        self.assertEqual(nodes[0]["iterations"], 80)
        self.assertGreater(nodes[0]["accuracy"], 0.5)


if __name__ == "__main__":
    unittest.main()
