"""One process and its buffer: what is shared, what is refused, and each way out of the buffer."""

import copy
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dogwild
from dogwild.streamer import level_and_text
from dogwild.where import where_am_i

X, Y = torch.randn(64, 20), torch.randint(0, 10, (64,))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10))


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()


def add_one(parameter, queue):
    """What a spawned child does."""
    with torch.no_grad():
        parameter.add_(1.0)
    queue.put(parameter.data_ptr() != 0)


class Alone(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.path = f"{self.folder}/n0"
        self.fresh = 0

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def share(self, model, optimizer=None, **more):
        if "name" not in more and more.get("existing") == "fresh":
            # The models before are still there, and their buffers in use.
            self.fresh += 1
            self.path = f"{self.folder}/fresh{self.fresh}"
        return dogwild.share(model, optimizer, **{"buffer": self.path, **more})

    def live(self):
        return [one[:2] for one in dogwild.Buffer.open(self.path).components() if one[3]]

    def test_optimisers_train_the_buffer_as_an_unshared_model(self):
        made = {
            "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
            "foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
            "Adam": lambda p: torch.optim.Adam(p, 0.01),
            "AdamW": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
            "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01),
            "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
        }
        for name, make in made.items():
            with self.subTest(name):
                plain, model = net(), net()
                ours, theirs = make(model.parameters()), make(plain.parameters())
                with self.share(model, ours, existing="fresh") as job:
                    train(plain, theirs, 5)
                    train(model, ours, 5)
                    self.assertEqual((job.iterations, job.local_iterations), (5, 5))
                    live = dogwild.attach(self.path)
                    for key, wanted in plain.named_parameters():
                        wanted = wanted.detach().numpy() + 0.0
                        self.assertTrue((live[key] == wanted).all(), f"{name}: {key}")
                    self.assertTrue(job.finish())

    def test_one_of_two_processes_waits_for_the_other(self):
        first, second = net(), net()
        optimizer = torch.optim.SGD(second.parameters(), 0.1)
        with self.share(first) as job, self.share(second, optimizer, index=1) as other:
            with self.assertLogs("dogwild", "WARNING") as said:
                self.assertFalse(job.finish(timeout=0.05))
            self.assertIn("the process with index 1 to finish", said.output[0])
            self.assertTrue(other.finish() and job.finish())
            train(second, optimizer)
            self.assertFalse(job.finish(timeout=0.05))
            other.close()
            self.assertTrue(job.finish())

    def test_a_scheduler_and_counting_by_hand(self):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with self.share(model, optimizer) as job:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            train(model, optimizer, 3)
            scheduler.step()
            self.assertEqual(job.step(), 4)
        train(model, optimizer)
        self.assertEqual(dogwild.attach(self.path).iterations, 4)

    def test_each_way_out_of_the_buffer_is_seen(self):
        def assign(model):
            state = {key: value + 1 for key, value in model.state_dict().items()}
            model.load_state_dict(state, assign=True)

        def vector(model):
            flat = nn.utils.parameters_to_vector(model.parameters())
            nn.utils.vector_to_parameters(flat * 2, model.parameters())

        ways = {
            "dtype": lambda m: m.double(),
            "share_memory": lambda m: m.share_memory(),
            "data": lambda m: setattr(m[0].weight, "data", m[0].weight.data.clone()),
            "vector_to_parameters": vector,
            "weight_norm": lambda m: nn.utils.weight_norm(m[0]),
            "parameter": lambda m: setattr(m[0], "weight", nn.Parameter(torch.ones(50, 20))),
            "meta": lambda m: m.to("meta"),
        }
        if torch.__version__ >= "2.1":
            ways["assign"] = assign
        for name, leave in ways.items():
            with self.subTest(name):
                model = net()
                with self.share(model, existing="fresh") as job:
                    job.step()
                    leave(model)
                    with self.assertRaisesRegex(dogwild.Detached, r"\d\.(weight|bias) does not"):
                        for _ in range(100):
                            job.step()
                    with self.assertRaises(dogwild.Detached):
                        job.finish()
        model = nn.Sequential(nn.Conv2d(3, 8, 3))
        with self.share(model, existing="fresh") as job:
            model.to(memory_format=torch.channels_last)
            with self.assertRaises(dogwild.Detached):
                job.finish()

    def test_what_stays_in_the_buffer(self):
        model = net()
        with self.share(model) as job:
            model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
            model.to("cpu").float().eval().train().requires_grad_(True)
            apart = copy.deepcopy(model)
            with torch.no_grad():
                apart[0].weight.zero_()
            F.cross_entropy(model(X), Y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.assertTrue(job.finish())
            self.assertFalse((dogwild.attach(self.path)["0.weight"] == 0).any())

    def test_what_cannot_be_shared_is_named_with_the_way_out(self):
        def refused(model, words, **more):
            with self.assertRaisesRegex(dogwild.NotShareable, words) as caught:
                self.share(model, **more)
            self.assertIsInstance(caught.exception, TypeError)
            self.assertFalse(os.path.exists(self.path))

        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            refused(net().to(dtype), rf"0\.weight is {dtype}.*model\.float\(\)")
        refused(net().to("meta"), r"0\.weight is on meta.*CPU")
        refused(nn.LazyLinear(3), "weight has no shape yet")
        refused(net().requires_grad_(False), "frozen=True")

    def test_tied_and_frozen_parameters(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(30, 16)
                self.out = nn.Linear(16, 30, bias=False)
                self.out.weight = self.embed.weight
                self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)
                self.scalar = nn.Parameter(torch.tensor(2.0))
                self.empty = nn.Parameter(torch.zeros(0, 3))

        model = Tied()
        with self.share(model):
            self.assertEqual(list(dogwild.attach(self.path)), ["scalar", "embed.weight"])
            self.assertIs(model.out.weight, model.embed.weight)
            self.assertEqual(dogwild.attach(self.path)["scalar"].shape, ())
        with self.share(Tied(), frozen=True, existing="fresh"):
            self.assertIn("fixed", dogwild.attach(self.path))

    def test_running_statistics_are_shared_on_request(self):
        def normed():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.Linear(50, 10))

        model = normed()
        with self.share(model, buffers="shared") as job:
            model(X)
            live = dogwild.attach(self.path)
            self.assertNotIn("1.num_batches_tracked", live)
            self.assertTrue((live["1.running_mean"] != 0).any())
            other = normed()
            live.load_into(other)
            self.assertTrue(torch.equal(other.eval()(X), model.eval()(X)))
            model[1].running_var = torch.ones(50)
            with self.assertRaisesRegex(dogwild.Detached, "1.running_var does not lie"):
                job.finish()
        with self.share(normed(), existing="fresh"):
            self.assertNotIn("1.running_mean", dogwild.attach(self.path))
            with self.assertRaisesRegex(dogwild.BufferMismatch, "1.running_mean"):
                self.share(normed(), buffers="shared", index=1)
        with self.assertRaisesRegex(ValueError, '"local" or "shared"'):
            self.share(net(), buffers="all")

    def test_weights_that_are_no_numbers_are_named(self):
        for value in (float("nan"), float("inf")):
            model = net()
            with self.share(model, existing="fresh") as job:
                with torch.no_grad():
                    model[2].bias[3] = value
                with self.assertRaisesRegex(dogwild.Diverged, r"2\.bias has weights.*lower rate"):
                    for _ in range(100):
                        job.step()
                with self.assertRaises(dogwild.Diverged):
                    job.finish()
        # A sum that is too large for float32 is none of that.
        model = net()
        with self.share(model, existing="fresh") as job:
            with torch.no_grad():
                model[0].weight.fill_(3e38)
            self.assertTrue(job.finish())

    def test_an_evaluator(self):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with self.share(model, optimizer) as job:
            train(model, optimizer, 3)
            other = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10))
            live = dogwild.attach(self.path)
            live.load_into(other)
            self.assertTrue(torch.equal(other(X), model(X)))
            copied = job.state_dict()["0.weight"]
            train(model, optimizer)
            self.assertFalse(torch.equal(copied, model[0].weight))
            self.assertFalse(torch.equal(other[0].weight, model[0].weight))
            self.assertTrue((live["0.weight"] == model[0].weight.detach().numpy()).all())
            self.assertFalse(job.stop_requested)
            job.buffer.stop = True
            self.assertTrue(job.stop_requested and live.stop_requested)
            with self.assertRaisesRegex(KeyError, "0.weight"):
                live.load_into(nn.Linear(2, 2))

    def test_a_buffer_that_is_there(self):
        first = net()
        with self.share(first, name="a"):
            with torch.no_grad():
                first[0].weight.fill_(7.0)
            with self.assertRaisesRegex(dogwild.BufferInUse, "solver 0 runs already"):
                self.share(net(), name="a")
            with self.assertRaisesRegex(dogwild.BufferInUse, "in use"):
                self.share(net(), name="a", existing="fresh")
            second = net()
            with self.share(second, name="a", index=1):
                self.assertTrue((second[0].weight == 7.0).all())
                with torch.no_grad():
                    second[0].weight.fill_(8.0)
                self.assertTrue((first[0].weight == 8.0).all())
        with self.share(net(), name="a") as job:
            self.assertTrue((job.state_dict()["0.weight"] == 8.0).all())
        with self.assertRaisesRegex(dogwild.BufferMismatch, "another job than 'b'"):
            self.share(net(), name="b")
        with self.assertRaises(dogwild.BufferInUse):
            self.share(net(), name="a", existing="refuse")
        wrong = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 9))
        before = wrong[0].weight.data_ptr()
        with self.assertRaisesRegex(dogwild.BufferMismatch, r"2\.weight of shape \[10, 50\]"):
            self.share(wrong, name="a")
        self.assertEqual(wrong[0].weight.data_ptr(), before)
        more = nn.Sequential(*net(), nn.Linear(10, 3))
        with self.assertRaisesRegex(dogwild.BufferMismatch, "only the model has.*3.weight"):
            self.share(more, name="a", index=1)
        with self.assertRaises(dogwild.BufferNotReady):
            self.share(net(), buffer=f"{self.folder}/none", index=1, timeout=0.1)

    def test_minus_zero(self):
        model = net()
        with torch.no_grad():
            model[0].weight.fill_(-0.0)
        with self.share(model) as job:
            bits = lambda: dogwild.attach(self.path)["0.weight"].view(numpy.uint32)
            self.assertFalse(bits().any())
            with torch.no_grad():
                model[0].weight.fill_(-0.0)
            self.assertTrue(bits().any())
            job.finish()
            self.assertFalse(bits().any())

    def test_forked_children_leave_all_as_it_is(self):
        model = net()
        with self.share(model) as job:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with torch.no_grad():
                        model[0].weight.fill_(3.0)
                    job.step()
                except dogwild.DogwildError as error:
                    code = 0 if "forked" in str(error) else 2
                finally:
                    job.close()
                    del job
                    gc.collect()
                    os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertTrue((model[0].weight == 3.0).all())
            self.assertEqual(self.live(), [("solver", 0)])
            with self.assertRaises(dogwild.BufferInUse):
                self.share(net())
            loader = DataLoader(TensorDataset(X), batch_size=8, num_workers=2)
            self.assertEqual(sum(1 for _ in loader), 8)
            self.assertEqual(self.live(), [("solver", 0)])
            self.assertEqual(job.step(), 1)

    def test_a_spawned_child_gets_the_shared_memory(self):
        import torch.multiprocessing as processes

        model = net()
        with self.share(model) as job:
            before = model[0].weight.detach().clone()
            context = processes.get_context("spawn")
            queue = context.SimpleQueue()
            child = context.Process(target=add_one, args=(model[0].weight, queue))
            child.start()
            child.join()
            self.assertEqual(child.exitcode, 0)
            self.assertTrue(torch.equal(model[0].weight, before + 1.0))
            job.finish()

    def test_a_full_file_system(self):
        folder = f"{self.folder}/small"
        os.mkdir(folder)
        code = (
            "import torch, dogwild, sys\n"
            "try: dogwild.share(torch.nn.Linear(2000, 2000), buffer=sys.argv[1] + '/n0')\n"
            "except dogwild.NoSpace as error: print('refused:', error)\n"
        )
        mount = f'mount -t tmpfs -o size=4m none "{folder}" && exec "$0" -c "$1" "{folder}"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount]
        ended = subprocess.run([*command, sys.executable, code], capture_output=True, text=True)
        self.assertRegex(ended.stdout, "refused: .*needs .* MiB, .* MiB free", ended.stderr)

    def test_the_weights_outlive_the_objects(self):
        model = net()
        job = self.share(model)
        weight = model[0].weight
        job.close()
        os.unlink(self.path)
        del job, model
        gc.collect()
        self.assertTrue(bool(weight.abs().sum() > 0))

    def test_bad_arguments(self):
        for arguments in (
            {"stream": "thread"},
            {"merge": "max"},
            {"existing": "no"},
            {"nodes": 0},
            {"node": 1},
            {"index": -1},
        ):
            with self.subTest(arguments), self.assertRaises(ValueError):
                self.share(net(), **arguments)
        self.assertFalse(os.path.exists(self.path))


