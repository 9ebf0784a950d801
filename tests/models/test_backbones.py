"""Every registered backbone on every axis: one function in every form and cut; broken variants are caught by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proteus_bench.schedules import Capacity, CapacityError, Reverse, Schedule, Uniform
from proteus_kernels import comba, delta, linear
from proteus_models import zoo
from proteus_models.check import check_model, random_state
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS, DecoderLM, map_tensors
from proteus_models.layers import l2_normalise
from proteus_models.retnet import RetNetMixer, rotate_pairs
from proteus_models.swla import SWLAMixer

SIZES = {"d_model": 16, "n_heads": 4, "head_k": 8, "head_v": 8, "mlp_hidden": 16, "memory_hidden": 16, "n_layers": 1}
CASES = [(name, axis) for name, mixer in MIXERS.items() for axis in mixer.axes]
OWN_MEMORY = ("gdn", "deltanet", "retnet", "comba", "swla", "titans", "titans-mlp")
GATED = [(name, axis, "both") for name, axis in CASES]
GATED += [(name, axis, gate) for name, axis in CASES if name in OWN_MEMORY for gate in ("write", "read")]
KERNELS: dict[str, Any] = {"gdn": delta, "deltanet": delta, "retnet": linear, "comba": comba, "swla": linear}


def config(mixer: str, axis: str, schedule: type[Schedule] = Uniform, sizes: Any = None, **choices: Any) -> ModelConfig:
    mlp = axis == "hidden"  # an MLP memory: inside a hybrid the configuration says so, and its start must be learned
    capacity = Capacity(
        schedule=schedule(blocks=4, span=24), axis=axis, **({"m0": "learned" if mlp else "zero"} | choices)
    )
    own = {"memory": "mlp"} if mlp else {}
    return ModelConfig(
        mixer=mixer, vocab_size=40, train_length=24, capacity=capacity, chunk=5, inner=5,
        **(SIZES | {"window": 6, "segment": 6} | own | (sizes or {})),
    )  # fmt: skip


def build(c: ModelConfig) -> DecoderLM:
    torch.manual_seed(0)
    return DecoderLM(c)


def failed(model: DecoderLM) -> set[str]:
    rows = check_model(model, length=24 if model.config.mixer in OWN_MEMORY else 16)
    assert len(rows) == 10
    return {row.name for row in rows if not row.passed}


def tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(tree, lambda x: found.append(x) or x)  # type: ignore[func-returns-value]
    return found


@pytest.mark.parametrize(("mixer", "axis"), CASES)
def test_every_backbone_and_axis_passes_every_check_opening_and_closing(mixer: str, axis: str) -> None:
    closes = mixer in OWN_MEMORY or axis == MIXERS[mixer].axes[0]  # a hybrid's memory is one of these
    for schedule in (Uniform, Reverse)[: 1 + closes]:
        assert failed(build(config(mixer, axis, schedule))) == set(), schedule.name


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_static_backbone_passes_every_check(mixer: str) -> None:
    axis = (*MIXERS[mixer].axes, "key")[0]
    c = config(mixer, axis)
    assert failed(build(replace(c, capacity=Capacity.static(axis=axis, span=24, m0=c.capacity.m0)))) == set()


def _everything(model: DecoderLM, form: str) -> list[Tensor]:
    """Logits, final state, and the gradients of a random functional of both: every parameter, every start tensor."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(40, (2, 27), generator=generator)
    state = random_state(model, 2, generator)
    start = [x.requires_grad_() for x in tensors(state.layers) if x.is_floating_point() and x.numel()]
    logits, end = model(ids, state, return_state=True, form=form)
    outs = [logits, *(x for x in tensors(end.layers) if x.is_floating_point())]
    loss = sum((x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum() for x in outs)
    inputs = [*model.parameters(), *start]
    grads = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)  # type: ignore[arg-type]
    return [x.detach() for x in (*outs, *grads)]


