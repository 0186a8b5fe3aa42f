"""The built site in headless Chromium, from a server that has nothing else.

It opens the site that `P2PJAX_SITE` names, or the one that README's command builds.
"""

import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

SITE = Path(
    os.environ.get("P2PJAX_SITE")
    or Path(__file__).parent.parent / "docs" / "_build" / "html"
)
PAGES = {
    "start": "/start.html",
    "method": "/methods/choco_sgd.html",
    "results": "/results/index.html",
    "comparison": "/comparison.html",
    "search": "/search.html?q=PENS",
}
# Pages are opened one after another in frames of the width of a screen and of a phone.
OPENER = """<!doctype html><meta charset="utf-8"><body><script>
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const light = color => color.match(/[0-9]+/g).slice(0, 3).every(part => part > 127);
async function look(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; });
  const here = frame.contentWindow, room = here.document.documentElement;
  const all = query => [...here.document.querySelectorAll(query)];
  const searched = () => !page.includes("?q=") || all("#search-results li").length;
  for (let i = 0; i < 50 && !searched(); i++) await wait(100);
  await wait(300);
  const style = here.getComputedStyle(here.document.body);
  const seen = {
    page, width,
    title: here.document.title,
    beyond: room.scrollWidth - room.clientWidth,
    light: light(style.backgroundColor),
    text: light(style.color),
    formulas: all("math").map(one => one.getBoundingClientRect().width),
    broken: all("img").filter(one => !one.naturalWidth).map(one => one.src),
    found: all("#search-results li a").map(one => one.textContent),
    fetched: here.performance.getEntriesByType("resource").map(one => one.name),
  };
  frame.remove();
  return seen;
}
(async () => {
  const seen = [];
  for (const page of PAGES)
    for (const width of [1200, 390]) seen.push(await look(page, width));
  document.body.dataset.seen = JSON.stringify(seen);
})();
</script></body>"""


class Server(http.server.SimpleHTTPRequestHandler):
    """The site, and the page that opens its pages."""

    def do_GET(self):
        if self.path != "/open":
            return super().do_GET()
        page = OPENER.replace("PAGES", json.dumps(list(PAGES.values()))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)
        return None

    def log_message(self, *arguments):
        """Says nothing."""


def opened(browser: str, profile: Path, *, dark: bool) -> tuple[list[dict], str, str]:
    """What is seen on the pages, what the browser logs, and the server's address."""
    handler = functools.partial(Server, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        done = subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu"),
                *("--no-first-run", "--disable-background-networking"),
                *("--disable-component-update", "--disable-sync", "--disable-quic"),
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                *("--enable-logging=stderr", "--window-size=1300,1000"),
                *(["--force-dark-mode"] if dark else []),
                f"--user-data-dir={profile}",
                *("--dump-dom", "--virtual-time-budget=60000", f"{address}/open"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        server.shutdown()
    (seen,) = re.findall(r'data-seen="([^"]*)"', done.stdout)
    return json.loads(html.unescape(seen)), done.stderr, address


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_in_browser(tmp_path, dark):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium on PATH (Debian package chromium)")
    if not (SITE / "index.html").exists():
        pytest.skip("no built site in docs/_build/html or where P2PJAX_SITE says")
    seen, log, address = opened(browser, tmp_path / "profile", dark=dark)
    assert "CONSOLE" not in log
    assert len(seen) == 2 * len(PAGES)
    for page in seen:
        assert page["title"], page
        assert page["beyond"] <= 0, page
        assert (page["light"], page["text"]) == (not dark, dark), page
        assert not page["broken"], page
        assert page["fetched"], page
        assert all(name.startswith(address) for name in page["fetched"]), page
    method, search = seen[2], seen[8]
    assert len(method["formulas"]) > 5
    assert min(method["formulas"]) > 1
    assert any("pens" in title.lower() for title in search["found"]), search
