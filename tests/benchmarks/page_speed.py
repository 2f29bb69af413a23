"""How large pages are, how soon they are drawn, and what a step of the wheel costs, in headless Chromium.

    python tests/benchmarks/page_speed.py [OPS ...]

Goals: 2,000 ops at most 1.5 MB and drawn in 0.5 s; 20,000 ops at most 12 MB and 60 ms per zoom step. Times count from
the navigation to the end of the first drawing, and from a wheel event to the end of the drawing that it causes. They
depend on what else the machine does, so the load is printed with them.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from report.page.browser import Browser, browser  # noqa: E402
from report.page.long_plans import long_plan  # noqa: E402

from dlplacer.report.page.page import html_page  # noqa: E402

_STEPS = 40
_RECORD = """
window.frames = [];
document.getElementById("gantt").addEventListener("wheel", () => {
  const began = performance.now();
  const drawn = () => {
    listeners.set("drawn", []);
    window.frames.push(performance.now() - began);
  };
  listeners.set("drawn", [drawn]);
}, {capture: true});
"""


def main() -> None:
    sizes = [int(text) for text in sys.argv[1:]] or [2000, 20000]
    print("ops     size     made in  drawn in  zoom step: median, largest  (load)")
    with browser() as session, tempfile.TemporaryDirectory() as folder:
        for count in sizes:
            plan = long_plan(count)
            began = time.perf_counter()
            text = html_page(plan)
            made_s = time.perf_counter() - began
            path = Path(folder) / f"{count}.html"
            path.write_text(text, encoding="utf-8")
            drawn_ms = statistics.median(_drawn_ms(session, path) for _ in range(5))
            steps_ms = _zoom_ms(session)
            print(
                f"{count:<7} {len(text) / 1e6:5.2f} MB {made_s:6.2f} s {drawn_ms:6.0f} ms "
                f"{statistics.median(steps_ms):8.1f} ms {max(steps_ms):8.1f} ms  ({os.getloadavg()[0]:.1f})"
            )


def _drawn_ms(session: Browser, path: Path) -> float:
    session.open(path)
    return float(session.run("return performance.getEntriesByName('dlplacer drawn')[0].startTime"))


def _zoom_ms(session: Browser) -> list[float]:
    """Milliseconds from each wheel event to the end of the drawing that it asks for, zooming in and out again."""
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    session.run(_RECORD)
    origin = ScrollOrigin.from_element(session.find("#gantt"), 50, 0)
    for number in range(_STEPS):
        session.actions().scroll_from_origin(origin, 0, -100 if number < _STEPS / 2 else 100).perform()
    session.settled()
    frames: list[float] = session.run("return window.frames")
    assert len(frames) > _STEPS / 2, "some steps share a frame, most must not"
    return frames


if __name__ == "__main__":
    main()
