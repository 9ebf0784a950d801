"""Causal softmax attention with rotary positions, over the whole past or a sliding window, and its cache.

    y_t = sum_s softmax_s(q_t . k_s / sqrt(K)) v_s        s <= t, and s > t - window if there is one

q and k are rotated by their absolute position (half-split rotary: coordinate i turns with i + K/2), so only distances
matter and a pass that continues from a cache continues its positions. A prefix (the persistent tokens of Titans) is seen
by every query and has NO position: it is scored with the query before rotation. A rotated prefix would drift out of the
distances seen in training as the context grows.

Shapes: B batch, T new tokens, S cached tokens, P prefix tokens, H heads, K and V coordinates. The queries may be the last
Q <= T positions only. `recurrent` is the definition, one token at a time; `chunk` uses scaled_dot_product_attention, and
with a window runs it on blocks, so that time and memory are O(T window), never T x T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proteus_models.config import ModelConfig
from proteus_models.layers import rotary

Prefix = tuple[Tensor, Tensor]  # k_BPHK, not rotated, and v_BPHV


@dataclass(frozen=True, kw_only=True)
class AttentionCache:
    """Rotated keys and values of earlier tokens, oldest first, and how many tokens came before.

    Without a window S = position. With one, S = window - 1 always: slots that no token has filled yet are never read.
    """

    k_BSHK: Tensor
    v_BSHV: Tensor
    position: int = 0

    @property
    def filled(self) -> int:
        """How many of the slots hold a token."""
        return min(self.position, self.k_BSHK.shape[1])

    def append(self, k_BTHK: Tensor, v_BTHV: Tensor, window: int | None) -> AttentionCache:
        """The cache after T more tokens, cut to the window."""
        k, v = torch.cat([self.k_BSHK, k_BTHK], 1), torch.cat([self.v_BSHV, v_BTHV], 1)
        if window is not None:  # copies: a slice would keep the whole pass alive
            k, v = (x[:, x.shape[1] - (window - 1) :].clone() for x in (k, v))
        return AttentionCache(k_BSHK=k, v_BSHV=v, position=self.position + k_BTHK.shape[1])


@dataclass(frozen=True, kw_only=True)
class Queries:
    """One set of queries twice: turned to their positions, for tokens, and as they were, for the prefix. [B, Q, H, K]"""

    rotated: Tensor
    free: Tensor

    def last(self, n: int) -> Queries:
        return Queries(rotated=self.rotated[:, -n:], free=self.free[:, -n:])


def rotate(x_BTHK: Tensor, start: int | Tensor, base: float) -> Tensor:
    """Turn the pairs (x_i, x_{i + K/2}) at positions start .. start+T-1, or at the positions [T], by position * base^(-2i/K)."""
    half = x_BTHK.shape[-1] // 2
    cos, sin = rotary(x_BTHK, start, base)
    a, b = x_BTHK[..., :half], x_BTHK[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def recurrent(
    *, q: Queries, k_BTHK: Tensor, v_BTHV: Tensor, cache: AttentionCache, window: int | None = None, prefix: Prefix | None = None
) -> tuple[Tensor, AttentionCache]:  # fmt: skip
    """The definition, one token at a time. Returns y_BQHV and the cache."""
    scale, outs, skip = k_BTHK.shape[-1] ** -0.5, [], k_BTHK.shape[1] - q.free.shape[1]
    for t in range(k_BTHK.shape[1]):
        past = cache.filled
        k = torch.cat([cache.k_BSHK[:, cache.k_BSHK.shape[1] - past :], k_BTHK[:, t : t + 1]], 1)
        v = torch.cat([cache.v_BSHV[:, cache.v_BSHV.shape[1] - past :], v_BTHV[:, t : t + 1]], 1)
        cache = cache.append(k_BTHK[:, t : t + 1], v_BTHV[:, t : t + 1], window)
        if t < skip:
            continue
        scores = torch.einsum("bhk,bshk->bhs", q.rotated[:, t - skip], k)
        if prefix is not None:
            scores = torch.cat([torch.einsum("bhk,bphk->bhp", q.free[:, t - skip], prefix[0]), scores], -1)
            v = torch.cat([prefix[1], v], 1)
        weights = (scale * scores - (scale * scores).amax(-1, keepdim=True)).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        outs.append(torch.einsum("bhs,bshv->bhv", weights, v))
    return torch.stack(outs, 1), cache


def chunk(
    *, q: Queries, k_BTHK: Tensor, v_BTHV: Tensor, cache: AttentionCache, window: int | None = None, prefix: Prefix | None = None
) -> tuple[Tensor, AttentionCache]:  # fmt: skip
    """The fast form of `recurrent` (same arguments and result)."""
    after = cache.append(k_BTHK, v_BTHV, window)
    n, seen = q.free.shape[1], None
    if window is None:
        k, v = after.k_BSHK, after.v_BSHV
        if prefix is not None or n != k.shape[1]:
            seen = visible(n, k.shape[1], None, 0, k.device)
        return attend(q=q, k_BSHK=k, v_BSHV=v, visible_QS=seen, prefix=prefix), after
    reach = n + window - 1  # the last queries of a long pass see no further back
    k, v = (torch.cat(pair, 1)[:, -reach:] for pair in ((cache.k_BSHK, k_BTHK), (cache.v_BSHV, v_BTHV)))
    empty = max(0, k.shape[1] - cache.filled - k_BTHK.shape[1])
    if n > window:
        return _blocks(q, k, v, window, empty, prefix), after
    return attend(q=q, k_BSHK=k, v_BSHV=v, visible_QS=visible(n, reach, window, empty, k.device), prefix=prefix), after


def attend(*, q: Queries, k_BSHK: Tensor, v_BSHV: Tensor, visible_QS: Tensor | None, prefix: Prefix | None) -> Tensor:
    """y_BQHV over the keys that `visible_QS` shows to each query (None: causal, Q = S), and over the whole prefix."""
    scale, query = k_BSHK.shape[-1] ** -0.5, q.rotated
    if prefix is not None:
        # one product scores both kinds of key: tokens against the rotated half, the prefix against the free half
        query = torch.cat([q.rotated, q.free], -1)
        kp, vp = prefix
        tokens = torch.cat([k_BSHK, torch.zeros_like(k_BSHK)], -1)
        k_BSHK, v_BSHV = torch.cat([torch.cat([torch.zeros_like(kp), kp], -1), tokens], 1), torch.cat([vp, v_BSHV], 1)
        assert visible_QS is not None
        visible_QS = nn.functional.pad(visible_QS, (kp.shape[1], 0), value=True)
    q_BHQK, k_BHSK, v_BHSV = (x.transpose(1, 2) for x in (query, k_BSHK, v_BSHV))
    y_BHQV = nn.functional.scaled_dot_product_attention(
        q_BHQK, k_BHSK, v_BHSV, attn_mask=visible_QS, is_causal=visible_QS is None, scale=scale
    )
    return y_BHQV.transpose(1, 2)


def visible(queries: int, keys: int, window: int | None, empty: int, device: torch.device) -> Tensor:
    """Which keys each query sees when the last query stands on the last key; the first `empty` keys hold no token."""
    at = torch.arange(keys - queries, keys, device=device)[:, None]
    key = torch.arange(keys, device=device)
    seen = (key <= at) & (key >= empty)
    return seen if window is None else seen & (key > at - window)


def _blocks(q: Queries, k: Tensor, v: Tensor, window: int, empty: int, prefix: Prefix | None) -> Tensor:
    """Blocks of `window` queries, each over its own and the previous block of keys: 2 window keys a query."""
    batch, n = q.free.shape[:2]
    count = -(-n // window)
    short = count * window - n
    # window - 1 keys come before the first query: one slot of filler makes them a block
    blocks = [_fill(x, 0, short).unflatten(1, (count, window)) for x in (q.rotated, q.free)]
    keys, values = (_fill(x, 1, short).unflatten(1, (count + 1, window)) for x in (k, v))
    pairs = [torch.cat([x[:, :-1], x[:, 1:]], 2) for x in (keys, values)]
    outs = []
    # only the first block can reach slots that hold no token, and then it needs a mask of its own
    for start, stop in ((0, 1), (1, count)) if empty else ((0, count),):
        rotated, free, k_part, v_part = (x[:, start:stop].flatten(0, 1) for x in (*blocks, *pairs))
        seen = visible(window, 2 * window, window, 0 if start else empty + 1, k.device)
        part, rows = Queries(rotated=rotated, free=free), _rows(prefix, stop - start)
        y = attend(q=part, k_BSHK=k_part, v_BSHV=v_part, visible_QS=seen, prefix=rows)
        outs.append(y.unflatten(0, (batch, stop - start)).flatten(1, 2))
    return torch.cat(outs, 1)[:, :n]


def _fill(x: Tensor, before: int, after: int) -> Tensor:
    return nn.functional.pad(x, (0, 0, 0, 0, before, after))


def _rows(prefix: Prefix | None, blocks: int) -> Prefix | None:
    """The prefix of each row of the batch, once for each of its blocks."""
    if prefix is None:
        return None
    k, v = (x.repeat_interleave(blocks, 0) for x in prefix)
    return k, v


class Attention(nn.Module):
    """x_BTD -> y_BTD: projections, optional RMSNorm of every head's q and k, rotary positions, attention, projection."""

    def __init__(self, config: ModelConfig, window: int | None = None) -> None:
        super().__init__()
        if config.head_k % 2:
            raise ValueError(f"rotary positions turn pairs of coordinates: head_k must be even, got {config.head_k}")
        self.heads, self.window, self.base = config.n_heads, window, config.rope_base
        self.sizes = [config.n_heads * n for n in (config.head_k, config.head_k, config.head_v)]
        self.qkv = nn.Linear(config.d_model, sum(self.sizes), bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(config.head_k, eps=1e-5) for _ in range(2 * config.qk_norm))
        self.out = nn.Linear(self.sizes[2], config.d_model, bias=False)

    def init_cache(self, batch: int) -> AttentionCache:
        """No tokens yet."""
        slots = 0 if self.window is None else self.window - 1
        k, v = (self.qkv.weight.new_zeros(batch, slots, self.heads, self.sizes[i] // self.heads) for i in (0, 2))
        return AttentionCache(k_BSHK=k, v_BSHV=v)

    def project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q_BTHK, k_BTHK and v_BTHV, not rotated."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x_BTD).split(self.sizes, -1))
        return (self.norms[0](q), self.norms[1](k), v) if len(self.norms) else (q, k, v)

    def prefix(self, tokens_BPD: Tensor | None, batch: int) -> Prefix | None:
        """Keys and values of tokens that every query sees; one row of tokens serves the whole batch."""
        if tokens_BPD is None:
            return None
        _, k, v = self.project(tokens_BPD)
        return k.expand(batch, -1, -1, -1), v.expand(batch, -1, -1, -1)

    def queries(self, q_BTHK: Tensor, start: int) -> Queries:
        return Queries(rotated=rotate(q_BTHK, start, self.base), free=q_BTHK)

    def forward(
        self, x_BTD: Tensor, cache: AttentionCache, form: str = "auto", *, prefix: Tensor | None = None, last_only: bool = False
    ) -> tuple[Tensor, AttentionCache]:  # fmt: skip
        """`prefix` tokens_BPD (B may be 1) are seen by every position. `last_only`: y of the last position."""
        q, k, v = self.project(x_BTD)
        queries = self.queries(q, cache.position)
        y, cache = (recurrent if form == "recurrent" else chunk)(
            q=queries.last(1) if last_only else queries, k_BTHK=rotate(k, cache.position, self.base), v_BTHV=v,
            cache=cache, window=self.window, prefix=self.prefix(prefix, len(x_BTD)),
        )  # fmt: skip
        return self.out(y.flatten(2)), cache
