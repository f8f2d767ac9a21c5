#!/usr/bin/python3
"""LeNet on MNIST trained by PyTorch on the CPU: the peer that dogwild's training is compared with.

    torch_train.py single  --data DIR --target 0.98
    torch_train.py hogwild --data DIR --processes 2 --target 0.98
    torch_train.py ddp     --data DIR --rank R --world N --master ADDR:PORT [--iface NAME]

`hogwild` is pytorch/examples/mnist_hogwild: processes on one set of shared weights, each with an
optimiser of its own. `ddp` is one rank of DistributedDataParallel over Gloo; start one per host.
Every process computes on one thread. The net is that of torch_lenet.py, the settings are those
of models/lenet_solver.prototxt. The learning rate follows the steps of the cluster, as dogwild's
does. DIR holds MNIST's four idx files, gzipped.

Standard output gets a JSON object per test on all test pictures, and one at the end:

    step          steps so far: of all processes together; with ddp: of each rank
    samples       pictures learned from, by all processes
    seconds       since all processes were ready, tests included
    test_seconds  that part of `seconds` in which training stood still for tests; the processes
                  divide the pictures of a test
    accuracy      share of the test pictures that were recognised
    loss          mean over the test pictures; null: not a number or infinite

The last one has "done": true, "reached" (--target), "diverged" and the settings; with ddp also
"congestion", the TCP congestion control of its connections. Exit codes: 0 trained, whether or
not the target was reached; 1 failed; 2 wrong arguments; 130 Ctrl-C; 143 SIGTERM.
"""
import argparse
import functools
import gzip
import json
import math
import os
import signal
import socket
import struct
import sys
import time
import zlib

try:
    # First: it asks for one thread, which OpenBLAS heeds only when it is loaded.
    from torch_lenet import lenet

    import numpy as np
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from torch_team import Failure, Hogwild, Ranks, congestion, first_line, guarded
except ImportError as error:
    sys.exit(
        f"torch_train.py: {sys.executable} cannot import PyTorch ({error}); install Debian's "
        "python3-torch and run /usr/bin/python3 tools/torch_train.py"
    )

# models/lenet_solver.prototxt and lenet_train_test.prototxt
BASE_LR, GAMMA, POWER = 0.01, 0.0001, 0.75
MOMENTUM, DECAY = 0.9, 0.0005
BIAS_LR_MULT = 2
SCALE = 1 / 256
TEST_BATCH = 100


def emit(row):
    """Prints one line at once. Not by `print`: it keeps what it could not write, for later."""
    try:
        os.write(1, json.dumps(row, allow_nan=False).encode() + b"\n")
    except OSError as error:
        raise Failure(f"cannot write to standard output: {error.strerror}") from None


def idx(folder, name, magic, shape):
    """The bytes of a gzipped idx file as a tensor; `shape` is what follows the count of items."""
    path = os.path.join(folder, name)
    try:
        with gzip.open(path) as file:
            data = file.read()
    except FileNotFoundError:
        raise Failure(f"{path} is missing; --data must name a folder with MNIST's idx files (.gz)")
    except (OSError, EOFError, zlib.error) as error:
        raise Failure(f"cannot read {path}: {error}")
    head = 4 * (2 + len(shape))
    fields = struct.unpack(f">{head // 4}I", data[:head]) if len(data) >= head else ()
    if not fields or fields[0] != magic or fields[2:] != shape or not fields[1]:
        raise Failure(f"{path} is not MNIST: its header is {data[:head].hex()}")
    if len(data) != head + fields[1] * math.prod(shape):
        raise Failure(f"{path} has {len(data)} bytes, which its header does not announce")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=head).reshape(fields[1:]).copy())


