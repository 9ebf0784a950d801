"""Titans MAC, memory as context (Behrouz et al., arXiv 2501.00663, Sec. 4.1). Segments of `config.segment` tokens.

The order inside segment t, and the only one:

    1. retrieve   h = M*_{t-1}(q), q = W x         from the memory as the PREVIOUS segment left it; nothing is written yet
    2. attend     y = Attn([p | h | x])            within the segment, causally: token j sees p, h_1..h_j and x_1..x_j
    3. write      M_t = M_{t-1}(y)                 the attention's output is what the memory learns, not x
    4. gate       o = y (x) M*_t(y)                a second read, after the write

Causality. The paper writes whole segments. Token j may not read what later tokens of its segment write, so the gate of
token j reads the memory that y_1..y_j made, and h_j is made from token j alone. Positions are those of [h | x] inside the
segment, h first; p has none (`attention`).

The state. A pass may end inside a segment: the state then holds the keys and values of the segment's h and x so far, the
running memory, and the memory of the segment's start (`frozen`), from which the rest of the segment still retrieves.

Under a schedule the retrieval reads what is open at its own position, like every read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from proteus_kernels import dispatch
from proteus_kernels.masks import counts
from proteus_kernels.titans_common import TitansState
from proteus_models.attention import AttentionCache, Prefix, attend, recurrent, rotate, visible
from proteus_models.config import ModelConfig
from proteus_models.layers import key_norm
from proteus_models.titans import LMMState
from proteus_models.titans_hybrid import Gate, HybridMixer

Seen = tuple[AttentionCache, AttentionCache]  # h and x of the running segment


@dataclass(frozen=True, kw_only=True)
class MACState:
    """The running memory, M_{t-1} of the running segment (`frozen`), keys and values of its h and of its x.

    Both caches hold the last segment - 1 tokens; only those of the running segment are read.
    """

    memory: LMMState
    frozen: tuple[Tensor, ...]
    recalled: AttentionCache
    tokens: AttentionCache


class TitansMACMixer(HybridMixer):
    """x_BTD -> o_BTD."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.segment)
        self.query = nn.Linear(config.d_model, config.n_heads * config.head_k, bias=False)
        self.context_norm = nn.RMSNorm(config.head_v, eps=1e-5)
        self.context = nn.Linear(config.n_heads * config.head_v, config.d_model, bias=False)
        self.norm = nn.RMSNorm(config.d_model, eps=1e-5)
        self.gate = Gate(config.d_model)

    def init_state(self, batch: int) -> MACState:
        memory, cache = self.lmm.init_state(batch), self.attention.init_cache(batch)
        return MACState(memory=memory, frozen=memory[1].weights, recalled=cache, tokens=cache)

    def forward(
        self, x_BTD: Tensor, state: MACState, active: list[int] | None, form: str = "auto", last_only: bool = False
    ) -> tuple[Tensor, MACState]:
        size, position = self.config.segment, state.tokens.position
        cuts = _cuts(position % size, x_BTD.shape[1], 1 if form == "recurrent" else size)
        columns = (*self.attention.project(x_BTD), self.queries(x_BTD, active))
        parts = zip(*(x.split([b - a for a, b in pairwise(cuts)], 1) for x in columns), strict=True)
        memory, frozen, prefix = state.memory, state.frozen, self.attention.prefix(self.prefix, len(x_BTD))
        seen = (_running(state.recalled, position % size), _running(state.tokens, position % size))
        ys, reads = [], []
        for start, (q, k, v, ask) in zip(cuts, parts, strict=False):
            here = None if active is None else active[start : start + q.shape[1]]
            if (position + start) % size == 0:
                frozen, seen = memory[1].weights, (_running(seen[0], 0), _running(seen[1], 0))
            h = self.context(self.context_norm(self.retrieve(frozen, ask, here, form)).flatten(2))
            y, seen = self.attend(h, q, k, v, seen, prefix, form)
            read, memory = self.lmm.mix(self.norm(y), memory, here, form)
            ys.append(y)
            reads.append(read)
        y, read = (torch.cat(x, 1)[:, -1 if last_only else 0 :] for x in (ys, reads))
        recalled, tokens = (_stored(x, size - 1, position + x_BTD.shape[1]) for x in seen)
        after = MACState(memory=memory, frozen=frozen, recalled=recalled, tokens=tokens)
        return self.gate(y, self.lmm.output(read, self.norm(y))), after

    def queries(self, x_BTD: Tensor, active: list[int] | None) -> Tensor:
        """q_BTHK of the retrieval, normalised as the memory's own queries are."""
        c, cap = self.config, self.config.capacity
        on_key = active if cap.axis == "key" and cap.gate in ("both", "read") else None
        return key_norm(self.query(x_BTD).unflatten(-1, (c.n_heads, -1)), on_key, cap.key_norm, c.eps)

    def retrieve(self, weights: tuple[Tensor, ...], q_BTHK: Tensor, active: list[int] | None, form: str) -> Tensor:
        """M*(q) from weights that do not change, [B, T, H, V]. The definition is a pass that writes nothing."""
        cap = self.config.capacity
        if form != "recurrent":
            return read_only(weights, q_BTHK, active, cap.axis, cap.gate)
        nothing = q_BTHK.new_zeros(q_BTHK.shape[:3])
        return dispatch.kernel(self.lmm.kernel, "recurrent")(
            q_BTHK=q_BTHK, k_BTHK=torch.zeros_like(q_BTHK), v_BTHV=nothing[..., None].expand(*nothing.shape, self.config.head_v),
            log_keep_BTH=nothing, log_eta_BTH=nothing, theta_BTH=nothing, state=TitansState.start(weights),
            active=active, axis=cap.axis, gate=cap.gate,
        )[0]  # fmt: skip

    def attend(
        self, h_BTD: Tensor, q: Tensor, k: Tensor, v: Tensor, seen: Seen, prefix: Prefix | None, form: str
    ) -> tuple[Tensor, Seen]:
        """y_BTD of tokens of one segment over [p | h | x], and what the segment's later tokens will see."""
        size, base, at = self.config.segment, self.attention.base, seen[1].position
        _, k_h, v_h = self.attention.project(h_BTD)
        recalled = seen[0].append(rotate(k_h, at, base), v_h, None)
        k, queries = rotate(k, size + at, base), self.attention.queries(q, size + at)
        tokens = seen[1].append(k, v, None)
        if form == "recurrent":
            past = AttentionCache(
                k_BSHK=torch.cat([recalled.k_BSHK, seen[1].k_BSHK], 1), v_BSHV=torch.cat([recalled.v_BSHV, seen[1].v_BSHV], 1),
                position=2 * at + 1,
            )  # fmt: skip
            y, _ = recurrent(q=queries, k_BTHK=k, v_BTHV=v, cache=past, prefix=prefix)
        else:
            causal = visible(q.shape[1], tokens.position, None, 0, q.device)
            y = attend(
                q=queries, k_BSHK=torch.cat([recalled.k_BSHK, tokens.k_BSHK], 1),
                v_BSHV=torch.cat([recalled.v_BSHV, tokens.v_BSHV], 1), visible_QS=torch.cat([causal, causal], 1), prefix=prefix,
            )  # fmt: skip
        return self.attention.out(y.flatten(2)), (recalled, tokens)


