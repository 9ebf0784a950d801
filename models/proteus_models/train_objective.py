"""The loss of a training step as one module: what is wrapped for several processes, because its call is the whole forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from proteus_models.decoder import DecoderLM

ANSWER, PROSE = 1, 2
PROSE_WEIGHT = 0.1
PIECE = 8192
"""Positions whose logits are alive at a time; they are made again in the backward when there are more."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of one optimizer step, of all processes: ids, next-token labels and kinds [R, T] (int64).

    kind 0 is unlabelled, ANSWER and PROSE are the two parts of the loss. `starts`: where documents begin in each row, when
    memories restart there.
    """

    ids: np.ndarray
    labels: np.ndarray
    kinds: np.ndarray
    starts: list[list[int]] | None = None

    def counts(self) -> tuple[int, int]:
        """How many positions of each kind the step has: every process divides by them, so that sums make the mean."""
        return int((self.kinds == ANSWER).sum()), int((self.kinds == PROSE).sum())

    def cut(self, rows: slice) -> Rows:
        starts = None if self.starts is None else self.starts[rows]
        return Rows(ids=self.ids[rows], labels=self.labels[rows], kinds=self.kinds[rows], starts=starts)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        ids, labels, kinds = (torch.from_numpy(x).to(device) for x in (self.ids, self.labels, self.kinds))
        return ids, labels, kinds


class Objective(nn.Module):
    """Answer cross-entropy + 0.1 x prose cross-entropy of a decoder, logits at labelled positions only."""

    def __init__(self, model: DecoderLM, precision: str = "fp32") -> None:
        super().__init__()
        self.model, self.mixed = model, precision == "bf16"

    def forward(
        self, ids: Tensor, labels: Tensor, kinds: Tensor, counts: tuple[int, int], starts: list[list[int]] | None
    ) -> tuple[Tensor, Tensor]:
        """(this part's share of the step's loss, [answer sum, prose sum, right answers] without a graph)."""
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self.mixed):
            h_BTD = self.model.hidden(ids)[0] if starts is None else self.model.packed(ids, starts)
            sums = self._sums(h_BTD, labels, kinds)
        loss = sums[0] / counts[0] if counts[0] else sums[0] * torch.nan
        if counts[1]:
            loss = loss + PROSE_WEIGHT * (sums[1] / counts[1])
        return loss, sums.detach()

    def _sums(self, h_BTD: Tensor, labels: Tensor, kinds: Tensor) -> Tensor:
        at = kinds > 0
        h, labels, kinds = h_BTD[at], labels[at], kinds[at]
        if len(h) <= PIECE:
            return self._piece(h, labels, kinds)
        parts = zip(h.split(PIECE), labels.split(PIECE), kinds.split(PIECE), strict=True)
        made = [cast(Tensor, checkpoint(self._piece, *part, use_reentrant=False)) for part in parts]
        return torch.stack(made).sum(0)

    def _piece(self, h: Tensor, labels: Tensor, kinds: Tensor) -> Tensor:
        logits = self.model.logits(h)
        logits = logits.float() if logits.element_size() < 4 else logits
        ce = nn.functional.cross_entropy(logits, labels, reduction="none")
        answers = kinds == ANSWER
        right = (logits.detach()[answers].argmax(-1) == labels[answers]).sum()
        return torch.stack([ce[answers].sum(), ce[~answers].sum(), right.to(ce.dtype)])
