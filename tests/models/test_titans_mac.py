"""Titans MAC: the order of the paper against the equations written out, other orders, and causality inside a segment."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hybrid_models import LENGTH, SEGMENT, K, P, build, config, gap, mixer, tokens
from torch import Tensor

from proteus_models.attention import rotate
from proteus_models.check import check_model
from proteus_models.titans_mac import TitansMACMixer


def mac_by_the_equations(
    m: TitansMACMixer, x_TD: Tensor, active: list[int] | None = None, *, learns: str = "y", recalls: str = "before",
    gates: str = "after",
) -> Tensor:  # fmt: skip
    """Sec. 4.1 for one row, segment by segment, softmax and key-axis reads written out. The defaults are the paper's order.

    learns: whether the memory is written with the attention's output y or with the segment x itself. recalls, gates:
    whether h and the gate read the memory as it is before or after the segment is written; gates=never is y alone.
    """
    lmm, a, c = m.lmm, m.attention, m.config
    state, out = lmm.init_state(1), []
    for start in range(0, len(x_TD), c.segment):
        x = x_TD[None, start : start + c.segment]
        here = None if active is None else active[start : start + c.segment]
        if recalls == "after":  # only x can be written before h is known
            _, state = lmm.mix(x, state, here, "recurrent")
        h = m.context(m.context_norm(_read(m, state[1].weights[0], m.queries(x, here), here)).flatten(2))
        y = _attended(m, h, x)
        before = state
        reads = _read(m, before[1].weights[0], lmm.projections(m.norm(y), state[0], here)[0], here)
        if recalls == "before":
            after_reads, state = lmm.mix(m.norm(y) if learns == "y" else x, state, here, "recurrent")
            reads = after_reads if gates == "after" else reads
        gated = m.gate(y, lmm.output(reads, m.norm(y)))
        out.append(a.out.weight.new_zeros(1) + y if gates == "never" else gated)
    return torch.cat(out, 1)


def _read(m: TitansMACMixer, memory_BHKV: Tensor, q_BTHK: Tensor, active: list[int] | None) -> Tensor:
    rows = torch.arange(K)
    reads = []
    for t in range(q_BTHK.shape[1]):
        opened = rows < (K if active is None else active[t])
        reads.append(torch.einsum("bhkv,bhk->bhv", memory_BHKV * opened[:, None], q_BTHK[:, t]) * K**-0.5)
    return torch.stack(reads, 1)


def _attended(m: TitansMACMixer, h: Tensor, x: Tensor) -> Tensor:
    a, size = m.attention, m.config.segment
    (_, k_p, v_p), (_, k_h, v_h), (q, k_x, v_x) = (a.project(z) for z in (m.persistent[None], h, x))
    ys = []
    for j in range(x.shape[1]):
        query = rotate(q[:, j : j + 1], size + j, a.base)[:, 0]
        scores = [torch.einsum("bhk,bhk->bh", q[:, j], k_p[:, i]) for i in range(P)]
        scores += [(query * rotate(k_h[:, i : i + 1], i, a.base)[:, 0]).sum(-1) for i in range(j + 1)]
        scores += [(query * rotate(k_x[:, i : i + 1], size + i, a.base)[:, 0]).sum(-1) for i in range(j + 1)]
        weights = (torch.stack(scores, -1) * K**-0.5).softmax(-1)
        values = torch.cat([v_p, v_h[:, : j + 1], v_x[:, : j + 1]], 1)
        ys.append(torch.einsum("bhs,bshv->bhv", weights, values))
    return a.out(torch.stack(ys, 1).flatten(2))


OTHER_ORDERS = {
    "the write comes before the retrieval": {"learns": "x", "recalls": "after"},
    "the memory learns x, not the attention's output, and y is not gated by a second read (titans-pytorch)": {
        "learns": "x", "gates": "never",
    },
    "the memory learns x, not the attention's output": {"learns": "x"},
    "the gate reads the memory before the write": {"gates": "before"},
}  # fmt: skip


def test_mac_retrieves_attends_writes_and_gates_in_that_order() -> None:
    m, x = mixer(config("titans-mac")), tokens(LENGTH)
    for active in (None, [4] * 6 + [8] * (LENGTH - 6)):
        right = mac_by_the_equations(m, x[0], active)
        for form in ("chunk", "recurrent"):
            assert gap(m(x, m.init_state(1), active, form)[0], right) < 1e-10


@pytest.mark.parametrize("name", OTHER_ORDERS)
def test_mac_under_another_order_is_another_function(name: str) -> None:
    """The control of the test above, after the first segment: there the memory is still empty."""
    m, x = mixer(config("titans-mac")), tokens(2 * SEGMENT)
    o, _ = m(x, m.init_state(1), None)
    assert float((o - mac_by_the_equations(m, x[0], **OTHER_ORDERS[name])).detach()[:, SEGMENT:].abs().amax()) > 1e-3


def test_mac_retrieval_reads_what_the_segment_before_left() -> None:
    m, x = mixer(config("titans-mac")), tokens(LENGTH)
    _, state = m(x[:, : 2 * SEGMENT], m.init_state(1), None)
    left = state.memory[1].weights[0]
    asked: list[Tensor] = []
    read = m.retrieve
    m.retrieve = lambda weights, *rest: asked.append(weights[0]) or read(weights, *rest)
    for t in range(2 * SEGMENT, 3 * SEGMENT):
        _, state = m(x[:, t : t + 1], state, None)
        assert torch.equal(asked[-1], left) and torch.equal(state.frozen[0], left)
        assert not torch.equal(state.memory[1].weights[0], left)
    m(x[:, 3 * SEGMENT :], state, None)
    assert torch.equal(asked[-2], state.memory[1].weights[0])


@pytest.mark.parametrize("axis", ["key", "value", "head", "hidden"])
def test_a_retrieval_is_the_kernels_own_read(axis: str) -> None:
    for gate in ("both", "write", "read"):
        m = mixer(config("titans-mac", axis, gate=gate, m0="learned"))
        x, active = tokens(7, 2), [1, 1, 2, 2, 2, 1, 2]
        weights = tuple(torch.randn_like(w) for w in m.init_state(2).frozen)
        forms = [m.retrieve(weights, m.queries(x, active), active, form) for form in ("chunk", "recurrent")]
        assert gap(*forms) < 1e-12
        assert (gap(forms[0], m.retrieve(weights, m.queries(x, None), None, "chunk")) > 1e-3) is (gate != "write")


def test_a_retrieval_that_shows_later_tokens_of_the_segment_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a plain causal mask over [p | h | x] lets token j see h of the whole segment."""
    from proteus_models import titans_mac

    right = titans_mac.attend

    def leaking(**x: Any) -> Tensor:
        seen = x["visible_QS"].clone()
        seen[:, : seen.shape[1] // 2] = True
        return right(**(x | {"visible_QS": seen}))

    monkeypatch.setattr(titans_mac, "attend", leaking)
    assert "causality" in {r.name for r in check_model(build(config("titans-mac")), length=24) if not r.passed}