def read_only(weights: tuple[Tensor, ...], q_BTHK: Tensor, active: list[int] | None, axis: str, gate: str) -> Tensor:
    """M*(q)_BTHV of a memory that stays as it is, all T at once: one matrix M_BHKV, or the layers W_BHOI of an MLP."""

    def masked(x_BTHX: Tensor) -> Tensor:
        if active is None:
            return x_BTHX
        dim = x_BTHX.shape[2 if axis == "head" else 3]
        seen = torch.tensor([counts(n, dim, gate).output for n in active], device=x_BTHX.device)[:, None]
        mask = torch.arange(dim, device=x_BTHX.device) < seen
        return x_BTHX * (mask[..., None] if axis == "head" else mask[:, None])

    if axis == "hidden":
        for layer in weights[:-1]:
            q_BTHK = masked(nn.functional.silu(torch.einsum("bthi,bhoi->btho", q_BTHK, layer)))
        return torch.einsum("bthi,bhoi->btho", q_BTHK, weights[-1])
    q = q_BTHK * q_BTHK.shape[-1] ** -0.5
    y = torch.einsum("bthk,bhkv->bthv", masked(q) if axis == "key" else q, weights[0])
    return y if axis == "key" else masked(y)


def _cuts(offset: int, length: int, size: int) -> list[int]:
    """0, every multiple of `size` counted from `offset` tokens before the first, and `length`."""
    return [0, *range(size - offset % size, length, size), length]


def _running(cache: AttentionCache, n: int) -> AttentionCache:
    """The last n tokens alone."""
    slots = cache.k_BSHK.shape[1]
    return AttentionCache(k_BSHK=cache.k_BSHK[:, slots - n :], v_BSHV=cache.v_BSHV[:, slots - n :], position=n)


def _stored(cache: AttentionCache, slots: int, position: int) -> AttentionCache:
    """The last tokens of a segment in a fixed number of slots: the state of a segment has one size wherever it is cut."""
    k, v = (x[:, max(0, x.shape[1] - slots) :] for x in (cache.k_BSHK, cache.v_BSHV))
    k, v = (nn.functional.pad(x, (0, 0, 0, 0, slots - x.shape[1], 0)) for x in (k, v))
    return AttentionCache(k_BSHK=k, v_BSHV=v, position=position)
