"""Kernels by name: the choice by device and by PROTEUS_KERNELS, what is refused, and what is remembered."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from helpers import delta_inputs, worst

from proteus_bench.schedules import Capacity, Uniform
from proteus_kernels import delta, dispatch
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    monkeypatch.setattr(dispatch, "_used", {})


def test_on_the_cpu_the_chunked_form_runs_and_a_form_is_forced() -> None:
    x = delta_inputs(7, start="random")
    auto, slow = (dispatch.kernel("delta", form)(**x, chunk_size=4) for form in ("auto", "recurrent"))
    assert torch.equal(auto[0], delta.chunk(**x, chunk_size=4)[0])
    assert torch.equal(slow[0], delta.recurrent(**x)[0])
    assert dispatch.used() == {"delta--chunk": [], "delta--recurrent": []}


def test_every_name_is_a_function_of_one_signature() -> None:
    pytest.importorskip("triton")
    import inspect

    for name in dispatch.names():
        op, _, backend = name.partition("--")
        if backend == "fla":
            continue  # its module is there without the package, its function is not
        own = inspect.signature(dispatch._function(op, backend)).parameters
        asked = set(inspect.signature(dispatch._function(op, "recurrent")).parameters)
        assert asked <= set(own) and set(own) - asked <= {"chunk_size", "cu_seqlens"}, name


def test_a_device_has_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(dispatch.chosen("cpu").values()) == {"chunk"}
    monkeypatch.setattr(dispatch, "_installed", lambda package: package == "triton")
    gpu = dict.fromkeys(("delta", "comba", "linear", "titans_linear"), "triton")
    assert dispatch.chosen("cuda") == gpu | {"titans_mlp": "chunk"}
    monkeypatch.setattr(dispatch, "_installed", lambda package: False)
    assert set(dispatch.chosen("cuda").values()) == {"chunk"}


def test_the_variable_chooses_by_backend_and_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "recurrent, delta--chunk")
    assert dispatch.chosen("cpu") == dict.fromkeys(dispatch.OPS, "recurrent") | {"delta": "chunk"}
    x = delta_inputs(5, start="zero")
    del x["log_decay_BTH"]
    dispatch.kernel("delta")(**x, chunk_size=4)
    monkeypatch.setenv(dispatch.VARIABLE, "recurrent")
    dispatch.kernel("delta")(**x, chunk_size=4)
    dispatch.kernel("delta", "chunk")(**x)  # what the caller forces stands
    assert dispatch.used() == {"delta--chunk": [], "delta--recurrent": []}


def test_what_triton_does_not_have_runs_as_chunk_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv(dispatch.VARIABLE, "delta--triton")
    x = delta_inputs(5, start="random", dtype=torch.float32)
    y, _ = dispatch.kernel("delta")(**x, active=[2] * 5, gate="write", chunk_size=4)
    assert torch.equal(y, delta.chunk(**x, active=[2] * 5, gate="write", chunk_size=4)[0])
    assert dispatch.used() == {"delta--chunk": ["gate=write reads locked coordinates"]}
    dispatch.kernel("delta")(**x, active=[2] * 5, chunk_size=4)
    assert "delta--triton" in dispatch.used()
    with pytest.raises(ValueError, match="gate=write"):
        dispatch.kernel("delta", "triton")(**x, active=[2] * 5, gate="write")


@pytest.mark.parametrize("mixer", ["gdn", "deltanet", "comba", "retnet", "swla", "titans"])
def test_a_model_on_the_triton_kernels_is_the_same_model(monkeypatch: pytest.MonkeyPatch, mixer: str) -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    capacity = Capacity(schedule=Uniform(blocks=2, span=10), axis="key")
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "head_k": 16, "head_v": 16, "mlp_hidden": 16}
    model = DecoderLM(ModelConfig(mixer=mixer, vocab_size=16, train_length=10, capacity=capacity, **sizes))
    ids, found = torch.randint(16, (1, 9), generator=torch.Generator().manual_seed(0)), []
    for kernels in ("chunk", "triton"):
        monkeypatch.setenv(dispatch.VARIABLE, kernels)
        model.zero_grad()
        model(ids).square().mean().backward()
        found.append([p.grad for p in model.parameters()])
    assert any(name.endswith("--triton") for name in dispatch.used())
    assert worst(found[1], found[0]) < 1e-4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trition", "no kernel 'trition'; the nearest is triton"),
        ("delta-triton", "the nearest is delta--triton"),
        ("titans_mlp--triton", "the nearest is titans_"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, text)
    with pytest.raises(dispatch.KernelError, match=message):
        dispatch.chosen("cpu")


def test_an_unknown_op_or_form_is_refused() -> None:
    with pytest.raises(dispatch.KernelError, match="no kernel 'delt'; the nearest is delta"):
        dispatch.kernel("delt")
    with pytest.raises(dispatch.KernelError, match="no kernel delta--chunked; the nearest is delta--chunk"):
        dispatch.kernel("delta", "chunked")
    with pytest.raises(dispatch.KernelError, match="no kernel titans_mlp--triton"):
        dispatch.kernel("titans_mlp", "triton")


def test_a_kernel_that_cannot_run_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    monkeypatch.setattr(dispatch, "_installed", lambda package: True)
    with pytest.raises(dispatch.KernelError, match="needs CUDA; the model is on cpu"):
        dispatch.kernel("delta")(**delta_inputs(3, start="zero"))
    monkeypatch.setattr(dispatch, "_installed", lambda package: False)
    with pytest.raises(dispatch.KernelError, match="triton is not installed"):
        dispatch.chosen("cuda")
    with pytest.raises(dispatch.KernelError, match="needs fla, which is not installed"):
        dispatch.kernel("delta", "fla")(**delta_inputs(3, start="zero"))


def test_the_models_run_without_triton() -> None:
    """Neither the dispatcher nor a model imports it."""
    code = """
import sys
sys.modules["triton"] = None  # importing it fails
import torch
from proteus_bench.schedules import Capacity
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM
config = ModelConfig(mixer="gdn", vocab_size=8, train_length=8, capacity=Capacity.static(span=8), d_model=8, n_layers=1,
                     n_heads=1, head_k=8, head_v=8, mlp_hidden=8)
print(tuple(DecoderLM(config)(torch.zeros(1, 4, dtype=torch.long)).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "(1, 4, 8)", done.stderr
