#!/usr/bin/env python3
"""LeNet or CIFAR-10 quick in PyTorch on the CPU, one thread: the peer of `cargo bench --bench solver`.

Same layers, batch, loss and optimiser (SGD with momentum and weight decay) as the model files.
Reads a number of steps per line from standard input, trains that many, answers with the seconds
they took; ends when the input does. Touches nothing else.
"""
import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import sys
import time

import torch
from torch import nn


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2, 2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(inplace=True),
        nn.Linear(500, 10),
    )


def cifar10_quick():
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 32, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.Linear(64, 10),
    )


MODELS = {
    "lenet": (lenet, (64, 1, 28, 28), 0.0005),
    "cifar10_quick": (cifar10_quick, (100, 3, 32, 32), 0.004),
}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    build, shape, decay = MODELS[sys.argv[1]]
    model = build()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=decay)
    loss_of = nn.CrossEntropyLoss()
    images = torch.rand(shape)
    labels = torch.arange(shape[0]) % 10
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            optimiser.zero_grad()
            loss_of(model(images), labels).backward()
            optimiser.step()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
