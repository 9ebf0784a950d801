"""report.html: one file with everything in it. No script, no network, light and dark, readable on a phone and on paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from proteus_bench.probes.drawing import short_names
from proteus_bench.probes.figures import figures
from proteus_bench.probes.measures import NOT_SEPARABLE, amount, outcome
from proteus_bench.probes.svg import swatch

_TITLES = {
    "capacity": "How much does the memory hold, and for how long?",
    "interference": "Do facts destroy each other?",
    "gating": "What do the read gate and the write gate do?",
}

_STYLE = """
:root{color-scheme:light dark;--page:#fcfcfb;--card:#fff;--ink:#1d1f24;--soft:#5a606b;--line:#d9dce1;--heat:#0b5fa5;
--s0:#0b5fa5;--s1:#c2410c;--s2:#0f7b5f;--s3:#8e3a8c;--s4:#8a6d00;--s5:#4b5563;--good:#0f7b5f}
@media (prefers-color-scheme:dark){:root{--page:#14161a;--card:#1b1e24;--ink:#e8eaee;--soft:#a3aab5;--line:#3a3f49;--heat:#5cb0f5;
--s0:#5cb0f5;--s1:#f59356;--s2:#48c9a2;--s3:#d891d6;--s4:#e0bf4a;--s5:#b4bcc8;--good:#48c9a2}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1400px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px}h2{font-size:19px;margin:0 0 6px}
p{margin:0 0 10px;max-width:90ch}.soft{color:var(--soft)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 18px 12px;margin:18px 0}
.panels{display:flex;flex-wrap:wrap;gap:8px 18px;margin:8px 0}
.plot{max-width:100%;height:auto;flex:0 1 auto}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:6px 0}.legend span{display:inline-flex;align-items:center;gap:6px}
.swatch{width:28px;height:14px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:8px 0}
.scroll{overflow-x:auto}
th,td{padding:3px 12px 3px 0;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap;font-size:13.5px}
th{color:var(--soft);font-weight:600}
summary{cursor:pointer;color:var(--soft);font-size:13.5px}
ul{margin:0 0 8px;padding-left:20px}li{margin:2px 0;max-width:100ch}
.same{color:var(--good);font-weight:600}.clear{font-weight:600}
svg text{fill:var(--ink);font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg .small{fill:var(--soft);font-size:11px}svg .title{font-weight:600;font-size:12.5px}
.grid{stroke:var(--line);stroke-width:1;fill:none}.axis,.tick{stroke:var(--soft);stroke-width:1;fill:none}
.rule{stroke:var(--soft);stroke-dasharray:5 4;fill:none}.zero{stroke:var(--soft);fill:none}
.unlock{stroke:var(--soft);stroke-width:1.5;fill:none}
.stairs{stroke:var(--ink);stroke-width:1.6;fill:none;stroke-linejoin:round}
.heat{fill:var(--heat)}
.line,.whisker{fill:none;stroke-width:2;stroke-linejoin:round}.dashed{stroke-dasharray:6 4}
.mark{stroke:var(--card);stroke-width:1}.band{fill-opacity:.13;stroke:none}
.line.s0,.whisker.s0{stroke:var(--s0)}.line.s1,.whisker.s1{stroke:var(--s1)}.line.s2,.whisker.s2{stroke:var(--s2)}
.line.s3,.whisker.s3{stroke:var(--s3)}.line.s4,.whisker.s4{stroke:var(--s4)}.line.s5,.whisker.s5{stroke:var(--s5)}
.mark.s0,.band.s0{fill:var(--s0)}.mark.s1,.band.s1{fill:var(--s1)}.mark.s2,.band.s2{fill:var(--s2)}
.mark.s3,.band.s3{fill:var(--s3)}.mark.s4,.band.s4{fill:var(--s4)}.mark.s5,.band.s5{fill:var(--s5)}
@media print{section{break-inside:avoid}}
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{{ style_hash }}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Probe {{ d.probe }}: {{ names }}</title>
<style>{{ style }}</style></head><body><main>
<h1>{{ title }}</h1>
<p class="soft">Probe <b>{{ d.probe }}</b> of {{ names }}; suite {{ d.suite.name }} (version {{ d.suite.version }}),
{{ lengths }} tokens. Run {{ d.run_id[:12] }}.</p>
{% if d.gates %}<section><h2>Which gates are one function?</h2>
<p>Logits of the same random tokens under every gate, on the same weights, in float64: the largest difference over the largest
logit. From the start: how items are asked. From a used state: the open memory after another text, with the clock at the
start. Gates that are one function are shown as one model.</p>
<div class="scroll"><table><tr><th>gates</th><th>from the start</th><th>from a used state</th><th></th></tr>
{% for g in d.gates.differences %}<tr><td>{{ g.a }} and {{ g.b }}</td><td>{{ small(g.fresh) }}</td><td>{{ small(g.carried) }}</td>
<td>{% if same(g) %}<span class="same">{{ same(g) }}</span>{% endif %}</td></tr>{% endfor %}</table></div>
{% for note in d.notes if "the same function as gate" in note %}<p>{{ note }}.</p>{% endfor %}
{% for gate, why in d.gates.refused.items() %}<p class="soft">{{ gate }}: {{ why }}</p>{% endfor %}</section>{% endif %}
{% if effects %}<section><h2>What is lost to the other set?</h2><div class="scroll"><table>
<tr><th>model</th><th>facts</th><th>points of recall</th><th></th><th>nats of the right value</th><th></th></tr>
{% for e in effects %}<tr><td>{{ e.model }}</td><td>{{ e.what }}</td>{% for a in e.amounts %}<td>{{ a.text }}</td>
<td{% if a.bold %} class="clear"{% endif %}>{{ a.outcome }}</td>{% endfor %}</tr>{% endfor %}</table></div></section>{% endif %}
{% if d.overload %}<section><h2>Where is it full?</h2><p>Pairs at which strict recall falls below a level; the interval holds every
load whose own recall interval includes the level.</p>
<div class="scroll"><table><tr><th>model</th><th>level</th><th>pairs [95% interval]</th></tr>
{% for p in d.overload %}<tr><td>{{ p.model }}</td><td>{{ "%.0f%%"|format(100 * p.level) }}</td>
<td>{{ p.text }}</td></tr>{% endfor %}
</table></div></section>{% endif %}
{% for f in figures %}<section><h2>{{ f.title }}</h2><p class="soft">{{ f.reading }}</p>
{% if f.legend %}<div class="legend">{% for name, color, dashed in f.legend %}<span>{{ swatch(color, dashed) }}{{ name }}</span>
{% endfor %}</div>{% endif %}
{% for row in f.panels %}<div class="panels">{% for panel in row %}{{ panel }}{% endfor %}</div>{% endfor %}
{% if f.table[1] %}<details><summary>numbers</summary><div class="scroll"><table><tr>
{% for name in f.table[0] %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in f.table[1] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</table></div></details>{% endif %}
</section>{% endfor %}
<section><h2>What was run</h2><div class="scroll"><table>
<tr><th>model</th><th>seeds</th><th>weights of</th><th>trained at</th><th>parameters</th><th>state</th></tr>
{% for m in d.methods %}<tr><td>{{ m.model }}</td><td>{{ m.seeds|join(", ") }}</td><td>{{ m.trained_schedule }}</td>
<td>{{ m.train_length }} tokens</td><td>{{ "{:,}".format(m.n_params) }}</td>
<td>{{ "{:,}".format(m.state_bytes) }} bytes</td></tr>{% endfor %}
</table></div>{% for m in d.methods %}<p class="soft">{{ m.model }}: {{ m.describe }}</p>{% endfor %}
{% if d.notes %}<ul>{% for note in d.notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}</section>
</main></body></html>
"""


def render_report(document: Mapping[str, Any]) -> str:
    """The page of one probe.json. Everything in it that is not ours is escaped."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    drawn = [
        {
            "title": f.title, "reading": f.reading, "panels": [[Markup(panel) for panel in row] for row in f.panels],
            "legend": f.legend, "table": f.table,
        }
        for f in figures(document)
    ]  # fmt: skip
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return environment.from_string(_PAGE).render(
        d=document,
        figures=drawn,
        effects=_effects(document),
        title=_TITLES.get(document["probe"], "Probe"),
        names=", ".join(method["model"] for method in document["methods"]),
        lengths=", ".join(f"{length:,}" for length in document["lengths"]),
        style=Markup(_STYLE),
        style_hash=digest,
        swatch=lambda color, dashed: Markup(swatch(color, dashed)),
        small=lambda value: "not finite" if value is None else f"{value:.1e}",
        same=lambda row: _same(document["gates"], row),
    )


def _same(gates: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Words for a pair of gates that are one function."""
    pair = {row["a"], row["b"]}
    if any(pair <= set(group) for group in gates["classes_carried"]):
        return "one function"
    return "one function from the start" if any(pair <= set(group) for group in gates["classes"]) else ""


def _effects(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The interference rows as lines of a table, points and nats side by side."""
    words = {"retroactive": "A={a}, then B={b}: A lost", "proactive": "B={b}, after A={a}: B lost"}
    rows = [row for row in document["measures"] if row["measure"] in words]
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    short = short_names([method["model"] for method in document["methods"]])
    for row in rows:
        gap = f", {row['gap']}% apart" if row["gap"] else ""
        key = (row["model"], row["measure"], row["task"])
        what = words[row["measure"]].format(a=row["a"], b=row["b"]) + gap
        line = lines.setdefault(key, {"model": short[row["model"]], "what": what, "amounts": []})
        scale, digits = (100, 1) if row["column"] == "strict" else (1, 2)
        said = outcome(row)
        line["amounts"].append({"text": amount(row, scale, digits), "outcome": said, "bold": said != NOT_SEPARABLE})
    return list(lines.values())
