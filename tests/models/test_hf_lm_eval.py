"""lm-eval's own Hugging Face back end runs our models unchanged; the extra `lm-eval` is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hf_models import MICRO, greedy

from proteus_models.decoder import DecoderLM
from proteus_models.hf import ProteusForCausalLM, from_zoo

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
pytestmark = pytest.mark.hf


def ours(decoder: DecoderLM, context: str, continuation: str) -> tuple[float, bool]:
    """Log-probability of the continuation's tokens and whether it is the greedy one, from the decoder alone."""
    whole, start = MICRO.encode(context + continuation), len(MICRO.encode(context))
    logp = decoder(torch.tensor([whole])).log_softmax(-1)[0, start - 1 : -1]
    target = torch.tensor(whole[start:])
    return float(logp.gather(1, target[:, None]).sum()), bool((logp.argmax(-1) == target).all())


@torch.no_grad()
@pytest.mark.parametrize("name", ["gdn+proteus", "titans"])
def test_lm_evals_own_back_end_gives_our_log_probabilities(name: str, tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = from_zoo(name)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pairs = [
        ("The key of the harbor is 1 2 3. The key of the harbor is", " 1 2 3."),
        ("The Congress of the United States", " shall have power to lay taxes."),
        ("Fellow citizens of the Senate and of the House of Representatives: I congratulate you", " on peace"),
    ]
    lm = HFLM(pretrained=str(tmp_path), device="cpu", batch_size=3)
    assert type(lm.model) is ProteusForCausalLM and lm.max_length == 131072
    asked = [Instance(request_type="loglikelihood", doc={}, arguments=p, idx=i) for i, p in enumerate(pairs)]
    for (logp, best), p in zip(lm.loglikelihood(asked, disable_tqdm=True), pairs, strict=True):
        expected = ours(model.model, *p)
        assert abs(logp - expected[0]) <= 1e-5 and best == expected[1]
    stop = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}
    wanted = [Instance(request_type="generate_until", doc={}, arguments=(c, stop), idx=i) for i, (c, _) in enumerate(pairs)]
    for text, (context, _) in zip(lm.generate_until(wanted, disable_tqdm=True), pairs, strict=True):
        ids = greedy(model.model, torch.tensor(MICRO.encode(context)), 6)
        ids = ids[: ids.index(MICRO.id("<eos>"))] if MICRO.id("<eos>") in ids else ids
        assert text == MICRO.decode(ids).split("\n")[0]