@pytest.mark.parametrize(("mixer", "axis", "gate"), GATED)
def test_both_forms_agree_on_outputs_state_and_every_gradient(mixer: str, axis: str, gate: str) -> None:
    read = {"both": "post", "write": "pre", "read": "post"}[gate]
    model = build(config(mixer, axis, gate=gate, read=read)).double()
    for fast, slow in zip(_everything(model, "chunk"), _everything(model, "recurrent"), strict=True):
        assert float((fast - slow).norm(torch.inf)) <= 1e-10 * max(1e-6, float(slow.norm(torch.inf)))


@pytest.mark.parametrize(("mixer", "axis"), CASES)
def test_one_block_is_the_base_model_bit_for_bit(mixer: str, axis: str) -> None:
    c = config(mixer, axis)
    static = replace(c, capacity=Capacity.static(axis=axis, span=24, m0=c.capacity.m0))
    one = replace(c, capacity=replace(c.capacity, schedule=Uniform(blocks=1, span=24)))
    ids = torch.arange(29)[None]
    assert torch.equal(build(static)(ids), build(one)(ids))


@pytest.mark.parametrize(("mixer", "axis"), CASES)
def test_token_by_token_is_one_pass(mixer: str, axis: str) -> None:
    model = build(config(mixer, axis)).double()
    ids, state, outs = torch.arange(13)[None], None, []
    for t in range(13):
        logits, state = model(ids[:, t : t + 1], state, return_state=True)
        outs.append(logits)
    whole = model(ids)
    assert float((torch.cat(outs, 1) - whole).detach().abs().max()) < 1e-12


def test_every_registered_mixer_is_a_backbone_of_the_zoo_with_the_same_axes() -> None:
    backbones = {b.name: b for b in vars(zoo).values() if isinstance(b, zoo.Backbone)}
    assert {name: set(b.axes) for name, b in backbones.items()} == {n: set(m.axes) for n, m in MIXERS.items()}
    assert all(b.memory == MIXERS[name].memory for name, b in backbones.items())


def test_the_delta_family_has_about_the_parameters_of_gated_deltanet() -> None:
    sizes = {"d_model": 128, "n_heads": 2, "head_k": 64, "head_v": 64, "mlp_hidden": 256, "n_layers": 2}
    counts = {
        name: sum(p.numel() for p in build(config(name, "value", sizes=sizes)).blocks.parameters()) for name in KERNELS
    }
    assert all(0.9 < n / counts["gdn"] < 1.01 for n in counts.values()), counts


Broken = Callable[[Callable[..., Any]], Callable[..., Any]]


def broken(monkeypatch: pytest.MonkeyPatch, mixer: str, change: Broken, forms: tuple[str, ...]) -> set[str]:
    """The names of the checks that fail when `change` is applied to these forms of the backbone's kernel."""
    for form in forms:
        monkeypatch.setattr(KERNELS[mixer], form, change(getattr(KERNELS[mixer], form)))
    return failed(build(config(mixer, "key")))