def mnist(folder, part):
    """Pictures (n, 1, 28, 28) as bytes, and labels (n)."""
    images = idx(folder, f"{part}-images-idx3-ubyte.gz", 0x803, (28, 28))
    labels = idx(folder, f"{part}-labels-idx1-ubyte.gz", 0x801, ()).long()
    if len(images) != len(labels) or labels.max() > 9:
        raise Failure(f"{folder}: {part} has {len(images)} images, {len(labels)} labels of 0 to 9")
    return images.unsqueeze(1), labels


def pixels(images):
    return images.float().mul_(SCALE)


def batches(count, batch, seed, first=0, stride=1):
    """Indices of the pictures of batch after batch, for ever; each epoch has an order of its own.

    Of each order it takes every `stride`-th picture from the `first`. A batch may begin in one
    epoch and end in the next, as in Caffe.
    """
    random = np.random.default_rng(seed)
    ahead = np.empty(0, np.int64)
    while True:
        while len(ahead) < batch:
            ahead = np.concatenate([ahead, random.permutation(count)[first::stride]])
        yield torch.from_numpy(ahead[:batch])
        ahead = ahead[batch:]


def build(seed):
    """LeNet as Caffe fills it: xavier over the inputs of a neuron, biases 0."""
    torch.manual_seed(seed)
    model = lenet()
    for name, values in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(values)
        else:
            bound = math.sqrt(3 / values[0].numel())
            nn.init.uniform_(values, -bound, bound)
    return model


def solver(model):
    """The optimiser and a function that sets its rates for a step."""
    named = list(model.named_parameters())
    biases = [values for name, values in named if name.endswith("bias")]
    weights = [values for name, values in named if not name.endswith("bias")]
    groups = [{"params": weights, "lr_mult": 1}, {"params": biases, "lr_mult": BIAS_LR_MULT}]
    optimiser = torch.optim.SGD(groups, lr=BASE_LR, momentum=MOMENTUM, weight_decay=DECAY)

    def set_rate(step):
        rate = BASE_LR * (1 + GAMMA * step) ** -POWER
        for group in optimiser.param_groups:
            group["lr"] = group["lr_mult"] * rate

    return optimiser, set_rate


def test(model, data, team):
    """Right answers and summed loss over this process's share of the pictures."""
    images, labels = (values[team.rank :: team.size] for values in data)
    right, loss = 0, 0.0
    with torch.no_grad():
        for some, wanted in zip(images.split(TEST_BATCH), labels.split(TEST_BATCH)):
            scores = model(pixels(some))
            loss += nn.functional.cross_entropy(scores, wanted, reduction="sum").item()
            right += (scores.argmax(1) == wanted).sum().item()
    return right, loss


def train(team, model, forward, order, data, options):
    """Trains until the target or the end; process 0 prints. `forward` runs `model`, wrapped or not.

    `data` is pictures and labels of training and test; `order` yields indices of a batch.
    """
    (images, labels), tests = data
    optimiser, set_rate = solver(model)
    limit, test_seconds = 0, 0.0
    reached = diverged = over = False
    team.start()
    start = time.perf_counter()
    while limit < options.iterations and not (reached or diverged or over):
        limit = min(limit + options.test_every, options.iterations)
        for step in iter(functools.partial(team.next_step, limit), None):
            chosen = next(order)
            set_rate(step)
            optimiser.zero_grad()
            nn.functional.cross_entropy(forward(pixels(images[chosen])), labels[chosen]).backward()
            optimiser.step()
        team.pause()
        paused = time.perf_counter()
        # All processes get the same sums, and so come to the same end.
        late = paused - start - test_seconds > options.seconds
        *sums, over = team.total((*test(model, tests, team), late))
        right, loss = (total / len(tests[0]) for total in sums)
        now = time.perf_counter()
        test_seconds += now - paused
        diverged = not math.isfinite(loss)
        reached = options.target is not None and right >= options.target and not diverged
        row = {
            "step": limit,
            "seconds": round(now - start, 4),
            "test_seconds": round(test_seconds, 4),
            "samples": limit * team.samples_per_step * options.batch,
            "accuracy": round(right, 6),
            "loss": None if diverged else round(loss, 6),
        }
        if team.rank == 0:
            emit(row)
    if team.rank == 0:
        settings = {"mode": options.mode, "processes": team.size, "batch": options.batch}
        settings.update({"seed": options.seed, "target": options.target})
        if options.mode == "ddp":
            settings["congestion"] = congestion()
        emit({"done": True, "reached": reached, "diverged": diverged, **row, **settings})


