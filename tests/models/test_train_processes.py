"""Training by two gloo processes, DDP and FSDP2, equals training by one: losses, weights and optimizer state."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import finish, start
from safetensors.torch import load_file, save_file

from proteus_bench.errors import InvalidFileError, UsageError
from proteus_models.decoder import MIXERS, DecoderLM
from proteus_models.train_objective import Rows
from proteus_models.train_parallel import Processes, draw
from proteus_models.train_state import FILE, Progress, load, read_progress

WORKER = str(Path(__file__).with_name("train_worker.py"))
CASES: dict[str, dict[str, Any]] = {
    "gdn-documents": {"mixer": "gdn", "documents": True, "micro_rows": 1},
    "hope": {"mixer": "hope-attention"},
}
PLANS = {"ddp": False, "fsdp": True}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders one/<case>, ddp/<case> and fsdp/<case>; the two processes of both plans are the same."""
    root = tmp_path_factory.mktemp("trained")

    def cases(plan: str) -> list[dict[str, Any]]:
        own = {"sharded": PLANS.get(plan, False)}
        return [{"folder": str(root / plan / name), **case, **own} for name, case in CASES.items()]

    launches = [
        start([WORKER, json.dumps(cases("one"))], 1),
        start([WORKER, json.dumps([case for plan in PLANS for case in cases(plan)])], 2),
    ]
    for launch in launches:
        finish(launch)
    return root


def read(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return load_file(folder / "state.safetensors"), json.loads((folder / "losses.json").read_text())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("plan", PLANS)
def test_two_processes_equal_one_after_50_steps(trained: Path, plan: str, case: str) -> None:
    one, alone = read(trained / "one" / case)
    two, shared = read(trained / plan / case)
    assert (alone["processes"], shared["processes"], shared["plan"]) == (1, 2, plan)
    assert len(alone["losses"]) == len(shared["losses"]) == 50
    assert max(abs(a - b) for a, b in zip(alone["losses"], shared["losses"], strict=True)) <= 1e-5
    assert one.keys() == two.keys() and any(name.startswith("optimizer.") for name in one)
    weights = [name for name in one if name.startswith("model.")]
    assert max(float((one[name] - two[name]).abs().max()) for name in weights) <= 1e-5
    assert alone["losses"][-1] < alone["losses"][0] - 0.05, "nothing was learned: the steps would agree by doing nothing"


def test_two_sharded_processes_are_killed_and_one_goes_on(trained: Path, tmp_path: Path) -> None:
    case = {"folder": str(tmp_path), **CASES["gdn-documents"]}
    launch = start([WORKER, json.dumps([{**case, "sharded": True}])], 2, SAVE_EVERY="0")
    deadline = time.monotonic() + 240
    while (p := read_progress(tmp_path)) is None or p.step < 10:
        assert time.monotonic() < deadline and all(process.poll() is None for process in launch)
        time.sleep(0.02)
    for process in launch:
        process.kill()
    for process in launch:
        process.communicate()
    stopped = read_progress(tmp_path)
    assert stopped is not None and 10 <= stopped.step < 50
    finish(start([WORKER, json.dumps([case])], 1))
    one, two = (read(folder)[0] for folder in (trained / "one" / "gdn-documents", tmp_path))
    assert max(float((one[name] - two[name]).abs().max()) for name in one if name.startswith("model.")) <= 1e-5


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_model_made_on_the_meta_device_gets_the_weights_of_its_constructor(mixer: str) -> None:
    from test_packing import model

    torch.manual_seed(11)
    config = model(mixer).config
    torch.manual_seed(11)
    wanted = DecoderLM(config)
    with torch.device("meta"):
        made = DecoderLM(config)
    made.to_empty(device="cpu")
    draw(made, 11)
    assert made.state_dict().keys() == wanted.state_dict().keys() == dict(wanted.named_parameters()).keys()
    assert all(torch.equal(a, b) for a, b in zip(made.state_dict().values(), wanted.state_dict().values(), strict=True))


def test_rows_that_cannot_be_shared_are_refused_and_others_are_shared_once() -> None:
    import numpy as np

    own = Processes()
    ids = np.arange(12)[:, None]
    rows = Rows(ids=ids, labels=ids, kinds=ids)
    own.count = 3
    seen = []
    for rank in range(3):
        own.rank = rank
        seen += [part.ids[:, 0].tolist() for part in own.parts(rows, 2)]
    assert sorted(id for part in seen for id in part) == list(range(12)) and {len(part) for part in seen} == {2}
    with pytest.raises(UsageError, match="micro_rows"):
        own.parts(rows, 5)


def test_a_launch_that_would_train_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from proteus_bench.errors import EnvironmentFault

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(EnvironmentFault, match="precision"):
        Processes()


def test_a_state_of_another_recipe_or_model_is_refused(trained: Path) -> None:
    from train_worker import model

    folder = trained / "one" / "hope"
    made, _ = model("hope-attention")
    with pytest.raises(InvalidFileError, match="another recipe"):
        load(folder, made, [], "some other")
    other, _ = model("gdn")
    with pytest.raises(InvalidFileError, match="missing or of another shape"):
        load(folder, other, [], "")


def test_progress_is_read_whole_while_new_states_are_renamed_into_place(tmp_path: Path) -> None:
    """Headers of changing length: whoever opens the path twice sooner or later reads one file's header beside another's bytes."""
    for number in range(2):
        progress = Progress(step=number, status="running" * (1 + 40 * number))
        metadata = {"progress": json.dumps(vars(progress)), "identity": ""}
        save_file({"model.a": torch.zeros(3 + number)}, tmp_path / f"{number}", metadata=metadata)
    # another process: within this one, a reader in native code keeps the interpreter's lock and hides the race
    loop = (
        "import os, sys; files = [open(name, 'rb').read() for name in '01']\n"
        "while True:\n"
        "    for data in files:\n"
        "        open('next', 'wb').write(data); os.replace('next', sys.argv[1])\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", loop, FILE], cwd=tmp_path)
    seen = set()
    try:
        deadline = time.monotonic() + 60
        for _ in range(4000):
            while (p := read_progress(tmp_path)) is None:
                assert writer.poll() is None and time.monotonic() < deadline
            seen.add(p.step)
    finally:
        writer.kill()
        writer.wait()
    assert seen == {0, 1}


def test_a_damaged_state_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / FILE
    assert read_progress(tmp_path) is None
    save_file({"model.a": torch.zeros(3)}, path, metadata={"progress": json.dumps(vars(Progress(step=7)))})
    whole = path.read_bytes()
    assert read_progress(tmp_path) is not None
    for damaged in (b"", whole[:5], whole[:40], whole[:-1], b"\xff" * len(whole), whole[:8] + b"[" + whole[9:], whole[:8] + b"[]"):
        path.write_bytes(damaged)
        with pytest.raises(InvalidFileError, match="not a training state of ours"):
            read_progress(tmp_path)
    save_file({"model.a": torch.zeros(3)}, path)
    with pytest.raises(InvalidFileError, match="not a training state of ours"):
        read_progress(tmp_path)