def _reads_all(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **x: right(**(x | {"gate": "write"}))


def _shifted(by: int) -> Broken:
    """The schedule `by` positions late (a negative number: early)."""

    def change(right: Callable[..., Any]) -> Callable[..., Any]:
        def late(**x: Any) -> Any:
            active = x["active"] or [8] * x["q_BTHK"].shape[1]
            moved = [active[0], *active[:-1]] if by > 0 else [*active[1:], min(8, active[-1] + 2)]
            return right(**(x | {"active": moved}))

        return late

    return change


FORMS = ("chunk", "recurrent")


@pytest.mark.parametrize("mixer", KERNELS)
def test_a_read_of_locked_blocks_is_caught(monkeypatch: pytest.MonkeyPatch, mixer: str) -> None:
    assert broken(monkeypatch, mixer, _reads_all, FORMS) == {"locked reads"}


@pytest.mark.parametrize("mixer", KERNELS)
def test_a_read_of_locked_blocks_in_one_form_is_caught_twice(monkeypatch: pytest.MonkeyPatch, mixer: str) -> None:
    assert {"locked reads", "chunk = definition"} <= broken(monkeypatch, mixer, _reads_all, ("chunk",))


@pytest.mark.parametrize("mixer", [name for name in KERNELS if name != "deltanet"])
def test_decay_on_locked_blocks_is_caught(monkeypatch: pytest.MonkeyPatch, mixer: str) -> None:
    def decays(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **x: right(**(x | {"decay_locked": "unmasked"}))

    assert broken(monkeypatch, mixer, decays, FORMS) == {"lock invariant"}


@pytest.mark.parametrize("mixer", KERNELS)
def test_an_unlock_one_position_late_in_both_forms_is_caught(monkeypatch: pytest.MonkeyPatch, mixer: str) -> None:
    right = DecoderLM.active
    monkeypatch.setattr(DecoderLM, "active", lambda self, start, n: right(self, max(0, start - 1), n))
    assert "unlock time" in failed(build(config(mixer, "key")))


@pytest.mark.parametrize("mixer", KERNELS)
def test_an_unlock_one_position_early_in_both_forms_is_caught(monkeypatch: pytest.MonkeyPatch, mixer: str) -> None:
    right = DecoderLM.active
    monkeypatch.setattr(DecoderLM, "active", lambda self, start, n: right(self, start + 1, n))
    assert {"lock invariant", "locked reads"} <= failed(build(config(mixer, "key")))


@pytest.mark.parametrize("mixer", KERNELS)
@pytest.mark.parametrize("by", [1, -1])
def test_an_unlock_moved_in_the_chunked_form_is_caught(monkeypatch: pytest.MonkeyPatch, mixer: str, by: int) -> None:
    assert "chunk = definition" in broken(monkeypatch, mixer, _shifted(by), ("chunk",))


def test_swlas_wrong_tap_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mask first and shift then: the older key is written with the mask that it had on arrival."""

    def masks_first(right: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(**x: Any) -> Any:
            if x["active"] is None:
                return right(**x)
            mask = torch.arange(8) < torch.tensor(x["active"])[:, None, None]
            return right(**(x | {"k_BTHK": x["k_BTHK"] * mask}))

        return wrong

    assert {"chunk = definition", "gradients"} <= broken(monkeypatch, "swla", masks_first, ("chunk",))
    assert broken(monkeypatch, "swla", masks_first, ("recurrent",)) == {"past inputs"}  # now both forms have it


def test_a_window_that_is_lost_between_two_calls_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(right: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(**x: Any) -> Any:
            y, end = right(**x)
            return y, linear.LinearState.start(end.memory_BHKV, 2)

        return wrong

    assert "continuation" in broken(monkeypatch, "swla", forgets, FORMS)


def test_positions_that_restart_with_a_cached_state_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RetNetMixer.mix
    monkeypatch.setattr(
        RetNetMixer, "mix", lambda self, x, state, *rest: right(self, x, replace(state, position=0), *rest)
    )
    assert failed(build(config("retnet", "value"))) == {"continuation"}


def test_a_mixer_whose_locked_parts_are_copies_cannot_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check writes into what `locked` returns: were it a copy, nothing would be proven."""
    right = RetNetMixer.locked
    monkeypatch.setattr(RetNetMixer, "locked", lambda self, state, n: [x.clone() for x in right(self, state, n)])
    assert failed(build(config("retnet", "value"))) == {"locked reads"}


def _products(rotated: Tensor, width: int) -> Tensor:
    """q_t . k_{t-3} at every t over the first `width` coordinates."""
    return (rotated[:, 3:, :, :width] * rotated[:, :-3, :, :width]).sum(-1)


def test_a_prefix_of_whole_pairs_keeps_relative_position() -> None:
    """Interleaved pairs: the same offset gives the same product everywhere. Half-split pairs lose it (control)."""
    torch.manual_seed(0)
    x = torch.randn(1, 1, 1, 16, dtype=torch.float64).expand(1, 40, 1, 16)
    rotated = rotate_pairs(x, 5, 10000.0)
    for width in (4, 8, 16):
        products = _products(rotated, width)
        assert float((products - products[:, :1]).abs().max()) < 1e-12
    halves = rotate_pairs(x.unflatten(-1, (2, 8)).mT.flatten(-2), 5, 10000.0).unflatten(-1, (8, 2)).mT.flatten(-2)
    assert float((_products(halves, 16) - _products(rotate_pairs(x, 5, 10000.0), 16)).abs().max()) > 0
    assert float((_products(halves, 4) - _products(halves, 4)[:, :1]).abs().max()) > 0.1
    assert torch.equal(rotate_pairs(x, 5, 10000.0)[:, 7:], rotate_pairs(x[:, 7:], 12, 10000.0))


@pytest.mark.parametrize(
    ("sizes", "choices", "message"),
    [({"head_k": 4}, {"axis": "key"}, "4 blocks of a key of 4 cut a pair"),
     ({"head_k": 7}, {"axis": "value"}, "head_k must be even"),
     ({}, {"axis": "value", "key_norm": "after_mask"}, "does not normalise its keys")],
)  # fmt: skip
def test_what_retnet_cannot_be_is_refused_in_one_line(sizes: Any, choices: Any, message: str) -> None:
    with pytest.raises((CapacityError, ValueError), match=message) as error:
        build(config("retnet", sizes=sizes, **choices))
    assert "\n" not in str(error.value)
    static = replace(config("retnet", "key", sizes={"head_k": 4}), capacity=Capacity.static(axis="key", span=24))
    build(static)  # what is refused is the cut, not the backbone


@pytest.mark.parametrize("key_norm", ["after_mask", "compensated"])
def test_swlas_key_norms_look_at_the_mask_of_the_writing_position(key_norm: str) -> None:
    """Against a loop that normalises every key again, at every position that writes it."""
    c = config("swla", "key", key_norm=key_norm, sizes={"taps": 3, "eps": 1e-12})
    mixer = SWLAMixer(c).double()
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1, 20, 16, generator=generator, dtype=torch.float64)
    active = c.capacity.active_coords_range(0, 20, 8).tolist()
    y, _ = mixer.mix(x, mixer.init_state(1), active, "chunk")

    q, k, v, _ = mixer.projections(x, mixer.init_state(1)[0], None)
    a, b = mixer.gates(x).split([4, 12], -1)
    decay, weights = (-nn.functional.softplus(a)).exp(), b.sigmoid().unflatten(-1, (4, 3))
    memory = torch.zeros(1, 4, 8, 8, dtype=torch.float64)
    for t, n in enumerate(active):
        mask = torch.arange(8) < n

        def norm(z: Tensor, mask: Tensor = mask, n: int = n) -> Tensor:
            return l2_normalise(z * mask, 1e-12) if key_norm == "after_mask" else z * mask * (8 / n) ** 0.5

        decayed = torch.where(mask[:, None], decay[:, t, :, None, None] * memory, memory)
        taps = (weights[:, t, :, j, None, None] * norm(k[:, t - j])[..., :, None] * v[:, t - j, :, None, :]
                for j in range(min(3, t + 1)))  # fmt: skip
        memory = decayed + sum(taps)
        want = torch.einsum("bhkv,bhk->bhv", memory, norm(q[:, t])) * 8**-0.5
        assert float((y[:, t] - want).detach().abs().max()) < 1e-9
    assert failed(build(replace(c, eps=1e-6))) == set()


def test_combas_correction_starts_where_the_configuration_says_and_its_feedback_learns_through_the_state() -> None:
    model = build(config("comba", "value", sizes={"correction": 0.0}))
    mixer: Any = model.stack[0].mixer
    assert not mixer.correction.detach().any()
    model(torch.arange(20)[None]).square().mean().backward()
    assert float(mixer.feedback.grad.abs().min()) > 0  # with d = 0 only the state carries it
