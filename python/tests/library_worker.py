"""One node of a job inside a training library, for test_libraries.py. Prints JSON.

Arguments as JSON: library ("hf" or "lightning"), folder, node, nodes, steps, and options of the
trainer and of the callback.
"""

import hashlib
import json
import logging
import os
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import dogwild


class Points(Dataset):
    """Points of two classes. Each node has its own."""

    def __init__(self, node):
        random = torch.Generator().manual_seed(100 + node)
        self.x = torch.randn(512, 16, generator=random)
        self.y = (self.x[:, :8].sum(1) > 0).long()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, at):
        return {"x": self.x[at], "labels": self.y[at]}


def layers():
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 2))


def say(share, model, test, **more):
    with torch.no_grad():
        right = (model(test.x).argmax(1) == test.y).float().mean().item()
    flat = torch.cat([one.detach().view(-1) for one in model.parameters()])
    digest = hashlib.sha256(flat.numpy().tobytes()).hexdigest()
    said = {"equal": share.equal, "digest": digest, "right": right, "left": share.job is None}
    print(json.dumps({**said, **more}), flush=True)


def hf(job):
    import transformers

    from dogwild.hf import Share

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def forward(self, x, labels):
            out = self.layers(x)
            return {"loss": F.cross_entropy(out, labels), "logits": out}

    transformers.set_seed(1)
    model = Model()
    args = transformers.TrainingArguments(
        f"{job['folder']}/out{job['node']}",
        use_cpu=True,
        seed=1,
        data_seed=100 + job["node"],
        max_steps=job["steps"],
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **job.get("trainer", {}),
    )
    share = Share(**job["share"])
    trainer = transformers.Trainer(
        model, args, train_dataset=Points(job["node"]), callbacks=[share]
    )
    trainer.train()
    trainer.save_model()
    say(share, model.layers, Points(9), steps=trainer.state.global_step)


def lightning(job):
    import lightning as L

    from dogwild.lightning import Share

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = layers()

        def training_step(self, batch, _):
            if self.global_step == job.get("fails_at"):
                raise ValueError("the data is at its end")
            return F.cross_entropy(self.layers(batch["x"]), batch["labels"])

        def configure_optimizers(self):
            number = job.get("optimizers", 1)
            self.automatic_optimization = number == 1
            return [torch.optim.Adam(self.parameters(), 1e-2) for _ in range(number)]

    L.seed_everything(1)
    model = Model()
    random = torch.Generator().manual_seed(100 + job["node"])
    loader = DataLoader(Points(job["node"]), 16, shuffle=True, generator=random)
    share = Share(**job["share"])
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=job["steps"],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[share],
        **job.get("trainer", {}),
    )
    try:
        trainer.fit(model, loader)
    finally:
        say(share, model.layers, Points(9), steps=trainer.global_step)


def main():
    job = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    torch.set_num_threads(1)
    name = os.path.basename(job["folder"])
    job["share"] = {
        "name": name,
        "buffer": f"{job['folder']}/n{job['node']}",
        "node": job["node"],
        "nodes": job["nodes"],
        "timeout": 120,
        **job.get("share", {}),
    }
    try:
        {"hf": hf, "lightning": lightning}[job["library"]](job)
    except (dogwild.DogwildError, ValueError) as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)


if __name__ == "__main__":
    main()
