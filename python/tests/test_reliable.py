"""The reliable path: mean gradients of several workers, whatever happens to one of them."""

import copy
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import unittest

import torch
from torch import nn
from torch.nn import functional as F

import dogwild

HERE = os.path.dirname(os.path.abspath(__file__))
WORKER = f"{HERE}/reliable_worker.py"


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(environ=None, **job):
    return subprocess.Popen(
        [sys.executable, WORKER, json.dumps(job)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
    )


def said(process):
    """All that a worker said, in one dictionary."""
    out, log = process.communicate()
    found = {}
    for line in out.splitlines():
        # Gloo says there whom it is connected with.
        if line.startswith("{"):
            found.update(json.loads(line))
    found["log"] = log
    return found


def run(how, jobs=({}, {}), **common):
    address = free_address()
    place = {"address": address, "workers": len(jobs), "how": how, "steps": 12}
    workers = [
        start(**{"rank": rank, **place, **common, **job}) for rank, job in enumerate(jobs)
    ]
    return [said(worker) for worker in workers]


class Cluster(unittest.TestCase):
    def check_equal(self, found):
        hashes = [one.get("hash") for one in found]
        self.assertIsNotNone(hashes[0], found)
        self.assertEqual(len(set(hashes)), 1, found)

    def test_servers_give_the_bits_of_ddp(self):
        ddp, ours = run("ddp"), run("ps")
        self.check_equal(ddp)
        self.check_equal(ours)
        self.assertEqual(ddp[0]["hash"], ours[0]["hash"], ours[0]["log"])
        self.assertEqual(set(ours[0]["schemes"].values()), {"ps"})

    def test_workers_alone_give_the_bits_of_ddp(self):
        ddp, ours = run("ddp"), run("p2p")
        self.check_equal(ours)
        self.assertEqual(ddp[0]["hash"], ours[0]["hash"], ours[0]["log"])
        self.assertEqual(set(ours[0]["schemes"].values()), {"p2p"})
        hook = run("p2p", hook=True)
        self.check_equal(hook)
        self.assertEqual(ddp[0]["hash"], hook[0]["hash"])

    def test_each_policy_leaves_equal_replicas(self):
        plain = run("ddp", jobs=({}, {}, {}))[0]["weights"]
        of_linear = [("sfb", "sfb"), ("adam", "adam"), ("hybcomm", None), ("cheapest", None)]
        for policy, scheme in of_linear:
            with self.subTest(policy):
                found = run(policy, jobs=({}, {}, {}))
                self.check_equal(found)
                schemes = found[0]["schemes"]
                self.assertEqual(schemes["0"], "p2p" if policy == "cheapest" else "ps")
                if scheme:
                    self.assertEqual([schemes["3"], schemes["5"]], [scheme, scheme])
                for one, other in zip(found[0]["weights"], plain):
                    self.assertAlmostEqual(one, other, places=2)
                self.assertGreater(min(found[0]["traffic"]), 1000)
        found = run("onebit-all")
        self.check_equal(found)
        self.assertEqual(set(found[0]["schemes"].values()), {"onebit"})
        found = run("onebit")
        self.check_equal(found)
        schemes = found[0]["schemes"]
        self.assertEqual([schemes["0"], schemes["3"], schemes["5"]], ["ps", "onebit", "onebit"])

    def test_a_hook_of_ddp_gives_its_bits(self):
        ddp, ours, bits = run("ddp"), run("ps", hook=True), run("onebit", hook=True)
        self.check_equal(ours)
        self.assertEqual(ddp[0]["hash"], ours[0]["hash"])
        self.check_equal(bits)
        self.assertNotEqual(bits[0]["hash"], ours[0]["hash"])
        # A bit for each weight of 32, and what messages have around them.
        self.assertLess(bits[1]["traffic"][0], ours[1]["traffic"][0] / 10)

    def test_a_worker_that_dies_ends_the_backward_pass_of_ddp(self):
        found = run("ps", jobs=({}, {"dies_at": 3}), steps=1000, hook=True)
        self.assertEqual(found[0].get("error"), "PeerLost", found[0])
        self.assertRegex(found[0]["text"], "worker 1|server 1 .*process of worker K")

    def test_other_weights_are_refused_by_name(self):
        found = run("ps", jobs=({}, {"seed": 2, "timeout": 5}), timeout=5)
        errors = {one["error"] for one in found}
        self.assertIn("WeightsDiffer", errors, found)
        refused = next(one for one in found if one["error"] == "WeightsDiffer")
        self.assertIn("begins with other weights than worker", refused["text"])

    def test_a_killed_worker_is_named_by_all_others(self):
        found = run("hybcomm", jobs=({}, {"dies_at": 4}, {}), steps=1000)
        for rank in (0, 2):
            self.assertEqual(found[rank].get("error"), "PeerLost", found[rank])
            self.assertRegex(found[rank]["text"], "worker 1|server 1 .*process of worker K")
        # The one that hosts the coordinator.
        found = run("hybcomm", jobs=({"dies_at": 4}, {}), steps=1000)
        self.assertEqual(found[1].get("error"), "PeerLost", found[1])

    def test_an_error_of_one_is_told_to_all(self):
        found = run("ps", jobs=({}, {"fails_at": 3}), steps=1000)
        self.assertEqual(found[1]["error"], "ValueError")
        self.assertEqual(found[0]["error"], "PeerLost", found[0])
        self.assertIn("the data is at its end", found[0]["text"])

    def test_who_goes_on_alone_is_told(self):
        # The last of its steps is without the other's part.
        found = run("ps", jobs=({}, {"steps": 9}), steps=10)
        self.assertIn("hash", found[1])
        self.assertEqual(found[0]["error"], "PeerLost", found[0])
        self.assertIn("equally often", found[0]["text"])

    def test_who_is_missing_is_said_in_time(self):
        place = {"workers": 3, "address": free_address(), "how": "ps", "steps": 1}
        workers = [start(rank=rank, timeout=8, **place) for rank in (0, 1)]
        found = [said(worker) for worker in workers]
        for one in found:
            self.assertEqual(one["error"], "PeerLost", one)
            self.assertRegex(one["text"], "not all of the 3 workers came|worker 0 gave up")
        self.assertIn("waiting for worker 2", found[0]["log"])

    def test_waiting_ends_at_ctrl_c(self):
        place = {"workers": 2, "address": free_address(), "how": "ps", "steps": 1}
        process = start(rank=0, timeout=600, **place)
        for line in process.stderr:
            if "waiting for" in line:
                break
        self.assertIn("worker 1", line)
        process.send_signal(signal.SIGINT)
        _, log = process.communicate()
        self.assertIn("KeyboardInterrupt", log)

    def test_the_store_of_torchrun_says_it_all(self):
        # As torchrun's agent does; that of Debian's torch 1.13 does not run with Python 3.11.
        host, port = free_address().split(":")
        store = torch.distributed.TCPStore(host, int(port), is_master=True, wait_for_workers=False)
        workers = []
        for rank in (1, 0):
            told = {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": host,
                "MASTER_PORT": port,
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }
            workers.append(start(how="ps", steps=5, environ=told))
        self.check_equal([said(worker) for worker in workers])
        del store

    def test_torch_distributed_says_it_all(self):
        self.check_equal(run("distributed", steps=5))


class Net(nn.Module):
    """Tied weights, a frozen layer, one that is not used, one that is used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(11, 8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.twice = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        x = self.frozen(self.words(x))
        return self.out(self.norm(torch.tanh(self.twice(torch.tanh(self.twice(x))))))


X = torch.randint(0, 11, (6, 5), generator=torch.Generator().manual_seed(1))


def loss(model):
    return F.cross_entropy(model(X).flatten(0, 1), X.roll(1, 1).flatten())


class OneWorker(unittest.TestCase):
    """The mean over one worker is its own gradient."""

    def start(self, model, policy="sfb", **more):
        sync = dogwild.poseidon(model, **{"batch": 6, "rows": 60, "policy": policy, **more})
        self.addCleanup(sync.close)
        return sync

    def check_grads(self, model, plain, policy):
        pairs = zip(model.named_parameters(), plain.parameters())
        for (name, one), other in pairs:
            if other.grad is None:
                self.assertTrue(one.grad is None or not one.grad.any(), name)
            elif policy == "ps":
                self.assertTrue(torch.equal(one.grad, other.grad), name)
            else:
                self.assertTrue(torch.allclose(one.grad, other.grad, atol=1e-6), name)

    def test_gradients_are_those_of_the_model(self):
        for policy in ("ps", "sfb"):
            with self.subTest(policy):
                model, plain = Net(), Net()
                sync = self.start(model, policy)
                self.assertEqual(sync.schemes["twice"], policy)
                # Tied: no factors.
                self.assertEqual(sync.schemes["words"], "ps")
                for _ in range(2):
                    for one in (model, plain):
                        one.zero_grad()
                        loss(one).backward()
                    self.check_grads(model, plain, policy)
                with torch.no_grad():
                    self.assertTrue(torch.equal(model(X), plain(X)))

    def test_gradients_add_up_as_they_do_without_it(self):
        for policy in ("ps", "sfb"):
            with self.subTest(policy):
                model, plain = Net(), Net()
                sync = self.start(model, policy, rows=200)
                for one in (model, plain):
                    one.zero_grad()
                    loss(one).backward()
                    loss(one).backward()
                self.check_grads(model, plain, policy)
                for one in (model, plain):
                    one.zero_grad()
                before = sync.traffic[0]
                with sync.no_sync():
                    loss(model).backward()
                    loss(model).backward()
                self.assertLess(sync.traffic[0] - before, 500)
                loss(model).backward()
                for _ in range(3):
                    loss(plain).backward()
                self.check_grads(model, plain, policy)

    def test_tied_linear_layers_have_no_factors(self):
        def tied():
            torch.manual_seed(5)
            model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
            model[2].weight = model[0].weight
            return model

        model, plain = tied(), tied()
        sync = self.start(model)
        self.assertEqual(sync.schemes, {"0": "ps", "2": "ps"})
        for one in (model, plain):
            one(torch.ones(6, 4)).pow(2).sum().backward()
        self.check_grads(model, plain, "ps")

    def test_a_model_of_linear_layers_alone_may_have_nothing_for_servers(self):
        model, plain = nn.Linear(4, 3), nn.Linear(4, 3)
        plain.load_state_dict(model.state_dict())
        sync = self.start(model)
        self.assertEqual(sync.schemes, {"Linear": "sfb"})
        for one in (model, plain):
            one(torch.ones(6, 4)).pow(2).sum().backward()
        self.check_grads(model, plain, "sfb")

    def test_too_many_rows_are_refused_with_what_to_give(self):
        model = Net()
        sync = dogwild.poseidon(model, batch=6, policy="sfb")
        with self.assertRaisesRegex(dogwild.DogwildError, r"twice got 60 rows.*rows=60"):
            loss(model).backward()
        sync.close()

    def test_a_copy_is_free_and_the_model_is_left_as_it_was(self):
        model = Net()
        sync = dogwild.poseidon(model, batch=6, rows=60, policy="sfb")
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin.twice.weight.zero_()
        self.assertFalse(torch.equal(twin(X), model(X)))
        loss(twin).backward()
        self.assertTrue(twin.twice.weight.grad.any())
        with self.assertRaisesRegex(dogwild.DogwildError, "state_dict"):
            pickle.dumps(model)
        loss(model).backward()
        gradient = model.twice.weight.grad.clone()
        sync.close()
        self.assertTrue(torch.equal(model.twice.weight.grad, gradient))
        pickle.dumps(model)
        model.zero_grad()
        loss(model).backward()
        self.assertTrue(model.twice.weight.grad.any())

    def test_a_pass_that_ended_early_ends_the_run(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        sync = dogwild.poseidon(model, batch=2, policy="ps")

        def fails(gradient):
            raise ValueError("no")

        hidden = model[0](torch.ones(2, 4))
        hidden.register_hook(fails)
        with self.assertRaises(ValueError):
            model[1](hidden).sum().backward()
        with self.assertRaisesRegex(dogwild.DogwildError, "ended early"):
            model(torch.ones(2, 4)).sum().backward()
        sync.close()

    def test_what_cannot_be_sent_is_refused_by_name(self):
        with self.assertRaisesRegex(dogwild.NotShareable, "1.weight is torch.float64"):
            dogwild.poseidon(nn.Sequential(nn.ReLU(), nn.Linear(2, 2).double()), batch=1)
        model = nn.Embedding(4, 3, sparse=True)
        sync = dogwild.poseidon(model, batch=1)
        with self.assertRaisesRegex(dogwild.NotShareable, "sparse=False"):
            model(torch.tensor([1])).sum().backward()
        sync.abort("over")
        frozen = nn.Linear(2, 2).requires_grad_(False)
        with self.assertRaisesRegex(dogwild.NotShareable, "no parameter that requires"):
            dogwild.poseidon(frozen, batch=1)

    def test_arguments_that_cannot_be_are_refused(self):
        model = nn.Linear(2, 2)
        for more, says in [
            ({"batch": 0}, "batch=0"),
            ({"rank": 2, "workers": 2}, "rank=2 of 2"),
            ({"servers": 2}, "servers=2"),
            ({"rank": 0, "workers": 2}, "address=HOST:PORT"),
            ({"address": "here"}, "HOST:PORT"),
            ({"policy": "best"}, "hybcomm"),
        ]:
            with self.assertRaisesRegex(ValueError, says):
                dogwild.poseidon(model, **{"batch": 1, **more})

    def test_a_forked_child_neither_sends_nor_ends(self):
        model = nn.Linear(3, 3)
        sync = self.start(model, "ps")
        child = os.fork()
        if child == 0:
            try:
                model(torch.ones(1, 3)).sum().backward()
            except dogwild.DogwildError as error:
                os._exit(7 if "forked" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        model(torch.ones(1, 3)).sum().backward()
        self.assertTrue(model.weight.grad.eq(1).all())


if __name__ == "__main__":
    unittest.main()
