"""More defects of the anchors that ours do not have: templates, order of questions, speed and memory of generation."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from families import EVERY

from proteus_tasks import longbench
from proteus_tasks.retrieval import order
from proteus_tasks.tokenizers import resolve

MICRO = resolve("micro")


def test_braces_in_a_context_are_text():
    frame = "Read {{context}} and say {{question}}"
    text = "a {{question}} b {{context}} {0} %s \\1"
    assert longbench.filled(frame, text, "why {{context}}?") == f"Read {text} and say why {{{{context}}}}?"


def test_questions_are_drawn_from_all_rows():
    """RULER takes the first 500 questions in their order."""
    first = order(5000, "test", 0)[:500]
    assert sorted(order(5000, "test", 0)) == list(range(5000)) and list(first) != sorted(first)
    assert max(first) > 4900 and min(first) < 100
    assert len(set(first) & set(order(5000, "test", 1)[:500])) < 100


SLOWEST = (".jrt-twice.ladder", "qa_squad-fixture", "musique-fixture.strict")
TIMED = [n for n in sorted(EVERY) if "fixture" not in n or n.endswith(SLOWEST)]
ALL_OF_THEM = """
from families import EVERY
from proteus_tasks.tokenizers import resolve
import sys
for name in sys.argv[1:]:
    list(EVERY[name].items(5, length=16384, tokenizer=resolve("micro")))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize("name", TIMED)
def test_16k_items_are_quick(name):
    """500 items of 16,384 tokens within 6 s of one core (40 of them here, so within 0.48 s; twice that on a loaded machine)."""
    task = EVERY[name]
    list(task.items(1, length=16384, tokenizer=MICRO))  # the corpus is counted once, whatever the number of items
    seconds = []
    for start in (0, 20):
        begun = time.process_time()
        for index in range(start, start + 20):
            task.item(index, length=16384, tokenizer=MICRO)
        seconds.append(time.process_time() - begun)
    assert min(seconds) < 6.0 * 20 / 500 * 2


def test_16k_items_of_every_family_stay_under_a_gigabyte():
    """In a process of its own: this one holds whatever other tests loaded."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    command = [sys.executable, "-c", ALL_OF_THEM, *TIMED]
    peak = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert int(peak) < 1_000_000  # KiB
