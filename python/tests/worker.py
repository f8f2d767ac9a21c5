"""One node of a job, for test_nodes.py: trains until a file named `stop` is there."""

import ctypes
import hashlib
import json
import logging
import os
import signal
import sys

import torch
from torch import nn

import dogwild

FOLDER, NODE, NAME, TIMEOUT, *OPTIONS = sys.argv[1:]
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
# It does not outlive the tests (PR_SET_PDEATHSIG).
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
# A shell that starts tests in the background has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
torch.manual_seed(int(os.environ.get("SEED", "1")))
model = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
if os.environ.get("ALTER"):
    with torch.no_grad():
        model.get_parameter(os.environ["ALTER"])[0] += 1.0
torch.manual_seed(100 + int(NODE))


def say(**what):
    print(json.dumps(what), flush=True)


with dogwild.share(
    model,
    optimizer,
    name=NAME,
    buffer=f"{FOLDER}/n{NODE}",
    node=int(NODE),
    nodes=2,
    stream_options=tuple(OPTIONS),
    timeout=float(TIMEOUT),
    check_weights="TAKE" not in os.environ,
    state=os.environ.get("STATE", "own"),
    device=os.environ.get("DEVICE"),
) as job:
    say(ready=job.streamer_pid)
    steps = 0
    while steps < 200 or not os.path.exists(f"{FOLDER}/stop"):
        x, y = torch.randn(8, 50), torch.randint(0, 10, (8,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        steps += 1
        if steps == 100:
            say(steps=steps)
    equal = job.finish(timeout=120)
    digest = hashlib.sha256(memoryview(job.buffer)).hexdigest()
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    weights = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    say(equal=equal, digest=digest, weights=weights, iterations=job.iterations, streamer=job.streamer_pid)
