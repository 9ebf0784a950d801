"""Constructive length fit: the longest run of whole haystack units with which an item stays within its length.

Token counts are sums of parts: head, units (prefix sums), needles, question. Whether the parts add up is checked at every seam
that an item creates; where they do not, the item is counted whole instead. Nothing is searched without a bound.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from . import niah_text
from .errors import LengthBudgetError
from .supply import Supply
from .tokenizers import Tokenizer, count, count_batch, special_tokens
from .word_counts import seams_add_up

FEW = 8
"""Needles whose seams are counted with the whole pieces around them; more of them cover the context anyway."""


@dataclass(frozen=True)
class Plan:
    """What must fit into `length` tokens: needles (sentence, depth) in order of depth, and questions (text, answer budget).

    `head` stands before the first piece, `sep` between pieces; `least`: the fewest haystack units that make an item.
    """

    task: str
    length: int
    needles: tuple[tuple[str, float], ...]
    questions: tuple[tuple[str, int], ...]
    head: str = field(default_factory=niah_text.context_head)
    sep: str = " "
    least: int = 1


@dataclass(frozen=True)
class Layout:
    """A fitted context: offsets of each needle's sentence, `units` of haystack, and how it was counted."""

    context: str
    reached: int
    units: int
    char_offsets: tuple[int, ...]
    token_offsets: tuple[int, ...]
    counting: str


def fit(plan: Plan, supply: Supply, tokenizer: Tokenizer) -> Layout:
    """The layout with the most haystack units; LengthBudgetError when not even the fewest (one) fit."""
    fitter = _Fitter(plan, supply, tokenizer)
    units = fitter.fit_by_parts()
    if units is not None and fitter.parts_add_up(units):
        return fitter.layout(units)
    return fitter.fit_whole(plan.least if units is None else units)


