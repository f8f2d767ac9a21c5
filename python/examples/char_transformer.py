"""A character transformer of ten million parameters with Adam, trained by two nodes of this host.

    python python/examples/char_transformer.py                    # both nodes, 200 steps of each
    python python/examples/char_transformer.py --steps 20 --batch 4 --context 32
    python python/examples/char_transformer.py --node 0 --name j  # one of them; the other: --node 1

The text is this repository's documentation, or what --text names. At the end both nodes hold the
same bits. Adam's moments are each node's own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import dogwild

DOCS = Path(__file__).resolve().parents[2] / "docs"


class Block(nn.Module):
    """Attention to what came before, then two layers at each place."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_layers = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, places, width); so is what it returns."""
        batch, places, width = x.shape
        split = self.qkv(self.before_attention(x)).view(batch, places, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        later = torch.ones(places, places, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, places, width))
        return x + self.layers(self.before_layers(x))


class CharTransformer(nn.Module):
    """The next character from those before: (batch, places) to (batch, places, characters)."""

    def __init__(self, characters: int, context: int, width: int, depth: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, width // 64) for _ in range(depth)))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """text: numbers of characters, as int64."""
        x = self.characters(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.last(self.blocks(x)))


def read(path: Path) -> str:
    """A file, or all Markdown files of a folder."""
    if path.is_file():
        return path.read_text(encoding="utf-8")
    files = sorted(path.rglob("*.md"))
    if not files:
        raise SystemExit(f"{path}: no file, and no folder with .md files: name one with --text")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def train(args: argparse.Namespace) -> None:
    """Trains as one node, and prints what came of it as JSON."""
    text = read(args.text)
    known = {one: number for number, one in enumerate(sorted(set(text)))}
    numbers = torch.tensor([known[one] for one in text])
    if len(numbers) < 20 * (args.context + 1):
        raise SystemExit(f"{args.text}: {len(numbers)} characters: too few for --context")
    held_back = len(numbers) // 20
    learnt, tested = numbers[:-held_back], numbers[-held_back:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = CharTransformer(len(known), args.context, args.width, args.depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    order = torch.Generator().manual_seed(1000 + args.node)

    def loss_of(text: torch.Tensor, generator: torch.Generator, batch: int) -> torch.Tensor:
        at = torch.randint(len(text) - args.context, (batch, 1), generator=generator)
        some = text[at + torch.arange(args.context + 1)]
        return F.cross_entropy(model(some[:, :-1]).flatten(0, 1), some[:, 1:].flatten())

    def test() -> float:
        with torch.no_grad():
            return loss_of(tested, torch.Generator().manual_seed(7), 16).item()

    before = test()
    faults = ("--loss", args.loss) if args.loss else ()
    with dogwild.share(
        model,
        optimizer,
        name=args.name,
        buffer=args.buffer and f"{args.buffer}-n{args.node}",
        node=args.node,
        nodes=2,
        stream_options=faults,
    ) as job:
        warm = dogwild.ClusterLR(optimizer, lambda steps: min(1.0, (1 + steps) / args.warm_up), job)
        for step in range(1, args.steps + 1):
            optimizer.zero_grad()
            loss = loss_of(learnt, order, args.batch)
            loss.backward()
            optimizer.step()
            warm.step()
            if step % 10 == 0 or step == args.steps:
                logging.info("step %d, of all %d: loss %.3f", step, job.iterations, loss.item())
            if job.stop_requested:
                break
        equal = job.finish()
        result = {
            "node": args.node,
            "parameters": sum(one.numel() for one in model.parameters()),
            "iterations": job.iterations,
            "equal": equal,
            "digest": hashlib.sha256(memoryview(job.buffer)).hexdigest(),
            "before": before,
            "loss": test(),
        }
        # In one write, unlike `print` of a Python without buffers: two processes say it at once.
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


def both() -> int:
    """Starts this program as each of the two nodes. The first error code, or 0."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dogwild-char-") as folder:
        job = ["--name", Path(folder).name, "--buffer", f"{folder}/buffer"]
        # What the user gives comes last, and wins.
        nodes = [[*job, "--node", str(node), *sys.argv[1:]] for node in (0, 1)]
        running = [subprocess.Popen([sys.executable, __file__, *options]) for options in nodes]
        codes = [one.wait() for one in running]
    return next((code for code in codes if code), 0)


def main() -> None:
    options = argparse.ArgumentParser(description="A character transformer, on shared weights.")
    options.add_argument("--text", type=Path, default=DOCS, help="a file, or a folder of .md files")
    options.add_argument("--node", type=int, choices=(0, 1), help="one node alone (default: both)")
    options.add_argument("--name", help="the job, the same on both nodes")
    options.add_argument("--buffer", help="files of the buffers, before -n0 and -n1")
    options.add_argument("--steps", type=int, default=200, help="of each node")
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--context", type=int, default=64, help="characters that are seen")
    options.add_argument("--width", type=int, default=384, help="a multiple of 64")
    options.add_argument("--depth", type=int, default=6, help="blocks")
    options.add_argument("--lr", type=float, default=5e-4)
    options.add_argument("--warm-up", type=int, default=20, help="steps of all, until --lr")
    options.add_argument("--loss", help="part of the frames that the streamer loses, as 30%%")
    args = options.parse_args()
    if args.node is None:
        raise SystemExit(both())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    train(args)


if __name__ == "__main__":
    main()
