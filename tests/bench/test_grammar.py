"""The model grammar: typed, canonical, and never anything but a parse or a UsageError."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_bench.errors import UsageError
from proteus_bench.grammar import SIZES, ModelSpec, parse_model
from proteus_bench.schedules import BUILTIN, CHOICES, Bottleneck, Capacity, Schedule, Static, Uniform

MODELS = ("titans", "titans-mlp", "gdn", "comba", "swla", "transformer++")
OWN = Capacity(schedule=Uniform(blocks=4, span=1024), axis="value", m0="learned")


def parse(text: str, schedules=BUILTIN) -> ModelSpec:
    return parse_model(text, models=MODELS, schedules=schedules)


def test_the_examples_of_the_manual():
    assert parse("titans") == ModelSpec("zoo", "titans")
    assert parse("titans+proteus") == ModelSpec("zoo", "titans", "proteus")
    assert parse("comba+stretched(factor=2)") == ModelSpec("zoo", "comba", "stretched", (("factor", 2.0),))
    spec = parse("swla+proteus(blocks=8,gate=read)@micro")
    assert spec == ModelSpec("zoo", "swla", "proteus", (), (("blocks", 8), ("gate", "read")), "micro")
    assert parse("hf:./ckpt") == ModelSpec("hf", "./ckpt") and parse("vllm:./ckpt") == ModelSpec("vllm", "./ckpt")
    assert parse("transformer++@760M") == ModelSpec("zoo", "transformer++", size="760m")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  titans + proteus".replace(" + ", "+"), "titans+proteus"),
        ("zoo:titans", "titans"),
        ("titans+proteus()", "titans+proteus"),
        ("titans+proteus( gate = read , blocks=8 )@1.3B", "titans+proteus(blocks=8,gate=read)@1.3b"),
        ("gdn+bottleneck(until=.250)", "gdn+bottleneck(until=0.25)"),
        ("gdn+bottleneck(few=2,axis=value,until=1e-1)", "gdn+bottleneck(few=2,until=0.1,axis=value)"),
        ("hf:a/b+uniform(blocks=4)@micro", "hf:a/b+uniform(blocks=4)@micro"),
        ("hf:org/model@main", "hf:org/model@main"),
        ("hf:./run+1", "hf:./run+1"),
        ("hf:./run+proteus/", "hf:./run+proteus/"),
    ],
)
def test_the_canonical_form_is_echoed_and_parses_to_the_same(text, canonical):
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be named"),
        ("titan", "unknown model 'titan'; did you mean 'titans'"),
        ("titans+protues", "unknown schedule 'protues'; did you mean 'proteus'"),
        ("titans+proteus(gat=read)", "'gat'; did you mean 'gate'"),
        ("titans+proteus(gate=raed)", "'raed'; did you mean 'read'"),
        ("titans+proteus(blocks=8,blocks=4)", "given twice"),
        ("titans+proteus(blocks)", "write key=value"),
        ("titans+proteus(blocks=)", "write key=value"),
        ("titans+proteus(blocks=8.5)", "blocks must be an integer"),
        ("titans+proteus(blocks=0)", "at least 1"),
        ("titans+proteus(factor=2)", "'factor'"),
        ("titans+late(start=2)", "between 0 and 1"),
        ("titans+stretched(factor=1e999)", "finite number"),
        ("titans+proteus(blocks=8", "cannot read the schedule"),
        ("titans+", "cannot read the schedule"),
        ("titans@mirco", "unknown size 'mirco'; did you mean 'micro'"),
        ("hg:./ckpt", "unknown source 'hg'; did you mean 'hf'"),
        ("hf:", "names no model"),
        ("hf:+proteus", "names no model"),
        ("hf:./x+protues", "did you mean 'proteus'.*needs a '/'"),
        ("hf:./x+mine(a=1)", "unknown schedule 'mine'"),
        ("transformer+++proteus", "no fixed state"),
        ("titans\x1b[31m", "printable"),
        ("t" * 5000, "4096"),
    ],
)
def test_a_wrong_part_is_refused_and_named(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse(text)
    assert caught.value.exit_code == 2 and "\n" not in caught.value.message


def test_the_capacity_starts_from_the_models_own():
    static = parse("titans").capacity(OWN)
    assert static.is_static and static.axis == "value" and static.m0 == "learned"
    assert parse("titans+static").capacity(OWN).schedule == Static(blocks=1, span=1024)
    proteus = parse("titans+proteus").capacity(OWN)
    assert proteus == Capacity(schedule=Uniform(blocks=16, span=1024), axis="value", m0="learned")
    mixed = parse("titans+bottleneck(until=0.25,axis=key,span=64,gate=write)").capacity(OWN)
    assert mixed.schedule == Bottleneck(blocks=4, span=64, until=0.25)
    assert (mixed.axis, mixed.gate, mixed.m0) == ("key", "write", "learned")
    assert parse("gdn+uniform").capacity(Capacity.static()).blocks == 16
    assert parse("hf:./ckpt").capacity(OWN) is OWN


def test_a_size_flag_agrees_with_the_name_or_is_refused():
    assert parse("titans").with_size("micro").size == "micro"
    assert parse("titans@micro").with_size(None).size == "micro"
    with pytest.raises(UsageError, match="--size says 760m"):
        parse("titans@micro").with_size("760m")


def test_parameters_of_a_strangers_schedule_are_typed_by_its_fields():
    @dataclass(frozen=True, kw_only=True)
    class Mine(Schedule):
        name: ClassVar[str] = "mine"
        hard: bool = False
        mode: str = "a"

        def active_blocks(self, t: int) -> int:
            if self.mode == "broken":
                raise AssertionError
            return self.blocks

        def __post_init__(self) -> None:
            if self.mode == "bad":
                raise ValueError("no such mode")

    table = {**BUILTIN, "mine": Mine}
    spec = parse("gdn+mine(hard=true,mode=b-1)", table)
    assert dict(spec.params) == {"hard": True, "mode": "b-1"} and str(spec) == "gdn+mine(hard=true,mode=b-1)"
    for text, message in (("hard=1", "true or false"), ("mode=a b", "plain word"), ("mode=bad", "no such mode")):
        with pytest.raises(UsageError, match=message):
            parse(f"gdn+mine({text})", table)


@st.composite
def specs(draw):
    name = draw(st.sampled_from([m for m in MODELS if m != "transformer++"]))
    source = draw(st.sampled_from(["", "zoo:", "hf:./", "vllm:/x y/"]))
    params = {
        "stretched": [("factor", st.floats(0.01, 1000))],
        "bottleneck": [("until", st.floats(0, 1)), ("few", st.integers(1, 2))],
        "late": [("start", st.floats(0, 1))],
        "random": [("seed", st.integers(0, 10**9))],
    }
    schedule = draw(st.sampled_from(["", "proteus", *BUILTIN]))
    options = [*params.get(schedule, []), ("blocks", st.integers(2, 64)), ("span", st.integers(64, 99999))]
    options += [(key, st.sampled_from(values)) for key, values in CHOICES.items()]
    chosen = draw(st.lists(st.sampled_from(options), unique_by=lambda option: option[0], max_size=4))
    inside = ",".join(f"{key}={draw(values)}" for key, values in chosen)
    size = draw(st.sampled_from(["", *(f"@{s}" for s in SIZES)]))
    return source + name + (f"+{schedule}({inside})" if schedule else "") + size


@given(text=specs())
def test_every_valid_model_round_trips(text):
    spec = parse(text)
    assert parse(str(spec)) == spec and str(parse(str(spec))) == str(spec)
    spec.capacity(OWN).describe()


pieces = st.sampled_from([*MODELS, *BUILTIN, "proteus", "hf:", "zoo:", "+", "@", "(", ")", ",", "=", "blocks", "gate"])
noise = st.one_of(st.text(max_size=6), st.sampled_from(["read", "8", "1e400", "-1", "micro", " ", "\x00", "\ud800"]))


@given(text=st.one_of(st.text(), st.lists(st.one_of(pieces, noise), max_size=12).map("".join)))
def test_any_string_parses_or_is_a_usage_error(text):
    try:
        spec = parse(text)
    except UsageError:
        return
    assert parse(str(spec)) == spec