class _Fitter:
    def __init__(self, plan: Plan, supply: Supply, tokenizer: Tokenizer) -> None:
        self.plan, self.supply, self.tokenizer = plan, supply, tokenizer
        self.head, self.sep = plan.head, plan.sep
        self.sentences = [sentence for sentence, _ in plan.needles]
        self.needle_counts = count_batch(tokenizer, [self.sep + sentence for sentence in self.sentences]).tolist()
        self.question_counts = count_batch(tokenizer, [text for text, _ in plan.questions]).tolist()
        budgets = [budget for _, budget in plan.questions]
        asked = [tokens + budget for tokens, budget in zip(self.question_counts, budgets, strict=True)]
        self.tail = max(asked) + special_tokens(tokenizer)
        self.needle_tokens = sum(self.needle_counts)
        self._openings: dict[str, int] = {}
        self._placed: dict[int, list[int]] = {}

    def fit_by_parts(self) -> int | None:
        """The number of units by sums of parts; None when sums say that the fewest are too many."""
        length, least = self.plan.length, self.plan.least
        units = max(least, self.supply.fit(length - self.tail - self.needle_tokens - self._opening_extra(least)))
        while units > least and self.total(units) > length:
            units -= 1
        if self.total(units) > length:
            return None
        while self.total(units + 1) <= length:
            units += 1
        return units

    def total(self, units: int) -> int:
        """The item's tokens by sums of parts."""
        return self._opening_extra(units) + self.supply.total(units) + self.needle_tokens + self.tail

    def _slots(self, units: int) -> list[int]:
        if units not in self._placed:
            self._placed[units] = self.supply.slots([depth for _, depth in self.plan.needles], units)
        return self._placed[units]

    def _opening_extra(self, units: int) -> int:
        """Tokens of head + first piece, less those of the first piece behind a separator."""
        first_is_needle = bool(self.sentences) and self._slots(units)[0] == 0
        first = self.sentences[0] if first_is_needle else self.supply.unit(0)
        if first not in self._openings:
            alone = self.needle_counts[0] if first_is_needle else self.supply.total(1)
            self._openings[first] = count(self.tokenizer, self.head + first) - alone
        return self._openings[first]

    def pieces(self, units: int) -> tuple[list[str], list[int]]:
        """Haystack units and needles in order, and the places of the needles among them."""
        run, pieces, places, done = self.supply.run(units), [], [], 0
        for sentence, slot in zip(self.sentences, self._slots(units), strict=True):
            pieces += run[done:slot]
            done = slot
            places.append(len(pieces))
            pieces.append(sentence)
        return pieces + run[done:], places

    def context(self, units: int) -> str:
        return self.head + self.sep.join(self.pieces(units)[0])

    def parts_add_up(self, units: int) -> bool:
        """Whether the sum of parts is the true count: every seam of this item is counted in a small window of text."""
        if self.supply.counts.additive is None:
            return self.whole(units) == self.total(units)
        if not self.supply.counts.additive:
            return False
        pieces, places = self.pieces(units)
        looked_at = () if len(places) > FEW and self._short_seams(pieces, places) else places
        needed = {0, 1, len(pieces) - 1} | {p for place in looked_at for p in (place - 1, place, place + 1)}
        near = sorted(p for p in needed if 0 <= p < len(pieces))
        sizes = self._sizes(near, places)
        groups: list[list[int]] = []
        for p in near:
            if groups and groups[-1][-1] == p - 1:
                groups[-1].append(p)
            else:
                groups.append([p])
        texts, expected = [], []
        for group in groups:
            opening = group[0] == 0
            texts.append((self.head if opening else self.sep) + self.sep.join(pieces[p] for p in group))
            expected.append(sum(sizes[p] for p in group) + (self._opening_extra(units) if opening else 0))
        for (question, _), tokens in zip(self.plan.questions, self.question_counts, strict=True):
            texts.append(self.sep + pieces[-1] + question)
            expected.append(sizes[len(pieces) - 1] + tokens)
        return count_batch(self.tokenizer, texts).tolist() == expected

    def _short_seams(self, pieces: list[str], places: list[int]) -> bool:
        """Whether the seams of the needles are known to add up from the words at their sides alone."""
        ends = sorted({end for place in places for end in (place, place + 1) if 0 < end < len(pieces)})
        return bool(seams_add_up([(pieces[end - 1], pieces[end]) for end in ends], self.sep, self.tokenizer))

    def _sizes(self, near: list[int], places: list[int]) -> dict[int, int]:
        """Tokens, behind a separator, of the pieces at the places `near`."""
        needles = dict(zip(places, self.needle_counts, strict=True))
        sizes: dict[int, int] = {}
        for p in near:
            if p in needles:
                sizes[p] = needles[p]
            else:
                unit = p - bisect_left(places, p)
                sizes[p] = self.supply.total(unit + 1) - self.supply.total(unit)
        return sizes

    def layout(self, units: int) -> Layout:
        """The layout whose token offsets and length are sums of parts."""
        context, chars = self._joined(units)
        before, tokens = self._opening_extra(units), []
        for place, (slot, size) in enumerate(zip(self._slots(units), self.needle_counts, strict=True)):
            at_start = place == 0 and slot == 0
            tokens.append(count(self.tokenizer, self.head) if at_start else before + self.supply.total(slot))
            before += size
        return Layout(context, self.total(units), units, chars, tuple(tokens), "parts")

    def _joined(self, units: int) -> tuple[str, tuple[int, ...]]:
        pieces, places = self.pieces(units)
        gap = len(self.sep)
        starts = list(accumulate((len(piece) + gap for piece in pieces), initial=len(self.head)))
        return self.head + self.sep.join(pieces), tuple(starts[place] for place in places)

    def whole(self, units: int) -> int:
        """The item's tokens, each prompt counted as one text."""
        context = self.context(units)
        counts = count_batch(self.tokenizer, [context + text for text, _ in self.plan.questions]).tolist()
        budgets = [budget for _, budget in self.plan.questions]
        return max(c + b for c, b in zip(counts, budgets, strict=True)) + special_tokens(self.tokenizer)

    def fit_whole(self, guess: int) -> Layout:
        """The same fit for a tokenizer whose parts do not add up: a bracket round the guess, then bisection on whole counts."""
        length, fewest = self.plan.length, self.plan.least
        least = self.whole(fewest)
        if least > length:
            raise LengthBudgetError(self.plan.task, length, least)
        low, high, step = fewest, max(fewest + 1, guess), 1
        while self.whole(high) <= length:
            low, high, step = high, high + step, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.whole(middle) <= length else (low, middle)
        context, chars = self._joined(low)
        # The separator before a sentence counts with it, so it is left out of what stands before.
        before = [context[: at if at == len(self.head) else at - len(self.sep)] for at in chars]
        tokens = count_batch(self.tokenizer, before).tolist()
        return Layout(context, self.whole(low), low, chars, tuple(tokens), "whole")
