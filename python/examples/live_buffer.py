"""A walk through the live buffer of a job: LeNet on MNIST, while it is trained.

    python python/examples/live_buffer.py --data DIR                 # two nodes, started for it
    python python/examples/live_buffer.py --data DIR --buffer FILE   # a node of mnist_share.py

It runs as a program, or cell by cell in an editor that knows ``# %%`` (VS Code, Spyder, Jupyter
with jupytext). In a notebook DOGWILD_DATA says where MNIST is. The job does not wait for it.
"""

# %% [markdown]
# # A live buffer
# The weights of a node are a file in shared memory. Any process of the host may map it and look.

# %%
import argparse
import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

import dogwild
import mnist_share
from dogwild.program import program
from mnist_share import accuracy, images, lenet

# Leaves the cores to the job.
torch.set_num_threads(1)
default = os.environ.get("DOGWILD_DATA")
options = argparse.ArgumentParser(description="A walk through the live buffer of a job.")
options.add_argument(
    "--data",
    type=Path,
    default=Path(default, "mnist") if default else None,
    help="folder of the idx files (default: mnist in $DOGWILD_DATA)",
)
options.add_argument("--buffer", help="of a job of mnist_share.py (default: starts two nodes)")
options.add_argument("--out", type=Path, default=Path("lenet.safetensors"), help="what is saved")
# The arguments of a notebook are those of its kernel.
args = options.parse_args([] if "ipykernel" in sys.modules else None)
if args.data is None:
    options.error("give --data, the folder of MNIST's idx files, or set DOGWILD_DATA")
pictures, labels = images(args.data, "t10k", 1000)

# %% [markdown]
# ## A job to look at
# With `--buffer` it is yours. Without it, two nodes of `mnist_share.py` are started on this host.
# They end with this walk.

# %%
folder = Path(f"/dev/shm/dogwild-live-{os.getpid()}")
trainers: list[subprocess.Popen[str]] = []


def start(node: int) -> subprocess.Popen[str]:
    """Starts a node. Its log goes to a file."""
    job = ["--data", str(args.data), "--name", folder.name, "--buffer", f"{folder}/n{node}"]
    job += ["--node", str(node), "--nodes", "2", "--batch", "16", "--test", "1000"]
    # The last cell ends it. If that never comes, this does.
    job += ["--iterations", "3000"]
    with open(f"{folder}/log{node}", "w", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, mnist_share.__file__, *job],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # Ctrl-C goes to this process, which ends it.
            process_group=0,
        )


def check() -> None:
    """Raises ``SystemExit`` with the log of a node that has failed."""
    for node, trainer in enumerate(trainers):
        if trainer.poll():
            log = (folder / f"log{node}").read_text(encoding="utf-8")
            raise SystemExit(f"node {node} failed with exit code {trainer.returncode}:\n{log}")


def clear() -> None:
    """Ends the nodes that were started here, where they still run, and removes their files."""
    for trainer in trainers:
        trainer.kill()
        trainer.wait()
    shutil.rmtree(folder, ignore_errors=True)


if args.buffer is None:
    atexit.register(clear)
    folder.mkdir()
    trainers += [start(node) for node in (0, 1)]

# %% [markdown]
# ## What is in it
# `attach` maps the buffer for reading: names to numpy arrays over the shared memory itself. It
# raises `BufferNotReady` until a node has made the buffer. `components` says what works on it.


# %%
def find(path: str) -> dogwild.Attached:
    """Attaches to a buffer. Where a node was started for it, waits for that."""
    while True:
        try:
            return dogwild.attach(path)
        except dogwild.BufferNotReady:
            if not trainers:
                raise
        check()
        time.sleep(0.05)


live = find(args.buffer or f"{folder}/n0")
buffer = dogwild.Buffer.open(live.path)
print(f"attached to {live.path}: {len(live)} tensors")
for name, array in live.items():
    print(f"  {name:10} {' x '.join(str(size) for size in array.shape)}")

# %% [markdown]
# ## How fast it trains
# `iterations` are the steps of all nodes, as far as this one knows. `counters` are those of the
# streamer, which sends the weights to other nodes. A node that is alone has none.


# %%
def trains() -> bool:
    """Whether a process trains on the buffer, or was started to."""
    if any(trainer.poll() is None for trainer in trainers):
        return True
    return any(role == "solver" and alive for role, _, _, alive in buffer.components())


def train_on(steps: int) -> None:
    """Waits until the job has made so many steps more, has ended, or stood still for a minute."""
    last, since = live.iterations, time.monotonic()
    goal = last + steps
    while last < goal and trains() and time.monotonic() - since < 60.0:
        time.sleep(0.02)
        if live.iterations > last:
            last, since = live.iterations, time.monotonic()
    check()


train_on(10)
for role, index, pid, alive in buffer.components():
    print(f"{role} {index}: process {pid}, which {'runs' if alive else 'has ended'}")
first, steps, counters = time.monotonic(), live.iterations, live.counters
train_on(30)
seconds, now = time.monotonic() - first, live.iterations
print(f"step {steps}, then {now}: {(now - steps) / seconds:.1f} steps/s of all nodes")
for name, value in live.counters.items():
    if name in ("positions_sent", "deltas_applied", "bytes_sent", "bytes_received"):
        print(f"  {name}: {counters.get(name, 0):,}, then {value:,}")

# %% [markdown]
# ## How far each layer moved
# The arrays change while you read them. `state_dict` copies them, which makes a look that stays.

# %%
before, steps = live.state_dict(), live.iterations
train_on(30)
print(f"from step {steps} to {live.iterations}:")
for name, tensor in live.state_dict().items():
    norm, moved = tensor.norm().item(), (tensor - before[name]).norm().item()
    print(f"  {name:10} norm {norm:8.4f}, moved {moved:.4f} ({moved / norm:.1%})")

# %% [markdown]
# ## An evaluator
# `load_into` copies the weights into a model of your own, to test it while the job goes on. Parts
# of one copy may be a step apart, as no process waits for another.

# %%
twin = lenet()
for _ in range(3):
    live.load_into(twin)
    steps = live.iterations
    print(f"accuracy at step {steps}: {accuracy(twin, pictures, labels):.3f}")
    train_on(30)

# %% [markdown]
# ## Saving
# The program `dogwild` writes the weights as they are now, in the format `.safetensors`: the length
# of a header, the header in JSON, and the numbers.

# %%
save = [program(), "snapshot", "--buffer", live.path, "--out", str(args.out)]
told = subprocess.run(save, check=True, text=True, stdout=subprocess.PIPE).stdout
print(f"saved {told.strip()}")
with open(args.out, "rb") as file:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
print(f"  its header: {header.pop('__metadata__')}, and {len(header)} tensors")
print(f"  the first: {header['0.weight']}")

# %% [markdown]
# ## The end
# A job of yours goes on. The nodes that were started here are asked to stop. They wait for each
# other, say what came of it, and leave the same bits in both buffers.

# %%
print(f"step {live.iterations}: {'it trains' if trains() else 'nothing trains on it'}")
for node, trainer in enumerate(trainers):
    dogwild.Buffer.open(f"{folder}/n{node}").stop = True
for trainer in trainers:
    said = trainer.communicate()[0]
    check()
    result = json.loads(said)
    same = result["digest"] == hashlib.sha256(memoryview(buffer)).hexdigest()
    print(
        f"node {result['node']} ended after {result['iterations']} steps of all: "
        f"accuracy {result['accuracy']:.3f}, {'the' if same else 'not the'} bits of this buffer"
    )
clear()
