"""delta-mem: a small online memory beside every attention layer of a frozen Hugging Face language model.

Per layer, with x_t the input of the attention and S the r x r state (row = value index); delta-mem Eq. 3-12:

    q, k = L2(tanh(W x)),  v = W_v x,  beta = sigmoid(W_b x + b)           r_t = S_{t-1} q_t   (read, then write)
    S_t  = diag(1 - beta) S_{t-1} - diag(beta) (S_{t-1} k) k^T + diag(beta) v k^T
    query += (alpha / r) W_dq r_t          output of the attention layer += (alpha / r) W_do r_t

W_dq and W_do start at zero: the model is unchanged, bit for bit, until they are trained, and nothing else trains. Write modes:
every token (the default), the mean of a segment at its end (`write="segment"`; all its tokens read the state before it), and
`states` > 1, several memories with projections of their own whose reads are concatenated.

A forward without a cache starts from `session`; one with a cache continues the memory that belongs to that cache (beams
included). `commit()` makes what was written last the session. Pads neither write nor count.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proteus_bench.errors import InvalidFileError, UsageError, unknown
from proteus_kernels import delta_mem
from proteus_models.delta_mem_state import (
    ADAPTER,
    CACHE_KEY,
    SESSION,
    DeltaMemConfig,
    DeltaMemState,
    Segments,
    check_tensors,
    follow,
    load_tensors,
    save_tensors,
)
from proteus_models.layers import l2_normalise


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where an architecture keeps its attention: names relative to the causal language model.

    fused: `query` gives q, k and v in one row, q first.
    """

    layers: str
    attention: str
    query: str
    output: str
    fused: bool = False


LLAMA = Places(layers="model.layers", attention="self_attn", query="q_proj", output="o_proj")
# By `config.model_type`. An architecture that is not here is refused: a wrong guess would only look like a bad memory.
ARCHITECTURES: dict[str, Places] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "smollm3": LLAMA,
    "gpt2": Places(layers="transformer.h", attention="attn", query="c_attn", output="c_proj", fused=True),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What all layers share during one forward. real, active: [B, T], None when there is no pad or no schedule.

    state: the memory at the start. after: the counters at the end; every layer then adds its own tensors.
    """

    state: DeltaMemState
    real: Tensor | None
    active: Tensor | None
    segments: Segments | None
    after: DeltaMemState


class DeltaMemLayer(nn.Module):
    """The memory of one attention layer. x_BTD -> the corrections of query and output, and the memory's new state."""

    def __init__(self, config: DeltaMemConfig, width: int, query_width: int) -> None:
        super().__init__()
        self.config = config
        size = config.states * config.rank
        self.query, self.key, self.value = (nn.Linear(width, size, bias=False) for _ in range(3))
        self.beta = nn.Linear(width, size)
        nn.init.constant_(self.beta.bias, config.beta_bias)
        self.to_query = nn.Linear(size, query_width, bias=False)
        self.to_output = nn.Linear(size, width, bias=False)
        for head in (self.to_query, self.to_output):
            nn.init.zeros_(head.weight)

    def forward(self, x_BTD: Tensor, step: Step, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """(query correction, output correction, S_BNRR, sum_BD of the open segment or None)."""
        config, capacity = self.config, self.config.capacity
        x_BTD = x_BTD.to(self.beta.weight.dtype)
        segments = None if step.segments is None else step.segments.to(x_BTD.device)
        writes, sums, at = x_BTD, None, step.real
        if segments is not None:
            writes, sums = segments.means(x_BTD, step.state.sums[layer])
            at = segments.ends
        k, v, z = (self._split(proj(writes)) for proj in (self.key, self.value, self.beta))
        log_keep, beta = nn.functional.logsigmoid(-z), z.sigmoid()
        if segments is not None:  # from segments to the positions where they end
            k, v, log_keep, beta = (segments.spread(y) for y in (k, v, log_keep, beta))
        if at is not None:
            written = at.to(x_BTD.device)[:, :, None, None]
            log_keep, beta = torch.where(written, log_keep, 0.0), torch.where(written, beta, 0.0)
        reads, memory = delta_mem.chunk(
            q_BTNR=self._unit(self._split(self.query(x_BTD))), k_BTNR=self._unit(k), v_BTNR=v,
            log_keep_BTNR=log_keep, erase_BTNR=beta, write_BTNR=beta, state_BNRR=step.state.memory[layer],
            active=step.active, gate=capacity.gate, decay_locked=capacity.decay_locked,
        )  # fmt: skip
        reads_BTS = reads.flatten(2) * (config.alpha / config.rank)
        return self.to_query(reads_BTS), self.to_output(reads_BTS), memory, sums

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.states, self.config.rank))

    @staticmethod
    def _unit(x: Tensor) -> Tensor:
        return l2_normalise(x.tanh(), 1e-6)


