"""delta-mem's state: the definition (`recurrent`) and the chunked form (`chunk`), with a schedule over rows.

Shapes: B batch, T positions, N parallel states, R rank; state_BNRR, row = VALUE index (unlike `delta`). Per state and step
(delta-mem Eq. 3, 6, 10-12; the published model has keep = 1 - beta and erase = write = beta, per row):

    y  = o . (S q_t)                                                    read BEFORE the write
    S' = diag(keep_t) S - diag(erase_t) (S k_t) k_t^T + diag(write_t) v_t k_t^T

A row i is a delta rule of its own with scalar gates, so a schedule opens rows: on a locked row keep = 1, erase = write = 0
and o = 0, which is exact for any start state. (Locked key columns could not be kept: keep is one number a row.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from proteus_kernels.masks import GATES

DeltaMemOut = tuple[Tensor, Tensor]
Active = Sequence[int] | Tensor
"""Open rows at each position: one count a position, or [B, T] when the rows of a batch stand at different positions."""


def _open_rows(active: Active | None, gate: str, like_BTNR: Tensor) -> tuple[Tensor, Tensor]:
    """Masks [B or 1, T, 1, R] of the rows that are written and of those that are read."""
    if gate not in GATES:
        raise ValueError(f"unknown gate {gate!r}; one of {', '.join(GATES)}")
    length, rank = like_BTNR.shape[1], like_BTNR.shape[3]
    row = torch.arange(rank, device=like_BTNR.device)
    everything = torch.ones(1, length, 1, rank, dtype=torch.bool, device=like_BTNR.device)
    if active is None:
        return everything, everything
    count = torch.as_tensor(active)
    if count.shape[-1] != length:
        raise ValueError(f"active has {count.shape[-1]} entries for {length} positions")
    if count.numel() and (int(count.min()) < 1 or int(count.max()) > rank):
        raise ValueError(f"active rows must lie in 1..{rank}, got {int(count.min())}..{int(count.max())}")
    mask = row < count.to(row.device).view(-1, length, 1, 1)
    return (
        mask if gate in ("both", "write") else everything,
        mask if gate in ("both", "read") else everything,
    )


def _gated(
    log_keep: Tensor, erase: Tensor, write: Tensor, active: Active | None, gate: str, decay_locked: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The three gates with locked rows left alone, and the mask of the reads."""
    written, read = _open_rows(active, gate, log_keep)
    keeps = torch.ones_like(written) if decay_locked == "unmasked" else written
    return torch.where(keeps, log_keep, 0.0), torch.where(written, erase, 0.0), torch.where(written, write, 0.0), read


def recurrent(
    *,
    q_BTNR: Tensor,
    k_BTNR: Tensor,
    v_BTNR: Tensor,
    log_keep_BTNR: Tensor,
    erase_BTNR: Tensor,
    write_BTNR: Tensor,
    state_BNRR: Tensor,
    active: Active | None = None,
    gate: str = "both",
    decay_locked: str = "masked",
) -> DeltaMemOut:
    """The definition, one position at a time. Returns y_BTNR and the final state_BNRR."""
    log_keep, erase, write, read = _gated(log_keep_BTNR, erase_BTNR, write_BTNR, active, gate, decay_locked)
    keep, outs, state = log_keep.exp(), [], state_BNRR
    for t in range(q_BTNR.shape[1]):
        k = k_BTNR[:, t]
        outs.append(torch.einsum("bnij,bnj->bni", state, q_BTNR[:, t]) * read[:, t])
        predicted = torch.einsum("bnij,bnj->bni", state, k)
        change = write[:, t] * v_BTNR[:, t] - erase[:, t] * predicted
        state = keep[:, t, ..., None] * state + change[..., None] * k[..., None, :]
    return torch.stack(outs, 1), state


