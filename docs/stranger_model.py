"""A stranger's recurrent model, shown to `proteus-bench check docs/stranger_model.py:subject`: 60 lines, nothing of ours in it.

One head of the plain delta rule on the value axis: columns of S open block by block.
"""

import torch

from proteus_bench.schedules import Capacity, Uniform


class Delta(torch.nn.Module):
    vocab_size, dim = 40, 8

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.capacity = Capacity(schedule=Uniform(blocks=blocks, span=24), axis="value")
        self.embed = torch.nn.Embedding(self.vocab_size, 16)
        self.qkv = torch.nn.Linear(16, 3 * self.dim)
        self.out = torch.nn.Linear(self.dim, self.vocab_size)
        self.double()

    def init_state(self, batch):
        return torch.zeros(batch, self.dim, self.dim, dtype=torch.float64), torch.zeros((), dtype=torch.long)

    def step(self, ids, state):
        memory, t = state or self.init_state(len(ids))
        q, k, v = self.qkv(self.embed(ids)).chunk(3, -1)
        k = torch.nn.functional.normalize(k, dim=-1)
        n = int(self.capacity.active_coords_range(int(t), 1, self.dim)[0])
        g = (torch.arange(self.dim) < n).double()
        error = (v - torch.einsum("bk,bkv->bv", k, memory)) * g
        memory = memory + 0.5 * k[:, :, None] * error[:, None]
        return self.out(torch.einsum("bk,bkv->bv", q, memory) * g), (memory, t + 1)

    def prefill(self, ids, state):
        for t in range(ids.shape[1]):
            logits, state = self.step(ids[:, t], state)
        return logits, state

    def locked(self, state, n):
        return [state[0][:, :, n:]]

    def with_blocks(self, blocks):
        return Delta(blocks)

    def static(self, ids):
        twin = Delta()
        twin.capacity = Capacity.static(axis="value", span=24)
        return twin.prefill(ids, None)[0]


def subject() -> Delta:
    return Delta()
