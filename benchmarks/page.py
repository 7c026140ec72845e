"""How fast the page is on a run of LAMA's size: first view, slider, scrolling, the file's size.

A made-up run of 34,039 test facts of 41 relations with 15 candidates each is written, served in a
process of its own and opened in headless Chromium (Debian's chromium-headless-shell).

    python benchmarks/page.py
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny.big import FACTS, write_big_run

BROWSER = "/usr/lib/chromium/chromium-headless-shell"
SLIDER = """async () => {
  const [slider] = [...document.querySelectorAll("input[type=range]")].slice(-1);
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const times = { work: [], painted: [] };
  for (let move = 0; move < 30; move++) {
    await painted();
    slider.value = String((move % 10) * 0.2 + 0.1);
    const begun = performance.now();
    slider.dispatchEvent(new Event("input"));
    times.work.push(performance.now() - begun);
    await painted();
    times.painted.push(performance.now() - begun);
  }
  return times;
}"""
SCROLL = """async () => {
  const rows = document.querySelector(".rows");
  const frames = [];
  const long = [];
  new PerformanceObserver((list) => long.push(...list.getEntries().map((own) => own.duration)))
    .observe({ type: "longtask" });
  const steps = 400;
  let before = await new Promise(requestAnimationFrame);
  for (let step = 1; step <= steps; step++) {
    rows.scrollTop = ((rows.scrollHeight - rows.clientHeight) * step) / steps;
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - before);
    before = now;
  }
  const last = [...document.querySelectorAll(".space .row:not([hidden])")]
    .map((own) => Number(own.getAttribute("aria-rowindex")));
  return { frames, long, last: Math.max(...last) - 1 };
}"""


def serve(run: Path) -> tuple[subprocess.Popen[str], str, float]:
    """Start the server; return it, the address and the seconds until it was printed."""
    begun = time.perf_counter()
    words = [sys.executable, "-m", "symprompt.cli", "page", str(run), "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"http://\S+", line)
        if found:
            return process, found[0], time.perf_counter() - begun
    raise SystemExit("the server ended")


def measure(run: Path, browser: Any, view: str) -> tuple[dict[str, float], Any]:
    """Serve a run anew and open a view; return seconds and the page, whose server has ended."""
    process, address, started = serve(run)
    try:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        begun = time.perf_counter()
        page.goto(f"{address}#{view}")
        page.wait_for_selector("body[data-ready]")
        return {"start": started, "first view": time.perf_counter() - begun}, page
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(10)


def main() -> None:
    """Write the run, open it several times, print medians and maxima."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--facts", type=int, default=FACTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    # Other work on the machine shows in the largest values; so it is told.
    found: dict[str, Any] = {"facts": flags.facts, "load average before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        run = write_big_run(Path(place) / "run", flags.facts)
        target = Path(place) / "report.html"
        words = [sys.executable, "-m", "symprompt.cli", "page", str(run), "--export", str(target)]
        begun = time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)
        found["export s"] = time.perf_counter() - begun
        found["export MB"] = target.stat().st_size / 1e6
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for view in ("ask", "facts"):
            rounds = []
            for _ in range(flags.rounds):
                times, page = measure(run, browser, view)
                rounds.append(times)
            for name in rounds[0]:
                found[f"{view}: {name} s"] = statistics.median(own[name] for own in rounds)
        # The data is there: sliding and scrolling need no server.
        moves, scrolled = page.evaluate(SLIDER), page.evaluate(SCROLL)
        assert scrolled["last"] == flags.facts
        found["slider: work, median ms"] = statistics.median(moves["work"])
        found["slider: work, most ms"] = max(moves["work"])
        found["slider: until painted, most ms"] = max(moves["painted"])
        found["scroll: frame, median ms"] = statistics.median(scrolled["frames"])
        found["scroll: frame, most ms"] = max(scrolled["frames"])
        found["scroll: tasks over 50 ms"] = len(scrolled["long"])
        page = browser.new_page()
        begun = time.perf_counter()
        page.goto(target.as_uri() + "#facts")
        page.wait_for_selector("body[data-ready]")
        found["file: first view s"] = time.perf_counter() - begun
        browser.close()
    found["load average after"] = os.getloadavg()[0]
    if flags.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name}: {value:,.3f}" if isinstance(value, float) else f"{name}: {value:,}")


if __name__ == "__main__":
    main()