def chunk(
    *,
    q_BTNR: Tensor,
    k_BTNR: Tensor,
    v_BTNR: Tensor,
    log_keep_BTNR: Tensor,
    erase_BTNR: Tensor,
    write_BTNR: Tensor,
    state_BNRR: Tensor,
    active: Active | None = None,
    gate: str = "both",
    decay_locked: str = "masked",
    chunk_size: int = 32,
) -> DeltaMemOut:
    """The chunked form of `recurrent`: same arguments, same result, matrix products over `chunk_size` positions.

    Row i of S, with L = cumsum(log keep_i) and L' = L - log keep_i (before the step), obeys s_t = keep_t s_{t-1} + u_t k_t:

        (I + A) u = write . v - erase . e^{L'} K s_0          A_tj = erase_t e^{L'_t - L_j} (k_t . k_j),  j < t
        y_t = e^{L'_t} q_t . s_0 + sum_{j<t} e^{L'_t - L_j} (q_t . k_j) u_j
        s_C = e^{L_C} s_0 + sum_j e^{L_C - L_j} u_j k_j

    The solve is made for all chunks at once, against K and v apart, and the states then follow one another.
    """
    length = q_BTNR.shape[1]
    if length == 1:
        return recurrent(
            q_BTNR=q_BTNR, k_BTNR=k_BTNR, v_BTNR=v_BTNR, log_keep_BTNR=log_keep_BTNR, erase_BTNR=erase_BTNR, write_BTNR=write_BTNR,
            state_BNRR=state_BNRR, active=active, gate=gate, decay_locked=decay_locked,
        )  # fmt: skip
    *gates, read = _gated(log_keep_BTNR, erase_BTNR, write_BTNR, active, gate, decay_locked)
    size = min(chunk_size, length)
    missing = -length % size  # neutral positions at the end: keep 1, nothing written

    def cut(x_BTNR: Tensor) -> Tensor:
        """[B, N, chunks, size, R]"""
        padded = torch.nn.functional.pad(x_BTNR, (0, 0, 0, 0, 0, missing))
        return padded.unflatten(1, (-1, size)).permute(0, 3, 1, 2, 4)

    q, k, v, log_keep, erase, write = (cut(x) for x in (q_BTNR, k_BTNR, v_BTNR, *gates))
    # every row has gates of its own: rows become an axis before positions, [B, N, chunks, R, size]
    after = log_keep.cumsum(-2).transpose(-1, -2)
    before = after - log_keep.transpose(-1, -2)
    strict = torch.ones(size, size, dtype=torch.bool, device=q.device).tril(-1)
    fade = (before[..., :, None] - after[..., None, :]).masked_fill(~strict, -torch.inf).exp()
    kt = k.transpose(-1, -2)
    lower = erase.transpose(-1, -2)[..., None] * fade * (k @ kt)[..., None, :, :]
    start = before.exp()[..., None]
    against_k = erase.transpose(-1, -2)[..., None] * start * k[..., None, :, :]
    against_v = (write * v).transpose(-1, -2)[..., None]
    solved = torch.linalg.solve_triangular(lower, torch.cat([against_k, against_v], -1), upper=False, unitriangular=True)
    w, u = solved[..., :-1], solved[..., -1]
    scores = fade * (q @ kt)[..., None, :, :]
    to_end = (after[..., -1:] - after).exp()
    end = after[..., -1].exp()[..., None]
    outs, state = [], state_BNRR
    for c in range(q.shape[2]):
        row = state[..., None]
        change = u[:, :, c] - (w[:, :, c] @ row).squeeze(-1)
        read_start = (start[:, :, c] * q[:, :, c, None]) @ row
        outs.append((read_start + scores[:, :, c] @ change[..., None]).squeeze(-1))
        state = end[:, :, c] * state + (to_end[:, :, c] * change) @ k[:, :, c]
    y_BNRT = torch.cat(outs, -1)[..., :length]
    return y_BNRT.permute(0, 3, 1, 2) * read, state
