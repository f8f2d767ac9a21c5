"""Processes that train one net together, for torch_train.py: shared weights, or ranks over Gloo.

`Hogwild` and `Ranks` share their methods: `next_step` gives numbers of steps, `pause` waits until
all stand still, `total` adds up what the processes found in a test.
"""
import ctypes
import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from multiprocessing import connection

import torch
import torch.distributed as dist
from torch import multiprocessing

# Longest that a rank waits in the middle of training. Long, because a lossy link may stand still
# for many seconds; a peer that ends is noticed at once, as its connections close.
STALL_S = 600

# Between two looks at who has come.
POLL_S = 0.1

PR_SET_PDEATHSIG = 1


class Failure(Exception):
    """What stops the program, in words for its user."""


def note(text):
    print(f"torch_train.py: {text}", file=sys.stderr, flush=True)


def guarded(work):
    """The exit code of `work`, its failure in words."""
    try:
        work()
    except Failure as failure:
        note(failure)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


class Hogwild:
    """Processes on shared weights; a single solver is one of one.

    A process takes its next step from a common counter, so that a slow one makes fewer. It stops
    only for tests, which then see exactly the steps counted.
    """

    def __init__(self, size):
        self.rank, self.size = 0, size
        self.samples_per_step = 1
        self._context = multiprocessing.get_context("fork")
        self._steps = self._context.Value("q", 0)
        self._barrier = self._context.Barrier(size)
        self._sums = self._context.Array("d", 3 * size, lock=False)

    def start(self):
        self._barrier.wait()

    def next_step(self, limit):
        """The number of the next step, from 0; None when `limit` of them are taken."""
        with self._steps.get_lock():
            if self._steps.value >= limit:
                return None
            self._steps.value += 1
            return self._steps.value - 1

    def pause(self):
        self._barrier.wait()

    def total(self, mine):
        """The sums of each of three numbers over all processes."""
        self._sums[3 * self.rank : 3 * self.rank + 3] = mine
        # Before the next writes comes `pause`, which all reach only after they have read.
        self._barrier.wait()
        return tuple(sum(self._sums[i::3]) for i in range(3))

    def run(self, work):
        """Runs `work` in every process; ends all when one fails."""

        def child(rank):
            # The parent ends its children; Ctrl-C reaches them all and would end each by itself.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            self.rank = rank
            sys.exit(guarded(work))

        children = [self._context.Process(target=child, args=(i,)) for i in range(self.size)]
        try:
            for process in children:
                process.start()
            left = children[:]
            while left:
                connection.wait([process.sentinel for process in left])
                for rank, process in enumerate(children):
                    if process.exitcode:
                        raise Failure(f"process {rank} failed (exit code {process.exitcode})")
                left = [process for process in left if process.exitcode is None]
        except OSError as error:
            raise Failure(f"cannot start {self.size} processes: {error.strerror}")
        finally:
            for process in children:
                if process.pid is not None:
                    process.terminate()
                    process.join()


class Ranks:
    """Ranks of DistributedDataParallel: a step is one of every rank."""

    def __init__(self, options):
        self.rank, self.size = options.rank, options.world
        self.samples_per_step = self.size
        self._taken = 0
        store = rendezvous(options)
        try:
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("gloo", store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=STALL_S),
            )
        except (RuntimeError, ValueError) as error:
            raise Failure(f"Gloo cannot connect the ranks (--iface?): {first_line(error)}")

    def start(self):
        dist.barrier()

    def next_step(self, limit):
        if self._taken >= limit:
            return None
        self._taken += 1
        return self._taken - 1

    def pause(self):
        """Nothing to wait for: no rank ends a step before all have given their gradients."""

    def total(self, mine):
        sums = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(sums)
        return tuple(sums.tolist())


def first_line(error):
    return str(error).strip().split("\n")[0]


def wait_for_master(host, port, until, rank):
    """Waits until rank 0 listens."""
    told = time.monotonic() + 2
    while True:
        left = until - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(left, POLL_S)).close()
            return
        except socket.gaierror as error:
            raise Failure(f"rank {rank}: --master: cannot find {host}: {error.strerror}")
        except OSError as error:
            why = error.strerror or str(error)
        if left <= 0:
            raise Failure(f"rank {rank} gives up: rank 0 is not at {host}:{port} ({why})")
        if time.monotonic() > told:
            note(f"rank {rank} waits for rank 0 at {host}:{port} ({why}; {left:.0f} s left)")
            told += 10
        time.sleep(POLL_S)


def rendezvous(options):
    """The ranks' common store, once all have come."""
    rank, world, (host, port) = options.rank, options.world, options.master
    until = time.monotonic() + options.wait
    if rank == 0:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            raise Failure(
                f"rank 0 cannot listen at {host}:{port}, which must be an address of its host "
                f"and a free port: {error.strerror}"
            )
    else:
        wait_for_master(host, port, until, rank)
    try:
        store = dist.TCPStore(
            host,
            port,
            world,
            is_master=rank == 0,
            timeout=timedelta(seconds=max(until - time.monotonic(), 5)),
            wait_for_workers=False,
        )
        names = ("world", "iterations", "batch", "seed", "target", "test_every")
        mine = {name: getattr(options, name) for name in names}
        if rank == 0:
            store.set("settings", json.dumps(mine))
        theirs = json.loads(store.get("settings"))
        for name in names:
            if mine[name] != theirs[name]:
                flag = "--" + name.replace("_", "-")
                raise Failure(f"rank {rank} has {flag} {mine[name]}, rank 0 has {theirs[name]}")
        if store.add(f"here/{rank}", 1) > 1:
            raise Failure(f"there is a rank {rank} already; each process needs a --rank of its own")
        wait_for_ranks(store, rank, world, until)
    except RuntimeError as error:
        raise Failure(f"rank {rank} lost rank 0 at {host}:{port}: {first_line(error)}")
    return store


def wait_for_ranks(store, rank, world, until):
    told = time.monotonic() + 2
    missing = list(range(world))
    while True:
        # Adding nothing reads a counter without waiting for it.
        missing = [other for other in missing if store.add(f"here/{other}", 0) == 0]
        if not missing:
            return
        left = until - time.monotonic()
        names = "rank " + ", ".join(str(other) for other in missing)
        if left <= 0:
            raise Failure(f"rank {rank} gives up: {names} did not come")
        if time.monotonic() > told:
            note(f"rank {rank} waits for {names} ({left:.0f} s left)")
            told += 10
        time.sleep(POLL_S)


def congestion():
    """The congestion control of this process's TCP connections to other hosts, as the kernel tells.

    Of those within the host if there are no others.
    """
    local, remote = set(), set()
    for number in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(number))) as link:
                name = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                own, peer = link.getsockname()[0], link.getpeername()[0]
        except OSError:
            continue  # closed meanwhile, not TCP, or not connected
        (local if own == peer else remote).add(name.rstrip(b"\0").decode())
    return ",".join(sorted(remote or local)) or None
