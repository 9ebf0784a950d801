"""Prefill once, ask many: a recurrent model answers all questions of a context from forks of one state.

Contexts of one call need not have one length. The part they all have is prefilled together, the rest of each apart, so
no padding ever enters a state. The schedule's clock lives in the state, so questions are batched only where it agrees.

Seconds are CPU seconds of the process, as in `proteus_bench.cost`: what else runs on the machine is not the model's cost.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proteus_bench.backends.base import Answer, AskIds, Ids

# Tokens (rows x positions) that go through the model at once: bounds memory at any context length, and stays in cache
# (16K tokens of a 2-layer d=128 model on one core: 0.30 s in pieces of 2048, 0.40 s in pieces of 16384).
PREFILL_TOKENS = 2048
# Tokens of a gold whose logits are held at once.
GOLD_TOKENS = 512
_STEP = 256


@torch.inference_mode()
def answer_recurrent(model: Any, contexts: Sequence[Ids], questions: Sequence[Sequence[AskIds]]) -> list[list[Answer]]:
    """Answers in the order of the questions. ``model``: init_state, prefill and forward as in proteus_models.

    Raises ValueError when contexts and questions do not pair up, or a question or gold is empty; a context may be.
    """
    if len(contexts) != len(questions):
        raise ValueError(f"{len(contexts)} contexts, {len(questions)} lists of questions")
    if any(not ask.gold_ids for asks in questions for ask in asks):
        raise ValueError("a gold answer needs at least one token")
    rows = [np.asarray(ids, dtype=np.int64) for ids in contexts]
    shared = min(len(ids) for ids in rows)
    begun = time.process_time()
    state = _consume(model, np.stack([ids[:shared] for ids in rows]), model.init_state(len(rows)))
    share = (time.process_time() - begun) / len(rows)
    results: list[list[Answer]] = [[] for _ in rows]
    by_tail: dict[int, list[int]] = defaultdict(list)
    for index, ids in enumerate(rows):
        by_tail[len(ids) - shared].append(index)
    for tail, members in sorted(by_tail.items()):
        begun = time.process_time()
        part = state.select(members)
        if tail:
            part = _consume(model, np.stack([rows[i][shared:] for i in members]), part)
        found = _ask(model, part, [questions[i] for i in members])
        seconds = (time.process_time() - begun) / len(members) + share
        openings = getattr(part, "openings", ()) or (None,) * len(members)
        for index, answers, opening in zip(members, found, openings, strict=True):
            each = seconds / max(1, len(answers))
            unlocks = None if opening is None else opening.unlocks
            results[index] = [Answer(ids, logprob, each, unlocks, greedy) for ids, logprob, greedy in answers]
    return results


def _consume(model: Any, ids_BT: np.ndarray, state: Any) -> Any:
    """The state after ids_BT, fed in pieces whose length depends on the batch and on nothing else."""
    step = max(_STEP, PREFILL_TOKENS // len(ids_BT) // _STEP * _STEP)
    for start in range(0, ids_BT.shape[1], step):
        _, state = model.prefill(torch.from_numpy(ids_BT[:, start : start + step].copy()), state)
    return state


def _ask(model: Any, state: Any, asks: Sequence[Sequence[AskIds]]) -> list[list[tuple[list[int], float, bool]]]:
    """All questions of contexts that stand at one position, batched by the length of the question."""
    groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row, row_asks in enumerate(asks):
        for slot, ask in enumerate(row_asks):
            groups[len(ask.prompt_ids)].append((row, slot))
    found: list[list[tuple[list[int], float, bool]]] = [[([], 0.0, False)] * len(row_asks) for row_asks in asks]
    for length, places in sorted(groups.items()):
        if length == 0:
            raise ValueError("a question needs at least one token")
        batch = [asks[row][slot] for row, slot in places]
        prompt_BT = torch.tensor([list(ask.prompt_ids) for ask in batch], dtype=torch.long)
        logits_BV, after = model.prefill(prompt_BT, state.select([row for row, _ in places]))
        golds = _golds(model, logits_BV, after, batch)
        texts = _greedy(model, logits_BV, after, batch)
        for (row, slot), text, (logprob, greedy) in zip(places, texts, golds, strict=True):
            found[row][slot] = (text, logprob, greedy)
    return found


def _golds(model: Any, logits_BV: Tensor, state: Any, asks: Sequence[AskIds]) -> list[tuple[float, bool]]:
    """Of each gold continuation, teacher-forced from the question's state: the sum of log-probabilities (nats, float64), and
    whether each of its tokens is the likeliest."""
    totals, greedy = [0.0] * len(asks), [False] * len(asks)
    first = torch.log_softmax(logits_BV.double(), -1)
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, ask in enumerate(asks):
        totals[index] = float(first[index, ask.gold_ids[0]])
        greedy[index] = int(first[index].argmax()) == ask.gold_ids[0]
        by_length[len(ask.gold_ids)].append(index)
    for length, members in sorted(by_length.items()):
        if length == 1:
            continue
        gold_BT = torch.tensor([list(asks[i].gold_ids) for i in members], dtype=torch.long)
        part = state.select(members)
        for start in range(0, length - 1, GOLD_TOKENS):
            end = min(start + GOLD_TOKENS, length - 1)
            logits_BTV, part = model(gold_BT[:, start:end], state=part, return_state=True)
            target_BT = gold_BT[:, start + 1 : end + 1]
            logprob_BT = torch.log_softmax(logits_BTV.double(), -1).gather(-1, target_BT[..., None])[..., 0]
            likeliest = (logits_BTV.argmax(-1) == target_BT).all(-1).tolist()
            for index, value, agrees in zip(members, logprob_BT.sum(-1).tolist(), likeliest, strict=True):
                totals[index] += value
                greedy[index] &= agrees
    return list(zip(totals, greedy, strict=True))


def _greedy(model: Any, logits_BV: Tensor, state: Any, asks: Sequence[AskIds]) -> list[list[int]]:
    """Greedy continuations. Rows that are done are fed on with the others and ignored: rows never mix."""
    texts: list[list[int]] = [[] for _ in asks]
    open_rows = {i for i, ask in enumerate(asks) if ask.max_new_tokens > 0}
    while open_rows:
        chosen_B = logits_BV.argmax(-1)
        for index in sorted(open_rows):
            token = int(chosen_B[index])
            if token in asks[index].stop_ids:
                open_rows.discard(index)
                continue
            texts[index].append(token)
            if len(texts[index]) >= asks[index].max_new_tokens:
                open_rows.discard(index)
        if open_rows:
            logits_BV, state = model.prefill(chosen_B[:, None], state)
    return texts
