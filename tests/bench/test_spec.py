"""One RunSpec from four places, in one order of precedence, and no key that is silently ignored."""

from pathlib import Path

import pytest

from proteus_bench.errors import InvalidFileError, UsageError
from proteus_bench.spec import RunSpec, load_spec, split_schedules


def test_flag_wins_over_variable_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "titans"\nsuite = "file"\nlimit = 1\nseeds = 1\nschedules = ["a"]\n')
    environ = {"PROTEUS_BENCH_SUITE": "environment", "PROTEUS_BENCH_LIMIT": "2", "PROTEUS_BENCH_PLUGINS": "none"}
    spec = load_spec({"limit": 3, "model": None}, file, environ)
    assert (spec.model, spec.suite, spec.limit, spec.seeds, spec.twin) == ("titans", "environment", 3, 1, True)


def test_the_dump_of_a_spec_is_a_spec() -> None:
    spec = load_spec({"model": "titans+proteus", "suite": "niah4k", "schedules": ("late", "random(seed=2)")}, None, {})
    assert RunSpec.model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PROTEUS_BENCH_LIMITS": "3"}, "limit"),
        ({"PROTEUS_BENCH_LIMIT": "three"}, "integer"),
        ({"PROTEUS_BENCH_TWIN": "perhaps"}, "true or false"),
        ({"PROTEUS_BENCH_SEEDS": "0"}, "seeds"),
    ],
)
def test_bad_variables_are_usage_errors(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_spec({"model": "titans", "suite": "s"}, None, environ)


def test_unknown_keys_of_a_file_name_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "titans"\nsuit = "niah4k"\n')
    with pytest.raises(UsageError, match="unknown setting 'suit'; did you mean 'suite'"):
        load_spec({}, file, {})


@pytest.mark.parametrize("content", [b"model = ", b"\xff\xfe", b'limit = "5"\nmodel = "m"\nsuite = "s"'])
def test_bad_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with pytest.raises((InvalidFileError, UsageError)):
        load_spec({}, file, {})
    with pytest.raises(InvalidFileError):
        load_spec({}, tmp_path / "missing.toml", {})


def test_commas_inside_parentheses_do_not_split() -> None:
    assert split_schedules("late, proteus(blocks=8,gate=read) ,random") == (
        "late",
        "proteus(blocks=8,gate=read)",
        "random",
    )
