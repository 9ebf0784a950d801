"""The pages in a real browser: `make browser`. Not part of the test run: it needs Chromium and the package playwright.

    python tests/browser/check_pages.py [--chromium PATH] [--axe axe.min.js] [--run RUN] [--out FOLDER]

Checks, on a made leaderboard of 56 rows, one of 1,000 rows and (with --run) the report of a run folder: nothing is refused
by the page's own policy, time until it answers, sorting and filtering by mouse and by keyboard, the dark page, no sideways
scrolling at phone width, print; with --axe also the accessibility rules of axe-core. Screenshots go to --out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / part) for part in ("", "tasks", "models", "kernels", "benchmarks")]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


def made(folder: Path, run: Path | None) -> dict[str, Path]:
    """The pages that are looked at."""
    import leaderboard as bench

    from proteus_bench.leaderboard import build_leaderboard
    from proteus_bench.site import write_page, write_report

    pages = {}
    for name, count, lengths in (("board", 14, (2048, 4096, 8192, 16384)), ("thousand", 1000, (4096,))):
        bench.write_entries(folder / name, count, lengths)
        shutil.copytree(ROOT / "leaderboards" / "published", folder / name / "published", dirs_exist_ok=True)
        pages[name] = write_page(build_leaderboard(folder / name).board, folder / name)
    if run is not None:
        pages["report"] = write_report(run, folder / "report.html")
    return pages


def look(browser: Any, name: str, path: Path, out: Path, axe: str | None) -> list[str]:
    """What is wrong with one page."""
    wrong: list[str] = []
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            watch(page, path, wrong)
            page.goto(path.as_uri())
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wrong.append(f"{size}: the page scrolls sideways")
            page.screenshot(path=out / f"{name}-{size}-{scheme}.png", full_page=name != "thousand")
            if axe is not None and name != "thousand":
                wrong += violations(browser, path, axe, width, height, scheme)
            if name == "board" and size == "desktop" and scheme == "light":
                wrong += behaviour(page)
            context.close()
    return wrong


def watch(page: Any, path: Path, wrong: list[str]) -> None:
    """Note what the page's policy refuses, what its script throws, and what it would load."""
    page.on("console", lambda m: wrong.append(f"console: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: wrong.append(f"error: {e}"))
    page.on("request", lambda r: None if r.url.startswith(path.as_uri()) else wrong.append(f"loads {r.url}"))


def violations(browser: Any, path: Path, axe: str, width: int, height: int, scheme: str) -> list[str]:
    """Rules of axe-core that the page breaks. The policy of the page is set aside for this, or it would refuse axe."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(path.as_uri())
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => ({v: r.violations, n: r.passes.length}))")
    context.close()
    print(f"  axe {width}px {scheme}: {found['n']} rules passed, {len(found['v'])} broken")
    return [f"axe {v['id']} ({v['impact']}): {v['nodes'][0]['html'][:160]} [{len(v['nodes'])}]" for v in found["v"]]


def behaviour(page: Any) -> list[str]:
    """Sorting, filtering, theme, by mouse and by keyboard."""
    wrong = []

    def expect(what: str, true: bool) -> None:
        if not true:
            wrong.append(what)

    def column(n: int) -> list[float]:
        texts = page.locator(f"table.board >> nth=0 >> tbody tr >> visible=true >> td:nth-child({n})")
        return [float(t.get_attribute("data-v") or "nan") for t in texts.all()]

    page.keyboard.press("Tab")
    expect("the first stop is the skip link", "Skip" in page.evaluate("document.activeElement.textContent"))
    head = page.locator("table.board >> nth=0 >> th:nth-child(3)")
    head.locator("button").click()
    scores = column(3)
    expect("a click sorts by score, the highest first", scores == sorted(scores, reverse=True) and len(scores) == 14)
    expect("the order is announced", head.get_attribute("aria-sort") == "descending")
    head.locator("button").focus()
    page.keyboard.press("Enter")
    expect("Enter sorts the other way", column(3) == sorted(scores))
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.textContent")
    expect(f"Tab goes on to the next column, not to {focused!r}", focused == "less static")
    page.locator("#filter").fill("gdn late")
    rows = page.locator("table.board tbody tr >> visible=true").count()
    expect(f"a filter of two words leaves one row a board, not {rows}", rows == 4)
    expect("the number of rows is said", page.locator("#count").inner_text() == "4 rows")
    page.locator("#filter").fill("")
    page.locator("#suite").select_option("made4k")
    expect("a suite is picked", page.locator("section[data-suite] >> visible=true").count() == 1)
    page.locator("#suite").select_option("")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    expect("the page turns dark", page.evaluate("getComputedStyle(document.body).backgroundColor") != before)
    page.locator("#theme").click()
    page.emulate_media(media="print")
    expect("controls are not printed", not page.locator("#filter").is_visible())
    expect("a page prints", len(page.pdf()) > 20_000)
    return wrong


def seconds(browser: Any, path: Path) -> tuple[float, float]:
    """(until the page of a thousand rows is complete and answers, a filter of it), in seconds: best of three."""
    best = (1e9, 1e9)
    for _ in range(3):
        page = browser.new_page()
        page.goto(path.as_uri(), wait_until="load")
        loaded = page.evaluate("performance.getEntriesByType('navigation')[0].domComplete / 1000")
        filtered = page.evaluate(
            "(() => { const t = performance.now(); const f = document.getElementById('filter'); f.value = 'gdn late';"
            " f.dispatchEvent(new Event('input')); document.body.offsetHeight; return (performance.now() - t) / 1000; })()"
        )
        best = (min(best[0], loaded), min(best[1], filtered))
        page.close()
    return best


def main() -> int:
    """0 when nothing is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--axe", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs-out") / "browser")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    args.out.mkdir(parents=True, exist_ok=True)
    axe = args.axe.read_text(encoding="utf-8") if args.axe else None
    wrong: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        pages = made(Path(name), args.run)
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        for kind, path in pages.items():
            print(kind)
            wrong[kind] = look(browser, kind, path, args.out, axe)
        taken = seconds(browser, pages["thousand"])
        print(f"1,000 rows: complete after {taken[0]:.2f} s, filtered in {taken[1]:.2f} s")
        if max(taken) > 1:
            wrong["thousand"].append(f"slow: {taken}")
        browser.close()
    print(json.dumps({kind: list(dict.fromkeys(found)) for kind, found in wrong.items()}, indent=1))
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
