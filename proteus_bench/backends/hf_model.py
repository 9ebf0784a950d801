"""A causal language model of transformers with the interface of our decoders, so that `recurrent` asks it alike.

The state is the model's cache. Forking it copies rows, so a context that many questions share is read once. Models whose cache
cannot be forked (none at all, or one that fails `forks_agree`) are read again from the start for every token: slow, and right.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Log-probabilities of a forked cache and of a plain pass differ by less, or the cache is not used.
_AGREE = {torch.float32: 1e-3, torch.float64: 1e-6}
_AGREE_HALF = 0.2


@dataclass
class CacheState:
    """``rows`` texts after the tokens that were read. ``cache`` moves on in place; `select` makes independent copies."""

    rows: int
    cache: Any = None

    def select(self, rows: Sequence[int] | slice) -> CacheState:
        """A copy with these rows."""
        index = list(range(self.rows))[rows] if isinstance(rows, slice) else list(rows)
        return CacheState(len(index), None if self.cache is None else _fork(self.cache, index))


@dataclass
class TextState:
    """All tokens that were read: the state of a model without a cache. ids_BT: [rows, T] or None before the first."""

    rows: int
    ids_BT: Tensor | None = None

    def select(self, rows: Sequence[int] | slice) -> TextState:
        """A copy with these rows."""
        index = list(range(self.rows))[rows] if isinstance(rows, slice) else list(rows)
        return TextState(len(index), None if self.ids_BT is None else self.ids_BT[index])


def _fork(cache: Any, rows: list[int]) -> Any:
    """A copy of some rows of a cache. Plain key-value layers share nothing that is written in place, so only the rows that are
    taken are copied; any other cache is copied whole first."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    layers = getattr(cache, "layers", None)
    if layers and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
        fork = copy.copy(cache)
        fork.layers = [copy.copy(layer) for layer in layers]
    else:
        fork = copy.deepcopy(cache)
    fork.reorder_cache(torch.tensor(rows, device=_device_of(cache)))
    return fork


def _device_of(cache: Any) -> Any:
    keys = [getattr(layer, "keys", None) for layer in getattr(cache, "layers", None) or []]
    return next((k.device for k in keys if isinstance(k, Tensor)), None)


class CachedModel:
    """init_state, prefill and a teacher-forced call, as `recurrent.answer_recurrent` wants them. Logits come back on the CPU."""

    def __init__(self, model: Any) -> None:
        self.model = model
        parameters = inspect.signature(model.forward).parameters
        self._keeps_last = "logits_to_keep" in parameters
        self.cached = "past_key_values" in parameters and self.forks_agree()

    def init_state(self, rows: int) -> Any:
        """Nothing read."""
        return CacheState(rows) if self.cached else TextState(rows)

    def prefill(self, ids_BT: Tensor, state: Any) -> tuple[Tensor, Any]:
        """(logits [B, V] after the last token, state)."""
        logits_BTV, state = self._read(ids_BT, state, last=True)
        return logits_BTV[:, -1].cpu(), state

    def __call__(self, ids_BT: Tensor, *, state: Any, return_state: bool = True) -> tuple[Tensor, Any]:
        """(logits [B, T, V], state)."""
        logits_BTV, state = self._read(ids_BT, state, last=False)
        return logits_BTV.cpu(), state

    def _read(self, ids_BT: Tensor, state: Any, last: bool) -> tuple[Tensor, Any]:
        extra = {"logits_to_keep": 1} if last and self._keeps_last else {}
        ids_BT = ids_BT.to(self.model.device)
        if isinstance(state, CacheState):
            out = self.model(input_ids=ids_BT, past_key_values=state.cache, use_cache=True, **extra)
            return out.logits, CacheState(len(ids_BT), out.past_key_values)
        before = 0 if state.ids_BT is None else state.ids_BT.shape[1]
        whole_BT = ids_BT if state.ids_BT is None else torch.cat([state.ids_BT, ids_BT], 1)
        logits_BTV = self.model(input_ids=whole_BT, use_cache=False, **extra).logits
        return (logits_BTV if last else logits_BTV[:, before:]), TextState(len(ids_BT), whole_BT)

    @torch.inference_mode()
    def forks_agree(self) -> bool:
        """Whether two forks of a cache that go on differently give what plain passes give, and leave the original alone."""
        vocabulary = int(self.model.config.get_text_config().vocab_size)
        ids_T = torch.arange(1, 13) * 7919 % vocabulary
        start_BT, tails_BT = ids_T[None, :6].expand(2, -1), torch.stack([ids_T[6:9], ids_T[9:]])
        bound = _AGREE.get(self.model.dtype, _AGREE_HALF)
        try:
            _, state = self._read(start_BT, CacheState(2), last=True)
            for _ in range(2):  # a fork that wrote into its original would show in the second round
                forked, _ = self._read(tails_BT, state.select([0, 1]), last=False)
                plain, _ = self._read(torch.cat([start_BT, tails_BT], 1), TextState(2), last=False)
                gap = forked.double().log_softmax(-1) - plain[:, 6:].double().log_softmax(-1)
                if not float(gap.abs().max()) <= bound:
                    return False
        except (AttributeError, NotImplementedError, TypeError, ValueError, RuntimeError):
            return False
        return True
