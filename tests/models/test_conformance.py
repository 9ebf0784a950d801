"""The check for strangers' models: a right one passes, and every kind of wrong one is caught by name."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from proteus_bench.schedules import Capacity, Uniform
from proteus_models.check import CheckRow
from proteus_models.config import ModelConfig
from proteus_models.conformance import Unshown, check_subject
from proteus_models.decoder import DecoderLM

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "stranger_model.py"


def example():
    spec = importlib.util.spec_from_file_location("stranger_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Ours:
    """Our decoder shown as a stranger's model."""

    def __init__(self, mixer: str, axis: str, blocks: int = 4) -> None:
        torch.manual_seed(0)
        m0 = "learned" if axis == "hidden" else "zero"
        capacity = Capacity(schedule=Uniform(blocks=blocks, span=24), axis=axis, m0=m0)
        config = ModelConfig(
            mixer=mixer, vocab_size=40, train_length=24, capacity=capacity, d_model=16, n_heads=2, head_k=8, head_v=8,
            mlp_hidden=16, memory_hidden=8, chunk=8, inner=8,
        )  # fmt: skip
        self.model = DecoderLM(config).double()
        self.vocab_size, self.capacity, self.dim = 40, capacity, config.axis_dim()

    def init_state(self, batch):
        return self.model.init_state(batch)

    def prefill(self, ids, state):
        return self.model.prefill(ids, state)

    def step(self, ids, state):
        return self.model.prefill(ids[:, None], state)

    def logits(self, ids):
        return self.model(ids)

    def parameters(self):
        return self.model.parameters()

    def locked(self, state, n):
        pairs = zip(self.model.stack, state.layers, strict=True)
        return [x for block, layer in pairs for x in block.mixer.locked(layer, n)]


def names(rows) -> list[str]:
    return [r.name for r in rows if isinstance(r, CheckRow) and not r.passed]


@pytest.mark.parametrize(("mixer", "axis"), [("gdn", "key"), ("titans", "value"), ("titans-mlp", "hidden"), ("comba", "value")])
def test_our_models_pass_as_strangers(mixer, axis):
    rows = check_subject(Ours(mixer, axis))
    assert names(rows) == [] and [r.name for r in rows if isinstance(r, Unshown)] == ["E=1 is the base"]


def test_the_example_of_the_docs_passes_every_check():
    rows = check_subject(example().subject())
    assert names(rows) == [] and [r.hook for r in rows if isinstance(r, Unshown)] == ["logits"]
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 60


def broken(*changes):
    """The docs' example with parts of its source replaced."""
    text = EXAMPLE.read_text("utf-8")
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    space: dict = {}
    exec(compile(text, "broken", "exec"), space)
    return space["subject"]()


@pytest.mark.parametrize(
    ("change", "caught"),
    [
        (('memory) * g), (memory', 'memory)), (memory'), "locked reads"),  # reads unmasked
        (("memory = memory + 0.5", "memory = 0.9 * memory + 0.5"), "lock invariant"),  # decay on locked columns
        (("int(t), 1, self.dim", "int(t) + 1, 1, self.dim"), "lock invariant"),  # opens one position early
        (("int(t), 1, self.dim", "max(0, int(t) - 1), 1, self.dim"), "unlock time"),  # opens one position late
        (("(memory, t + 1)", "(memory, t * 0 + ids.max())"), "batch = single"),  # a clock that looks at the batch
        (("return Delta(blocks)", "return Delta(2)"), "E=1 is the base"),
    ],
)
def test_a_broken_stranger_is_caught_by_name(change, caught):
    assert caught in names(check_subject(broken(change)))


def test_a_state_in_sixteen_bits_is_caught():
    subject = broken(("(memory, t + 1)", "(memory.half(), t + 1)"), ("len(ids))", "len(ids)); memory = memory.double()"))
    assert "state in fp32" in names(check_subject(subject))


def test_momentum_that_moves_while_locked_is_caught():
    class Restless(Ours):
        def step(self, ids, state):
            logits, after = super().step(ids, state)
            tail, memory = after.layers[0]
            moved = replace(memory, momentum=tuple(0.9 * m for m in memory.momentum))
            return logits, replace(after, layers=((tail, moved), *after.layers[1:]))

    assert "lock invariant" in names(check_subject(Restless("titans", "value")))


def test_a_prefill_that_forgets_the_clock_is_caught_by_continuation():
    class Forgetful(Ours):
        def prefill(self, ids, state):
            return super().prefill(ids, None if state is None else replace(state, position=0))

    failed = names(check_subject(Forgetful("gdn", "value")))
    assert "continuation" in failed


def test_a_model_without_the_three_functions_is_refused_in_one_line():
    with pytest.raises(TypeError, match="lacks one of"):
        check_subject(object())


def test_the_command_checks_a_file(capsys):
    from proteus_bench.cli.check import check_command
    from proteus_bench.errors import UsageError

    assert check_command(f"{EXAMPLE}:subject", as_json=False) == 0
    assert "all checks passed; 1 not shown" in capsys.readouterr().out
    wrong = {f"{EXAMPLE}:missing": "no callable", "no_such_module:x": "does not load", f"{EXAMPLE}:Capacity": "could not be"}
    for text, message in wrong.items():
        with pytest.raises(UsageError, match=message):
            check_command(text, as_json=False)
