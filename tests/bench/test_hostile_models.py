"""Checkpoints, suite files and plugin names are hostile until they are checked; nothing is ever unpickled."""

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.bench.leaderboard_help import refused

# -- checkpoints


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "model.pkl"])
def test_pickles_are_refused_and_never_loaded(tiny_zoo: Path, tmp_path: Path, name: str) -> None:
    import pickle

    from proteus_models.checkpoint import load_checkpoint, read_weights

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(tmp_path / "fired"), "w"))

    folder = Path(shutil.copytree(tiny_zoo / "titans" / "seed0", tmp_path / "c"))
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Payload()))
    refused(lambda: load_checkpoint(folder), "pickled")
    refused(lambda: read_weights(folder / name), "never loaded")
    (folder / "model.safetensors").write_bytes((folder / name).read_bytes())
    refused(lambda: load_checkpoint(folder), "not a safetensors file")
    assert not (tmp_path / "fired").exists()


def _header(length: int, body: bytes) -> bytes:
    return struct.pack("<Q", length) + body


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 7, _header(1 << 62, b"{}"), _header(17 << 20, b"{" + b" " * 100), _header(2, b"{}"), _header(5, b"{}"),
        _header(70, b'{"embed.weight":{"dtype":"F32","shape":[9223372036854775807],"data_off'), _header(3, b"nul"),
    ],
)  # fmt: skip
def test_hostile_safetensors_are_refused(tiny_zoo: Path, tmp_path: Path, data: bytes) -> None:
    from proteus_models.checkpoint import load_checkpoint

    folder = Path(shutil.copytree(tiny_zoo / "titans" / "seed0", tmp_path / "c"))
    (folder / "model.safetensors").write_bytes(data)
    refused(lambda: load_checkpoint(folder))


def test_tensors_of_wrong_shape_or_not_finite_are_refused(tiny_zoo: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from proteus_models.checkpoint import load_checkpoint

    folder = Path(shutil.copytree(tiny_zoo / "titans" / "seed0", tmp_path / "c"))
    good = load_file(folder / "model.safetensors")
    name = next(iter(good))
    for bad, message in (
        ({**good, name: good[name][..., :1].contiguous()}, "shape"),
        ({**good, name: torch.full_like(good[name], float("nan"))}, "not finite"),
        ({k: v for k, v in good.items() if k != name}, "missing"),
        ({**good, "more": torch.zeros(1)}, "unexpected"),
    ):
        save_file(bad, folder / "model.safetensors")
        refused(lambda: load_checkpoint(folder), message)


# -- suites and retired entries

SUITE = (
    'id = "x"\nversion = "1"\ndescription = ""\ndata_seed = 0\nsplit = "test"\nlength = {length}\nn = {n}\ntasks = ["{task}"]\n'
)

@pytest.mark.parametrize(
    "text",
    [
        "id = 1", 'id = "../x"', "\xff", "a = " + "[" * 5000, 'id = "x"\nid = "y"', "n = 1e999", "[hashes]\nx = 1",
        SUITE.format(length=9999999999, n=1, task="niah.single_1"), SUITE.format(length=512, n=999999999, task="niah.single_1"),
        SUITE.format(length=512, n=1, task="os.system"),
    ],
)  # fmt: skip
def test_hostile_suite_files_are_refused(cli, tmp_path: Path, text: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "evil.toml"
    path.write_bytes(text.encode("latin-1"))
    done = cli("run", "--model", "titans", "--suite", str(path))
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("proteus-bench:")]) == 1


def test_plugin_names_that_are_no_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from proteus_bench.registry import Registry

    info = tmp_path / "evil_plugin-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil-plugin\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[proteus_bench.models]\n../../x = os:system\n<script> = os:system\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("models")
    assert not {"../../x", "<script>"} & set(registry.names())
    assert len([s for s in registry.load()[1] if s.dist == "evil-plugin" and s.error is not None]) == 2


def test_a_link_among_the_entries_is_refused(tmp_path: Path) -> None:
    from proteus_bench.leaderboard.build import build_leaderboard, read_retired

    (tmp_path / "entries").mkdir()
    (tmp_path / "entries" / ("0" * 16 + ".json")).symlink_to("/etc/passwd")
    refused(lambda: build_leaderboard(tmp_path), "is a link")
    refused(lambda: read_retired(tmp_path / "entries" / "nothere.json"), "does not exist")
