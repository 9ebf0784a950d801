"""The metrics of the anchors, oddities included: RULER, lm-eval, LongBench v1 and v2, HELMET, BABILong.

Written from their description and held to values that their own code gave (tests/vectors). Scores are fractions; the
functions on whole lists return what the anchors print.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Sequence

_CONTROL = re.compile(r"[\x00-\x1f]")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def ruler_postprocess(output: str) -> str:
    """RULER: control characters become line ends, then the ends are stripped."""
    return _CONTROL.sub("\n", output.strip()).strip()


def ruler_all(output: str, references: Sequence[str]) -> float:
    """RULER string_match_all of one output: the fraction of references that are substrings, without case."""
    text = ruler_postprocess(output).lower()
    _not_empty(references)
    return sum(reference.lower() in text for reference in references) / len(references)


def ruler_part(output: str, references: Sequence[str]) -> float:
    """RULER string_match_part of one output: 1.0 when any reference is a substring, without case."""
    text = ruler_postprocess(output).lower()
    _not_empty(references)
    return float(any(reference.lower() in text for reference in references))


def lm_eval_ruler(outputs: Sequence[str], references: Sequence[str]) -> float:
    """lm-eval 0.4.13, both of its ruler metrics: best fraction of references over outputs (also where RULER takes any)."""
    _not_empty(references)
    return max(sum(r.lower() in output.lower() for r in references) / len(references) for output in outputs)


def lm_eval_ruler_mean(values: Sequence[float]) -> float:
    """lm-eval's aggregate over documents of all lengths: -1 marks another length; -1 when no value is left."""
    held = [value for value in values if value != -1]
    return sum(held) / len(held) if held else -1


def longbench_normalize(text: str) -> str:
    """LongBench: lower case, no ASCII punctuation, no articles, single spaces, in this order."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def qa_f1(prediction: str, gold: str) -> float:
    """LongBench qa_f1_score: F1 of bags of normalised words; 0 when nothing is shared, two empty texts included."""
    return _f1(longbench_normalize(prediction).split(), longbench_normalize(gold).split())[0]


def longbench_score(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """LongBench's number for a QA data set: best F1 over answers, mean over samples, x 100, two decimals."""
    best = [max(qa_f1(p, gold) for gold in golds) for p, golds in zip(predictions, answers, strict=True)]
    return round(100 * sum(best) / len(best), 2)


def contains_any(prediction: str, labels: Sequence[str]) -> bool:
    """BASED, lm-eval (swde, fda, squad_completion) and JRT: a label is in the prediction, without case, white space counts."""
    _not_empty(labels)
    return any(re.search(re.escape(label), prediction, re.IGNORECASE) for label in labels)


def cut_at_stops(generation: str, stops: Sequence[str]) -> str:
    """lm-eval: the text before the first stop. A leading line end leaves nothing; an empty stop is no stop."""
    for stop in stops:
        if stop:
            generation = generation.split(stop)[0]
    return generation


def longbench2_choice(response: str) -> str | None:
    """LongBench v2: the letter after its sentence, in its case; None otherwise."""
    text = response.replace("*", "")
    found = re.search(r"The correct answer is \(([A-D])\)", text) or re.search(r"The correct answer is ([A-D])", text)
    return found[1] if found else None


def longbench2_cut(ids: Sequence[int], limit: int) -> list[int]:
    """LongBench v2's truncation: both halves of `limit` tokens; an odd limit keeps its extra token at the end."""
    if len(ids) <= limit:
        return list(ids)
    return [*ids[: limit // 2], *ids[-limit // 2 :]]


def helmet_f1(prediction: str, gold: str) -> tuple[float, float, float]:
    """HELMET: (F1, precision, recall); all 0 when exactly one side is yes, no or noanswer."""
    left, right = longbench_normalize(prediction), longbench_normalize(gold)
    if left != right and {left, right} & {"yes", "no", "noanswer"}:
        return 0.0, 0.0, 0.0
    return _f1(left.split(), right.split())


def helmet_parse(output: str, prefix: str = "Answer:") -> str | None:
    """HELMET parse_output: what follows the prefix on its line; None when the prefix is not there."""
    found = re.search(rf"{re.escape(prefix)}\s*(.*)(?:\n|$)", output, re.IGNORECASE)
    return found[1].strip() if found else None


def babilong_compare(target: str, output: str, question: str, labels: Collection[str]) -> bool:
    """BABILong compare_answers: the first sentence names the target's labels and no other, question labels aside.

    Its oversight is kept: the output is lower-cased before it is cut at "Question", so that a run-on question stays.
    """
    text = output.lower().split(".")[0].split("Question")[0].split("<context>")[0].split("<example>")[0]
    named = {label for label in labels if label in text} - {label for label in labels if label in question.lower()}
    wanted = target.lower()
    if "," in wanted:
        parts = wanted.split(",")
        return all(part in named for part in parts) and len(named) == len(parts)
    return named == {wanted}


def unique_label(golds: Sequence[str], output: str, labels: Collection[str], question: str) -> bool:
    """Ours: the first sentence or line names, as whole words, every gold and no other label.

    Labels that stand in the question do not count against an answer, and a run-on question is cut off.
    """
    _not_empty(golds)
    text = re.split(r"[.\n!?]|question:", output.casefold().lstrip(), maxsplit=1)[0]
    said, asked = (_words_of(part, labels) for part in (text, question.casefold()))
    wanted = {gold.casefold() for gold in golds}
    return wanted <= said and said - wanted <= asked


def _words_of(text: str, labels: Collection[str]) -> set[str]:
    return {label.casefold() for label in labels if re.search(rf"(?<![\w-]){re.escape(label.casefold())}(?![\w-])", text)}


def _f1(left: list[str], right: list[str]) -> tuple[float, float, float]:
    shared = sum((Counter(left) & Counter(right)).values())
    if not shared:
        return 0.0, 0.0, 0.0
    precision, recall = shared / len(left), shared / len(right)
    return 2 * precision * recall / (precision + recall), precision, recall


def _not_empty(references: Sequence[str]) -> None:
    if isinstance(references, str | bytes):
        raise TypeError("references must be a sequence of strings, not one string")
    if not references:
        raise ValueError("an item without a reference cannot be scored")
