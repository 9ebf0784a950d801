"""A trained decoder as a folder that transformers, lm-eval and their like open (extra `hf`)."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from proteus_models import hf
from proteus_models.decoder import DecoderLM
from proteus_models.tokenizer import MicroTokenizer


def export(model: DecoderLM, tokenizer: Path, end: int, folder: Path) -> None:
    """Weights in safetensors, configuration, and the tokenizer with `end` (an id) as its end of text and its pad."""
    hf.from_decoder(model, eos_token_id=end, pad_token_id=end).save_pretrained(folder)
    token = MicroTokenizer.from_file(tokenizer).token(end)
    PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), eos_token=token, pad_token=token, padding_side="left",
        clean_up_tokenization_spaces=False, model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
