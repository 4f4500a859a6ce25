"""The report's style sheet, from `style.css` beside this file.

Text has a contrast of at least 4.5:1, in light and dark. The part colours follow Okabe and Ito's palette for
colour-blind readers (https://jfly.uni-koeln.de/color/), darkened or lightened per theme.
"""

from __future__ import annotations

from pathlib import Path

COLOURS = 9
STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8") + "".join(
    f".s{i}{{stroke:var(--c{i});fill:var(--c{i})}}i.s{i},i.c{i}{{background:var(--c{i})}}.part.c{i}{{fill:var(--c{i})}}\n"
    for i in range(COLOURS)
)
