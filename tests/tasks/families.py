"""The tasks that every family test goes over, and how their items are measured."""

import importlib.util

from proteus_tasks import FAMILIES, ByteTokenizer
from proteus_tasks.tokenizers import special_tokens

BYTES = ByteTokenizer()
HAS_LM_EVAL = importlib.util.find_spec("lm_eval") is not None
NEEDS_DATA = {task.id for tasks in FAMILIES.values() for task in tasks if getattr(task, "data_dir", "x") is None}
NEEDS_DATA -= {task.id for tasks in FAMILIES.values() for task in tasks if getattr(task, "fixture", False)}
NEEDS_DATA -= {"ppl.prose"}
EVERY = {
    task.id: task
    for tasks in FAMILIES.values()
    for task in tasks
    if task.id not in NEEDS_DATA and (HAS_LM_EVAL or not task.id.endswith(".compat"))
}
"""All tasks that need no data set; those that read their prompt from lm-eval only where it is installed."""
NAMES = sorted(EVERY)
EXACT = [name for name in NAMES if not name.endswith((".window", ".compat"))]
"""Tasks whose items never pass their length. The published window and the published truncation count otherwise."""


def true_length(item, tokenizer) -> int:
    """Tokens of the longest prompt with its answer budget, counted whole; running text counts with its gold."""
    asked = []
    for i, question in enumerate(item.questions):
        text = item.prompt(i) + (item.gold(i) if question.max_new_tokens == 0 else "")
        asked.append(len(tokenizer.encode(text)) + question.max_new_tokens)
    return max(asked) + special_tokens(tokenizer)
