"""A made-up country for fixtures: people, towns, rivers, trades and instruments, from tables written for this project.

Entities belong to splits by their number, like key words; nothing here is about a real person or place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from . import rng
from .haystack import check_split

FIRST = tuple(
    """Ada Alma Anton Arlo Bela Berta Carl Celia Dario Delia Edgar Elsa Emil Enid Felix Flora Georg Greta Hanna Hugo Ida Igor
    Ines Ivo Jana Jasper Judith Karl Klara Konrad Lena Leo Lotte Lukas Magda Marek Marta Milan Mina Moritz Nadia Nils Nora Olaf
    Olga Oskar Paula Petra Quentin Rita Robert Rosa Rufus Sara Stella Sven Thea Tilda Ulrich Vera""".split()  # noqa: SIM905
)
LAST = tuple(
    """Abend Ahorn Balder Barnack Bleek Borg Brand Brook Cassel Corvin Dahl Dorn Drax Ebner Eck Falk Farrow Finn Gaunt Gerber
    Glass Grove Hain Halden Harrow Holm Jansen Kell Kern Korda Lang Lark Linde Lorn Maas Marl Mohr Nagel Nash Oster Pell Pohl
    Quill Rabe Reed Rowan Sander Sorrel Stark Stern Tamm Thorne Tressel Ulm Vane Vogt Wald Weir Wick Zorn""".split()  # noqa: SIM905
)
_TOWN_HEAD = tuple(
    """Ald Amber Ash Barn Birk Black Bram Brack Cald Carr Cold Dal Dun East Eld Elm Fair Fern Gold Grey Hal Hart Haw Hazel High
    Holl Ing Kirk Lang Lind Long Mar Mere Mill Moss Neth New North Oak Ox Pen Pine Raven Red Rock Rush Sand Shel Silver South
    Stan Stone Strat Thorn Tor Under Wald West White Wil""".split()  # noqa: SIM905
)
_TOWN_TAIL = tuple(
    """bach beck berg bourne bridge burgh bury by cliff combe dale den don field ford gate ham haven hill holm hurst ley mouth
    ness stead stow thorpe ton wick wood""".split()  # noqa: SIM905
)
_RIVER = tuple(
    """Alder Arven Belm Brisk Calder Corra Darrow Deva Elbin Esk Farn Gavel Havel Iller Jarra Kesh Lenna Lossa Marn Nidd Orla
    Pella Quarn Rill Sarn Silva Tarn Tessel Umber Vell Wenn Yarra""".split()  # noqa: SIM905
)
REGIONS = (
    "Northmark",
    "Highlands",
    "Lakeshore",
    "Southfields",
    "Eastwold",
    "Border Hills",
    "Great Marsh",
    "Upper Vale",
)
TRADES = (
    "tanning", "brewing", "weaving", "glassblowing", "printing", "shipbuilding", "milling", "mining", "pottery", "bookbinding",
    "candle making", "rope making", "salt panning", "stone cutting", "paper making", "cheese making", "clock making", "dyeing",
)  # fmt: skip
JOBS = (
    "printer", "surveyor", "botanist", "clockmaker", "engraver", "ferryman", "glazier", "judge", "librarian", "mason", "miller",
    "organist", "painter", "potter", "sailor", "tailor", "teacher", "weaver", "brewer", "carpenter",
)  # fmt: skip
BIRDS = (
    "heron",
    "magpie",
    "kestrel",
    "lapwing",
    "nightjar",
    "osprey",
    "plover",
    "redstart",
    "siskin",
    "wagtail",
    "curlew",
    "rook",
)
CROPS = ("barley", "flax", "hops", "oats", "rye", "turnips", "plums", "cherries", "beans", "clover", "hemp", "quinces")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
INSTRUMENTS = ("balance", "barometer", "flow meter", "hygrometer", "level gauge", "photometer", "pressure gauge", "refractometer",
               "thermometer", "viscometer", "turbidity meter", "conductivity meter")  # fmt: skip
SAMPLES = ("brine", "beet syrup", "engine oil", "flue gas", "grain dust", "lamp oil", "milk", "mineral water", "paint",
           "river water", "soap stock", "vinegar", "wood pulp", "tar")  # fmt: skip
PRINCIPLES = ("spring deflection", "float displacement", "light scattering", "thermal expansion", "electrical resistance",
              "capillary rise", "rotating vane", "bimetallic strip", "vibrating reed", "prism refraction")  # fmt: skip
MATERIALS = ("brass", "glass", "cast iron", "enamelled steel", "nickel", "porcelain", "tin", "walnut")
OBJECTS = ("silver key", "blue ledger", "brass compass", "ivory comb", "leather map", "old violin", "painted fan", "pewter cup",
           "red lantern", "seal ring", "spare wheel", "walnut box")  # fmt: skip
HIDING = ("bell tower", "boat house", "chapel", "cider press", "clock room", "coach house", "dovecote", "ice cellar", "mill loft",
          "orchard shed", "smoke house", "well house")  # fmt: skip
_RANKS = {"train": range(0, 6), "tune": range(6, 7), "test": range(7, 10)}


def _of_split(names: list[str], split: str) -> tuple[str, ...]:
    """The names of a split, in an order that mixes them."""
    ranks = _RANKS[check_split(split)]
    order = rng.raw(rng.seed_of("proteus-tasks", "world", len(names)), len(names)).argsort(kind="stable").tolist()
    return tuple(names[i] for place, i in enumerate(order) if place % 10 in ranks)


@lru_cache(maxsize=3)
def people(split: str) -> tuple[str, ...]:
    """Names of people of a split: 1,080 in test."""
    return _of_split([f"{first} {last}" for first in FIRST for last in LAST], split)


@lru_cache(maxsize=3)
def towns(split: str) -> tuple[str, ...]:
    """Names of towns of a split: 540 in test."""
    return _of_split([head + tail for head in _TOWN_HEAD for tail in _TOWN_TAIL], split)


@lru_cache(maxsize=3)
def rivers(split: str) -> tuple[str, ...]:
    """Names of rivers of a split: 105 in test."""
    sides = ("Upper", "Lower", "Little", "Great", "Old", "New", "North", "South", "White", "Black")
    return _of_split([*_RIVER, *(f"{side} {river}" for side in sides for river in _RIVER)], split)


@dataclass
class Dice:
    """Numbered draws of one fixture: equal seeds and equal calls, equal results."""

    seed: int
    made: int = 0

    def below(self, n: int) -> int:
        """One of 0..n-1."""
        self.made += 1
        return int(rng.below(rng.seed_of(self.seed, self.made), n, 1)[0])

    def one(self, of: tuple[str, ...] | list[str]) -> str:
        """One element."""
        return of[self.below(len(of))]

    def some(self, of: tuple[str, ...] | list[str], n: int) -> list[str]:
        """n different elements in a random order."""
        self.made += 1
        order = rng.raw(rng.seed_of(self.seed, self.made), len(of)).argsort(kind="stable")
        return [of[i] for i in order[:n].tolist()]

    def shuffled(self, of: list[str]) -> list[str]:
        """All elements in a random order."""
        return self.some(of, len(of))

    def chance(self, percent: int) -> bool:
        """True in `percent` of the cases."""
        return self.below(100) < percent

    def number(self, low: int, high: int) -> int:
        """A whole number in low..high-1."""
        return low + self.below(high - low)