class Parts(unittest.TestCase):
    def test_torch_is_not_needed_to_read(self):
        folder = tempfile.mkdtemp(dir="/dev/shm", prefix="dogwild-py-")
        self.addCleanup(shutil.rmtree, folder)
        code = (
            "import sys, dogwild\n"
            "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
            "b = dogwild.Buffer.create(sys.argv[1], 7, [('a', [2, 3])], 'refuse')\n"
            "memoryview(b).cast('B').cast('f')[1] = 5.0\n"
            "b.publish()\n"
            "a = dogwild.attach(sys.argv[1])['a']\n"
            "assert a.shape == (2, 3) and a[0, 1] == 5.0, a\n"
            "assert 'torch' not in sys.modules\n"
        )
        ended = subprocess.run([sys.executable, "-c", code, f"{folder}/b"], capture_output=True)
        self.assertEqual((ended.returncode, ended.stderr), (0, b""))

    def test_the_program(self):
        ended = subprocess.run(
            [sys.executable, "-m", "dogwild", "--version"], capture_output=True, text=True
        )
        self.assertEqual(ended.stdout.split()[0], "dogwild", ended.stderr)

    def test_where_am_i(self):
        def at(environ, **given):
            here = where_am_i(environ=environ, **given)
            return here.node, here.nodes, here.index, here.source

        torchrun = {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "4", "LOCAL_RANK": "2"}
        self.assertEqual(at({}), (0, 1, 0, "no launcher"))
        self.assertEqual(at(torchrun), (1, 4, 2, "torchrun"))
        self.assertEqual(at(torchrun, node=3, nodes=5), (3, 5, 2, "arguments"))
        slurm = {"SLURM_NODEID": "2", "SLURM_NNODES": "3", "SLURM_LOCALID": "1"}
        self.assertEqual(at(slurm), (2, 3, 1, "Slurm"))
        mpi = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}
        self.assertEqual(at({**mpi, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}), (2, 4, 1, "Open MPI"))
        with self.assertRaisesRegex(ValueError, "GROUP_RANK='x'"):
            at({**torchrun, "GROUP_RANK": "x"})

    def test_lines_of_the_log_have_their_level(self):
        line = "[2026-11-25T15:00:00Z WARN  dogwild::node] node 1 is silent"
        self.assertEqual(level_and_text(line), (30, "node 1 is silent"))
        self.assertEqual(level_and_text("[INFO  dogwild] a [b] c"), (20, "a [b] c"))
        self.assertEqual(level_and_text("error: no such flag"), (30, "error: no such flag"))


if __name__ == "__main__":
    unittest.main()