class DeltaMem(nn.Module):
    """The adapter of a whole model; its parameters are the memory's alone. Attaching freezes the model.

    `session` is the state that a forward without a cache starts from (None: empty). `last` is the state after the last
    forward, with its graph, so that a loss on a later text trains what was written before it.
    """

    def __init__(self, model: nn.Module, config: DeltaMemConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or DeltaMemConfig()
        self.session: DeltaMemState | None = None
        self.last: DeltaMemState | None = None
        self._step: Step | None = None
        self._found: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}
        self._signature = inspect.signature(model.forward)
        kind = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
        if kind not in ARCHITECTURES:
            raise unknown("architecture for delta-mem", kind, ARCHITECTURES)
        if getattr(model, "_has_delta_mem", False):
            raise UsageError("this model has a delta-mem adapter already: remove() it first")
        attentions = _attentions(model, ARCHITECTURES[kind], config.layers)
        model.requires_grad_(False)
        self.layers = nn.ModuleList(_layer(model, config, *places) for places in attentions)
        self._attach(model, attentions, fused=ARCHITECTURES[kind].fused)

    def _attach(self, model: nn.Module, attentions: list[tuple[nn.Module, nn.Module]], *, fused: bool) -> None:
        self._handles = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, with_kwargs=True),
        ]
        for n, (query, output) in enumerate(attentions):
            self._handles.append(query.register_forward_hook(self._at_query(n, fused)))
            self._handles.append(output.register_forward_hook(self._at_output(n)))
        # a plain attribute: the adapter must not become part of the model's own parameters and files
        object.__setattr__(model, "_has_delta_mem", True)
        self._release = lambda: object.__setattr__(model, "_has_delta_mem", False)

    def remove(self) -> None:
        """Take the adapter off; the model is what it was, and frozen."""
        for handle in self._handles:
            handle.remove()
        self._release()

    def commit(self) -> DeltaMemState:
        """Make the state after the last forward the session; it keeps its graph (`session.detach()` cuts it)."""
        if self.last is None:
            raise UsageError("nothing was written yet")
        self.session = self.last
        return self.session

    def reset(self) -> None:
        """An empty session."""
        self.session = self.last = None

    def empty(self, batch: int) -> DeltaMemState:
        """The state before the first token."""
        size = (batch, self.config.states, self.config.rank, self.config.rank)
        betas = [layer.beta.weight for layer in self._layers()]
        segment = self.config.write == "segment"
        none = torch.zeros(batch, dtype=torch.long)
        return DeltaMemState(
            memory=tuple(w.new_zeros(size) for w in betas),
            sums=tuple(w.new_zeros(batch, w.shape[1]) for w in betas) if segment else (),
            position=none, pending=none.clone(),
        )  # fmt: skip

    def save_session(self, path: str | Path) -> None:
        """Write the session (safetensors, the schedule's positions included). UsageError without one."""
        if self.session is None:
            raise UsageError("there is no session to save: commit() one")
        save_tensors(path, _named(self.session), SESSION, self.config, adapter=self._fingerprint())

    def load_session(self, path: str | Path) -> DeltaMemState:
        """Read a session of this adapter and make it the current one. InvalidFileError for any other file."""
        tensors, config, header = load_tensors(path, SESSION)
        if config != self.config or header.get("adapter") != self._fingerprint():
            raise InvalidFileError(f"{path}: written with another adapter")
        position = tensors.get("position")
        rows = position.shape[0] if position is not None and position.ndim == 1 else 0
        if rows < 1:
            raise InvalidFileError(f"{path}: tensor 'position' is missing, unexpected or of another shape")
        blank = self.empty(rows)
        expected = _named(blank)
        check_tensors(path, tensors, expected)
        placed = {n: t.to(expected[n].device, expected[n].dtype) for n, t in tensors.items()}
        self.session = DeltaMemState(
            memory=tuple(placed[f"memory.{i}"] for i in range(len(blank.memory))),
            sums=tuple(placed[f"sum.{i}"] for i in range(len(blank.sums))),
            position=placed["position"], pending=placed["pending"],
        )  # fmt: skip
        return self.session

    def save(self, path: str | Path) -> None:
        """Write the adapter's weights and configuration."""
        save_tensors(path, self.state_dict(), ADAPTER, self.config)

    @classmethod
    def load(cls, model: nn.Module, path: str | Path) -> DeltaMem:
        """Attach a saved adapter to `model`. InvalidFileError for a damaged file or one of another model."""
        tensors, config, _ = load_tensors(path, ADAPTER)
        adapter = cls(model, config)
        try:
            check_tensors(path, tensors, adapter.state_dict())
        except InvalidFileError:
            adapter.remove()
            raise
        adapter.load_state_dict(tensors)
        return adapter

    def _fingerprint(self) -> str:
        """sha256 of the weights: a state means nothing to an adapter that did not write it."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _layers(self) -> list[DeltaMemLayer]:
        return [layer for layer in self.layers if isinstance(layer, DeltaMemLayer)]

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model.training and getattr(model, "is_gradient_checkpointing", False):
            raise UsageError("gradient checkpointing runs a layer twice, and a memory would be written twice: disable it")
        given = self._signature.bind_partial(*args, **kwargs).arguments
        ids, cache = given.get("input_ids"), given.get("past_key_values")
        shaped = ids if ids is not None else given["inputs_embeds"]
        batch, length = shaped.shape[:2]
        state = self._start(cache, batch)
        real = _real_tokens(given.get("attention_mask"), batch, length)
        counted = torch.ones(batch, length, dtype=torch.bool) if real is None else real
        position = state.position[:, None] + counted.cumsum(1)
        segments = None
        if self.config.write == "segment":
            segments = Segments.cut(self.config, counted, None if ids is None else ids.cpu(), state.pending)
        pending = state.pending if segments is None else segments.pending
        after = replace(state, position=position[:, -1], pending=pending)
        active = self.config.active(position.clamp_min(1))
        self._step = Step(state=state, real=real, active=active, segments=segments, after=after)
        self._cache, self._found = cache, {}

    def _start(self, cache: Any, batch: int) -> DeltaMemState:
        if cache is None or cache.get_seq_length() == 0:
            return self.empty(batch) if self.session is None else self.session.for_batch(batch)
        state = getattr(cache, CACHE_KEY, None)
        if state is None:
            raise UsageError("this cache was filled without the memory: fill it with the adapter attached")
        if state.rows != batch:
            raise ValueError(f"the cache's memory holds {state.rows} rows and the batch {batch}")
        return state

    def _at_query(self, n: int, fused: bool) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if self._step is None:
                raise UsageError("an inner module was called by itself: call the model that the memory is attached to")
            query, *found = self._layers()[n](args[0], self._step, n)
            self._found[n] = (found[0], found[1], found[2])
            query = query.to(output.dtype)
            if not fused:
                return output + query
            width = query.shape[-1]
            return torch.cat([output[..., :width] + query, output[..., width:]], -1)

        return hook

    def _at_output(self, n: int) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return output + self._found[n][0].to(output.dtype)

        return hook

    def _end(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        assert self._step is not None
        found = [self._found[n] for n in range(len(self.layers))]
        sums = tuple(s for _, _, s in found if s is not None)
        self.last = replace(self._step.after, memory=tuple(m for _, m, _ in found), sums=sums)
        for cache in (self._cache, getattr(output, "past_key_values", None)):
            if cache is not None:
                follow(cache, self.last)
        self._step, self._cache, self._found = None, None, {}


def _attentions(model: nn.Module, places: Places, wanted: tuple[int, ...] | None) -> list[tuple[nn.Module, nn.Module]]:
    """(query projection, output projection) of the wanted layers."""
    layers = model.get_submodule(places.layers)
    assert isinstance(layers, nn.ModuleList)
    numbers = range(len(layers)) if wanted is None else wanted
    if not numbers or any(not 0 <= n < len(layers) for n in numbers) or len(set(numbers)) != len(numbers):
        raise UsageError(f"layers must be distinct numbers from 0 to {len(layers) - 1}, not {list(numbers)}")
    attentions = [layers[n].get_submodule(places.attention) for n in numbers]
    return [(a.get_submodule(places.query), a.get_submodule(places.output)) for a in attentions]


def _layer(model: Any, config: DeltaMemConfig, query: Any, output: nn.Module) -> DeltaMemLayer:
    """A layer on the device of its attention, in 32 bits or in the model's 64."""
    width = model.config.hidden_size
    layer = DeltaMemLayer(config, width, getattr(query, "out_features", width))
    weight = query.weight
    return layer.to(weight.device, torch.float64 if weight.dtype == torch.float64 else torch.float32)


def _named(state: DeltaMemState) -> dict[str, Tensor]:
    layers = {f"memory.{i}": t for i, t in enumerate(state.memory)} | {f"sum.{i}": t for i, t in enumerate(state.sums)}
    return layers | {"position": state.position, "pending": state.pending}


def _real_tokens(mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    """The last `length` columns of a 2-D mask; None when nothing is a pad."""
    if mask is None:
        return None
    if mask.ndim != 2 or mask.shape[0] != batch or mask.shape[1] < length:
        raise ValueError(f"delta-mem needs a 2-D attention_mask [batch, at least {length}], not {list(mask.shape)}")
    real = mask[:, mask.shape[1] - length :].bool().cpu()
    return None if bool(real.all()) else real
