"""The wording of the needle tasks: fixed, written for this project, shared by the generator and the trainer.

Every piece starts with a newline or with a space before a word, so that a tokenizer which splits on white space gives the
same tokens for the pieces as for the whole prompt.
"""

from __future__ import annotations

INSTRUCTION = "Remember the access codes in the text below."
TEMPLATE_PHRASE = "access code"
"""No haystack sentence contains this phrase, in any case: only needles speak of access codes."""
NOISE: tuple[str, ...] = (
    "The wind is cold tonight.",
    "The moon is over the hill.",
    "A dog runs along the lane.",
    "We sit down and wait.",
    "Then we walk home again.",
)
"""single_1's haystack: these sentences, repeated in this order."""


def needle_sentence(key: str, value: str) -> str:
    """The sentence that plants `value` under `key`; in a context it follows a space or the instruction's newline."""
    return f"The access code of {key} is {value}."


def context_head() -> str:
    """What stands before the first haystack unit: one line of instruction."""
    return INSTRUCTION + "\n"


def question(key: str) -> str:
    """The question for the one value of `key`; it follows the context directly."""
    return f"\nQuestion: what is the access code of {key}?\nAnswer:"


def question_all(key: str, count: int) -> str:
    """The question for all `count` values of `key`."""
    return f"\nQuestion: what are the {count} access codes of {key}?\nAnswer:"


def answer_prefix(key: str) -> str:
    """The start of the answer, up to the value: the model continues with `" " + value`."""
    return f" The access code of {key} is"


def gold_continuation(golds: tuple[str, ...]) -> str:
    """The text whose log-probability is scored: the golds in the order in which they stand in the context."""
    return " " + ", ".join(golds)


def template_words() -> frozenset[str]:
    """Lower-case words of all wordings above: none of them is a key."""
    text = " ".join(
        (INSTRUCTION, *NOISE, needle_sentence("x", "y"), question("x"), question_all("x", 4), answer_prefix("x"))
    )
    return frozenset("".join(c if c.isalpha() else " " for c in text.lower()).split())
