"""The report in headless Chromium: no error, all figures visible, all in its place."""

import json
import shutil
import subprocess

import pytest
from report_pages import (
    Page,
    effect_rows,
    learned_table,
    level_rows,
    peer_runs,
    ring_table,
    scheme_rows,
    write_folder,
)

from experiments.report import command, reading

CLUSTER = [n % 3 for n in range(12)]
MEASURE = """<script>
document.querySelector('button[data-copy="results-csv"]').click();
setTimeout(() => {
  const charts = [...document.querySelectorAll("svg.chart")];
  const seen = [...document.querySelectorAll("svg.chart path, svg.chart .node")];
  const light = color => color.match(/[0-9]+/g).slice(0, 3).every(part => part > 127);
  document.body.dataset.seen = JSON.stringify({
    widths: charts.map(one => one.getBoundingClientRect().width),
    heights: charts.map(one => one.getBoundingClientRect().height),
    shapes: seen.map(one => one.getBoundingClientRect().width),
    page: document.documentElement.scrollWidth - innerWidth,
    copied: [...document.querySelectorAll(".copied")].map(one => one.textContent),
    buttons: [...document.querySelectorAll("button")].map(one => one.hidden),
    light: light(getComputedStyle(document.body).backgroundColor),
    text: light(getComputedStyle(document.body).color),
  });
}, 500);
</script>"""


@pytest.mark.parametrize(
    "width, dark", [(1200, False), (390, False), (1200, True)], ids=str
)
def test_in_browser(tmp_path, width, dark):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on PATH (Debian package chromium)")
    tables = {"ring": ring_table(12), "learned": learned_table(CLUSTER)}
    rows, links = peer_runs(tables, CLUSTER)
    names = [f"784-300-100-{n}" for n in range(9)]
    agents = {"agent_accuracy": [0.1, 0.9], "bytes": 5e6}
    paths = [
        write_folder(tmp_path, level_rows(), "levels"),
        write_folder(tmp_path, scheme_rows(names, **agents), "schemes"),
        write_folder(tmp_path, rows, "peers", links=links),
        write_folder(tmp_path, effect_rows(), "effects"),
    ]
    folders = [reading.read_folder(path, path.name) for path in paths]
    measured, picture = tmp_path / "measured.html", tmp_path / "report.png"
    text = command.page(folders)
    measured.write_text(text.replace("</body>", f"{MEASURE}</body>"))
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu"),
            *("--no-first-run", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--disable-quic"),
            *("--enable-logging=stderr", f"--window-size={width},3000"),
            *(["--force-dark-mode"] if dark else []),
            f"--user-data-dir={tmp_path / 'profile'}",
            *("--dump-dom", f"--screenshot={picture}", "--virtual-time-budget=5000"),
            measured.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    assert picture.stat().st_size > 20_000
    (body,) = [attributes for attributes, _ in Page(done.stdout).all("body")]
    seen = json.loads(body["data-seen"])
    assert len(seen["widths"]) == len(Page(text).all("svg", "chart")) > 20
    assert min(seen["widths"]) > 250
    assert min(seen["heights"]) > 70
    assert min(seen["shapes"]) > 1
    assert seen["page"] <= 0
    assert seen["buttons"] == [False] * 4  # two tables
    assert seen["copied"][0]
    assert not seen["copied"][1]
    assert (seen["light"], seen["text"]) == (not dark, dark)
