"""What every page of ours is: one file with styles and script inside, a policy that allows nothing else, text as text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from proteus_bench.store import write_bytes

ASSETS = Path(__file__).resolve().parent / "assets"
# Control characters, and those that change the order of a text or do not show.
_HIDDEN = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)


_STYLE, _SCRIPT = "<!--style-->", "<!--script-->"


def clean(text: str) -> str:
    """Text without characters that deceive a reader, and without unpaired surrogates, which no file can hold."""
    return _HIDDEN.sub("", text).encode("utf-8", "replace").decode("utf-8")


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
        auto_reload=False,
    )


def _finalize(value: Any) -> Any:
    from markupsafe import Markup

    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render(template: str, values: Mapping[str, Any], *, script: bool) -> str:
    """The page of a template in `assets`, with its policy. Every text in it is escaped; SVG of ours is not."""
    from markupsafe import Markup

    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    code = (ASSETS / "page.js").read_text(encoding="utf-8") if script else ""
    policy = f"default-src 'none'; style-src 'sha256-{_hash(style)}'; base-uri 'none'; form-action 'none'"
    if script:
        policy += f"; script-src 'sha256-{_hash(code)}'"
    text: str = (
        _environment()
        .get_template(template)
        .render(policy=Markup(policy), svg=Markup, **values)
    )
    squeezed = re.sub(r"\n\s*\n+", "\n", re.sub(r"\n +", "\n", text))
    # The hashes of the policy hold for these two byte by byte, so they go in last.
    head, body = squeezed.split(_STYLE, 1)
    if not script:
        return f"{head}<style>{style}</style>{body}"
    body, end = body.rsplit(_SCRIPT, 1)
    return f"{head}<style>{style}</style>{body}<script>{code}</script>{end}"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def write(path: Path, text: str) -> Path:
    """Save a page whole or not at all. EnvironmentFault (exit 4)."""
    write_bytes(path, text.encode("utf-8"))
    return path
