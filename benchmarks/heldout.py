"""Answer loss of checkpoints on held-out rows of the training generator: where a training stands, before it has answered any task.

    python benchmarks/heldout.py models/zoo/gdn/seed0 models/zoo/gdn+proteus/seed0

Rows of up to eight 7-digit facts in prose, each asked for once, at the row's end. Words and values are of the train split (no
test item is touched), the rows of a seed that no recipe draws; all checkpoints see the same ones, so their differences are paired.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch.nn import functional

from proteus_models.checkpoint import load_checkpoint
from proteus_models.train_data import DataConfig, RowSource
from proteus_models.zoo import tokenizer

SEED = 1_000_007
ROWS = DataConfig(
    uuid_share=0.0, pair_share=0.0, several_share=0.0, question_share=1.0, max_facts=8, asks=1, late_share=1.0, lm_share=0.0
)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=80)
    parser.add_argument("--length", type=int, default=8192)
    given = parser.parse_args()
    torch.set_num_threads(1)
    source = RowSource(tokenizer(), ROWS, SEED)
    rows = [source.batch("heldout", n, 1, given.length) for n in range(given.rows)]
    print(f"{given.rows} rows of {given.length} tokens, +- one standard error over rows")
    first: torch.Tensor | None = None
    for folder in given.checkpoints:
        model, _, _ = load_checkpoint(folder)
        nats, right, began = [], [], time.process_time()
        for ids, labels, kinds in rows:
            h, _ = model.hidden(torch.from_numpy(ids))
            asked = torch.from_numpy(kinds[0] == 1)
            logits, gold = model.logits(h[0, asked]), torch.from_numpy(labels[0])[asked]
            nats.append(functional.cross_entropy(logits, gold).item())
            right.append((logits.argmax(-1) == gold).float().mean().item())
        n, r = torch.tensor(nats), torch.tensor(right)
        first = n if first is None else first
        print(
            f"{folder.parent.name}/{folder.name}: {_mean(n)} nats a token, {_mean(r)} of the tokens right, "
            f"less the first {_mean(n - first)}, {time.process_time() - began:.0f} s",
            flush=True,
        )


def _mean(x: torch.Tensor) -> str:
    return f"{x.mean():.3f} +- {x.std() / len(x) ** 0.5:.3f}"


if __name__ == "__main__":
    main()