def run(options):
    torch.set_num_threads(1)
    if options.mode == "ddp" and options.iface is not None:
        names = [name for _, name in socket.if_nameindex()]
        if options.iface not in names:
            raise Failure(f"--iface {options.iface}: this host has {', '.join(names)}")
        os.environ["GLOO_SOCKET_IFNAME"] = options.iface
    data = mnist(options.data, "train"), mnist(options.data, "t10k")
    count, batch, seed = len(data[0][0]), options.batch, options.seed
    model = build(seed)
    if options.mode == "ddp":
        team = Ranks(options)
        # One order for all, of which each rank takes its part.
        order = batches(count, batch, [seed], team.rank, team.size)
        try:
            forward = DistributedDataParallel(model)
            train(team, model, forward, order, data, options)
        except RuntimeError as error:
            # Gloo has no error types; what it reports is nearly always a closed connection.
            raise Failure(f"rank {team.rank}: has another rank ended? {first_line(error)}")
        return
    model.share_memory()
    team = Hogwild(options.processes)

    def work():
        # Each process sees all pictures, in an order of its own, as in mnist_hogwild.
        order = batches(count, batch, [seed, team.rank])
        train(team, model, model, order, data, options)

    team.run(work)


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small; give 1 or more")
    return value


def unsigned(text):
    value = int(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 2^63 - 1")
    return value


def share(text):
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share above 0 and up to 1, as 0.98")
    return value


def seconds(text):
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text}: give seconds above 0")
    return value


def address(text):
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not ADDR:PORT, as 10.77.0.1:29500")
    return host.strip("[]"), int(port)


def arguments():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    modes = parser.add_subparsers(dest="mode", metavar="MODE", required=True)
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--data", metavar="DIR", required=True, help="MNIST's four idx files, gzipped")
    add("--iterations", metavar="N", type=positive, default=10000, help="last step [10000]")
    add("--target", metavar="SHARE", type=share, help="stop at this share of right answers")
    add("--test-every", metavar="N", type=positive, default=100, help="steps between tests [100]")
    add("--seconds", metavar="S", type=seconds, default=1e6, help="no step after the first test "
        "behind so many seconds of training [no limit]")
    add("--batch", metavar="N", type=positive, default=64, help="of each process [64]")
    add("--seed", metavar="N", type=unsigned, default=1, help="of weights and order [1]")
    modes.add_parser("single", parents=[common], help="one solver").set_defaults(processes=1)
    hogwild = modes.add_parser("hogwild", parents=[common], help="processes on shared weights")
    hogwild.add_argument("--processes", metavar="N", type=positive, default=2, help="[2]")
    ddp = modes.add_parser("ddp", parents=[common], help="one rank of DDP over Gloo")
    add = ddp.add_argument
    add("--rank", metavar="R", type=unsigned, required=True, help="of this process, from 0")
    add("--world", metavar="N", type=positive, required=True, help="number of ranks")
    add("--master", metavar="ADDR:PORT", type=address, required=True, help="where rank 0 listens")
    add("--iface", metavar="NAME", help="interface of Gloo's connections")
    add("--wait", metavar="S", type=seconds, default=60, help="for the other ranks [60]")
    options = parser.parse_args()
    if options.mode == "ddp" and options.rank >= options.world:
        ddp.error(f"--rank {options.rank}: with --world {options.world} the last is "
                  f"{options.world - 1}")
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    code = guarded(functools.partial(run, options))
    if options.mode == "ddp":
        # All is said and written. Gloo's and the store's threads would still be running while C++
        # takes its objects down, and may abort the process then.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
