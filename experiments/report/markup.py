"""Pieces of a page that needs nothing else: style, script, tables, text to copy.

The colours of lines are Okabe and Ito's, which colour-blind readers can tell apart, a
little darker or paler where the page would swallow them.
"""

import csv
import io
import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from experiments.engine.run_folder import Row
from experiments.report import measures

NOTHING = "\u2013"
_FORMULA = re.compile(r"[=+\-@\t\r]")  # how cells begin that a spreadsheet would run
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", re.IGNORECASE)
_TEXT_COLUMNS = ("folder", "scheme", "setting")
_COUNT_COLUMNS = ("runs", "round", "messages", "cluster", "agents", "messages to best")

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f8; --card: #ffffff; --text: #1b1f23;
  --muted: #59636e; --grid: #e3e6ea; --accent: #0060a0; }
@media (prefers-color-scheme: dark) { :root { --page: #121518; --card: #1b1f24;
  --text: #e8eaed; --muted: #a3abb5; --grid: #323941; --accent: #8ec8f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 80rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 1.6rem 0 0.2rem; }
section { min-width: 0; }
p { margin: 0.2rem 0 0.6rem; color: var(--muted); max-width: 46rem; }
.charts { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.card { margin: 0; padding: 0.8rem; background: var(--card); border-radius: 8px;
  border: 1px solid var(--grid); max-width: 44rem; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: 0.4rem; overflow-wrap: anywhere; }
.legend .name { color: var(--text); overflow-wrap: anywhere; }
.scroll { overflow-x: auto; background: var(--card); border-radius: 8px;
  border: 1px solid var(--grid); margin: 0.5rem 0; width: fit-content;
  max-width: 100%; }
table { border-collapse: collapse; font-size: 0.88rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; text-align: left; white-space: nowrap; }
th { color: var(--muted); font-weight: 600; }
tr + tr > *, thead + tbody > tr > * { border-top: 1px solid var(--grid); }
.number { text-align: right; }
.unfinished { color: #b54708; font-weight: 600; }
@media (prefers-color-scheme: dark) { .unfinished { color: #ffb77a; } }
summary { cursor: pointer; color: var(--accent); padding: 0.3rem 0; }
button { font: inherit; color: var(--accent); background: var(--card); cursor: pointer;
  border: 1px solid var(--accent); border-radius: 6px; padding: 0.35rem 0.8rem;
  margin: 0 0.5rem 0.3rem 0; }
pre { margin: 0; padding: 0.7rem; font-size: 0.82rem; }
"""

_CHART_STYLE = """
:root { --s0: #1b1b1b; --s1: #d98c00; --s2: #3a9fd8; --s3: #009e73; --s4: #0060a0;
  --s5: #d55e00; --s6: #c0609a; --s7: #a89a00; --between: #a5adb8; }
@media (prefers-color-scheme: dark) { :root { --s0: #f2f2f2; --s1: #e69f00;
  --s2: #8ed0f5; --s3: #1fbf92; --s4: #3f8fd9; --s5: #ee7733; --s6: #dd8fbb;
  --s7: #f0e442; --between: #67717c; } }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); }
.s3 { color: var(--s3); } .s4 { color: var(--s4); } .s5 { color: var(--s5); }
.s6 { color: var(--s6); } .s7 { color: var(--s7); }
.d1 .line { stroke-dasharray: 7 3; } .d2 .line { stroke-dasharray: 2 3; }
.d3 .line { stroke-dasharray: 9 3 2 3; }
svg.chart { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--muted); font-size: 12.5px; font-family: inherit; }
svg .name { fill: var(--text); }
.grid { stroke: var(--grid); stroke-width: 1; }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
.trail { stroke-width: 1.2; opacity: 0.55; }
.band { fill: currentColor; stroke: none; opacity: 0.16; }
.bar { stroke: currentColor; stroke-width: 1.5; }
.dot { fill: currentColor; stroke: currentColor; stroke-width: 1.8; }
.hollow { fill: var(--card); }
.probe { fill: currentColor; opacity: 0; } .probe:hover { opacity: 1; }
.front { fill: none; stroke: var(--muted); stroke-dasharray: 3 3; }
.link { fill: none; stroke: currentColor; stroke-width: 1.2; }
.between { color: var(--between); }
.w1 { opacity: 0.3; } .w2 { opacity: 0.45; } .w3 { opacity: 0.6; } .w4 { opacity: 0.8; }
.node { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
.plate { fill: none; stroke: var(--grid); }
.heat { color: var(--accent); }
g.heat { shape-rendering: crispEdges; stroke: currentColor; fill: none; }
.legend.heat rect { fill: currentColor; }
.h1 { opacity: 0.18; } .h2 { opacity: 0.36; } .h3 { opacity: 0.56; }
.h4 { opacity: 0.78; }
.border { stroke: var(--text); stroke-width: 0.8; opacity: 0.6; }
.cell { fill: var(--text); opacity: 0; } .cell:hover { opacity: 0.08; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; margin: 0.4rem 0 0;
  padding: 0; list-style: none; font-size: 0.86rem; }
.legend svg { width: 26px; height: 10px; margin-right: 0.4rem; }
@media (max-width: 30rem) { svg text { font-size: 16px; } }
"""

_SCRIPT = """
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    const said = button.parentElement.querySelector(".copied");
    try {
      await navigator.clipboard.writeText(source.textContent);
      said.textContent = "Copied.";
    } catch {
      source.closest("details").open = true;
      getSelection().selectAllChildren(source);
      const done = document.execCommand("copy");
      said.textContent = done ? "Copied." : "Selected: copy it by Ctrl-C.";
    }
  });
}
"""


def document(title: str, body: str) -> str:
    """The page, in ASCII so that it reads the same under every encoding."""
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{_STYLE}{_CHART_STYLE}</style></head>\n"
        f"<body>{body}<script>{_SCRIPT}</script></body></html>\n"
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def section(title: str, note: str, figures: Sequence[str]) -> str:
    """Figures side by side; nothing where there are none."""
    if not figures:
        return ""
    return (
        f"<section><h2>{escape(title)}</h2><p>{escape(note)}</p>"
        f'<div class="charts">{"".join(figures)}</div></section>'
    )


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None
) -> str:
    """Cells are HTML already; columns from a number on are aligned to the right."""
    kinds = [
        ' class="number"' if numbers_from is not None and i >= numbers_from else ""
        for i in range(len(head))
    ]
    top = "".join(
        f"<th{k}>{escape(name)}</th>" for k, name in zip(kinds, head, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{k}>{c}</td>' for k, c in zip(kinds, row, strict=True))}"
        "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def copy_table(
    name: str, title: str, note: str, columns: Sequence[str], rows: Sequence[Row]
) -> str:
    """A table that is also there as text to copy; `name` is its own on the page."""
    cells = [[cell_text(column, row[column]) for column in columns] for row in rows]
    num_texts = sum(column in _TEXT_COLUMNS for column in columns)
    shown = table(
        columns,
        [[escape(cell) for cell in row] for row in cells],
        numbers_from=num_texts,
    )
    texts = {
        "CSV": csv_text(columns, rows),
        "Markdown": markdown_text(columns, cells),
    }
    buttons = "".join(
        f'<button data-copy="{name}-{kind.lower()}" hidden>Copy as {kind}</button>'
        for kind in texts
    )
    boxes = "".join(
        _text_box(f"{name}-{kind.lower()}", kind, text) for kind, text in texts.items()
    )
    return (
        f"<section><h2>{escape(title)}</h2><p>{escape(note)}</p>{shown}"
        f'{buttons}<span class="copied" role="status"></span>{boxes}</section>'
    )


def _text_box(name: str, title: str, text: str) -> str:
    return (
        f'<details><summary>{title}</summary><div class="scroll">'
        f'<pre id="{name}">{escape(text)}</pre></div></details>'
    )


def cell_text(column: str, value: Any) -> str:
    """A value of the table for a person."""
    if column in _TEXT_COLUMNS:
        return str(value)
    if not math.isfinite(value):
        return NOTHING
    if column in _COUNT_COLUMNS:
        return f"{value:,.10g}"
    return measures.bytes_text(value) if column == "bytes" else f"{value:.4f}"


def csv_text(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """The table for a program; what is not finite is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            _as_text(row[name])
            if name in _TEXT_COLUMNS
            else f"{row[name]:.10g}"
            if math.isfinite(row[name])
            else ""
            for name in columns
        )
    return file.getvalue()


def _as_text(cell: str) -> str:
    """A cell of one line that no spreadsheet takes for a formula.

    >>> _as_text("=1+1"), _as_text("-1.5"), _as_text("-a")
    ("'=1+1", '-1.5', "'-a")
    """
    is_run = _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    line = cell.replace("\r", " ").replace("\n", " ")
    return f"'{line}" if is_run else line


def markdown_text(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """The table for a text."""
    marks = ["---" if name in _TEXT_COLUMNS else "---:" for name in columns]
    safe = str.maketrans({"\\": r"\\", "|": r"\|", "<": r"\<", "\n": " ", "\r": " "})
    lines = [columns, marks, *([cell.translate(safe) for cell in row] for row in cells)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
