"""Every command that README and docs show is one that the command line takes, and runs dry where it can."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from proteus_bench.cli import invoke
from proteus_bench.cli.app import build_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAME = "proteus-bench"
PLACEHOLDERS = {"RUN...": "RUN", "MODEL...": "MODEL", "M+proteus": "gdn+proteus"}


def shown(page: Path) -> list[tuple[str, bool]]:
    """(command, whether it is whole) of a page: lines of code blocks are whole, code inside of sentences may be a name."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^```(?:sh|console)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [*(line for block in blocks for line in block.splitlines()), *re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)]
    lines = [re.split(r"\s#\s", line)[0].strip() for line in lines]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    inline = [code.replace("\\|", "|") for code in re.findall(r"`([^`\n]+)`", prose)]
    found = [(line, True) for line in lines] + [(line, False) for line in inline]
    return [(line, whole) for line, whole in found if re.match(rf"(?:[A-Z_]+=\S+ )*{NAME}(?: |$)", line)]


def commands(page: Path) -> list[tuple[tuple[str, ...], bool]]:
    """The arguments of each command, one alternative (a|b) at a time; optional parts [like this] are given."""
    made: list[tuple[tuple[str, ...], bool]] = []
    for line, whole in shown(page):
        words = shlex.split(line.replace("[", "").replace("]", ""))
        words = [PLACEHOLDERS.get(word, word) for word in words[words.index(NAME) + 1 :]]
        whole = whole and "..." not in words
        words = [word for word in words if word != "..."]
        place = next((i for i, word in enumerate(words) if "|" in word and not word.startswith("-")), None)
        choices = [words] if place is None else [[*words[:place], w, *words[place + 1 :]] for w in words[place].split("|")]
        made += [(tuple(choice), whole) for choice in choices if choice]
    return list(dict.fromkeys(made))


EVERY = sorted({pair for page in PAGES for pair in commands(page)})
DRY = [a for a, whole in EVERY if whole and a[0] == "run" and ":" not in a[a.index("--model") + 1] and "--executor" not in a]


def parsed(arguments: tuple[str, ...]) -> None:
    """Read the options of a command and run nothing. A usage error for what it does not take."""
    command: Any = typer.main.get_command(build_app(arguments))
    context, rest = command.context_class(command, info_name=NAME), list(arguments)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"there is no command {name!r}"
    command.make_context(command.name, rest, parent=context)


def test_the_pages_show_commands() -> None:
    names = {arguments[0] for arguments, _ in EVERY}
    assert {"run", "probe", "compare", "plan", "check", "train", "report", "leaderboard", "cost", "doctor", "generate"} <= names


@pytest.mark.parametrize(("arguments", "whole"), EVERY, ids=[" ".join(a) for a, _ in EVERY])
def test_a_shown_command_is_taken(arguments: tuple[str, ...], whole: bool) -> None:
    try:
        parsed(arguments)
    except Exception as error:  # Typer carries its own copy of click, so the class has no public name
        if whole or type(error).__name__ != "MissingParameter":
            raise


@pytest.mark.parametrize("arguments", DRY, ids=" ".join)
def test_a_shown_run_runs_dry(
    arguments: tuple[str, ...], tmp_path: Path, halfway: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke([*arguments, "--dry-run"]) == 0, capsys.readouterr().err
