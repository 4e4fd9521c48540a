"""The report in a real browser: it renders, the key figures are there, nothing complains and nothing of users runs."""

import html
import re
import shutil
import subprocess
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from accounting.history.store import connect
from accounting.reports import contents, report_html
from slurm_hook.cli import workhorse
from slurm_hook.common.config import Settings
from tests import history_made

pytestmark = pytest.mark.integration
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
]


@pytest.fixture(scope="module")
def chromium():
    """The browser; installed where it is missing."""
    if shutil.which("chromium") is None:
        env = {"DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        for words in ("update", "install -y --no-install-recommends chromium"):
            subprocess.run(["apt-get", "-qq", *words.split()], check=True, timeout=600, capture_output=True, env=env)
    return shutil.which("chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report on 200 nodes with hostile names everywhere, and its figures."""
    folder = tmp_path_factory.mktemp("page")
    dump, nodes = history_made.write(folder, 200, 3000, {5, 50}, end=time.time())
    config = folder / "w.toml"
    config.write_text(f"[history]\npath = '{folder}/h.db'\n")
    how = ["--delimiter", "\x1f", "--nodes", str(nodes), "--timezone", "UTC", "-M", "alpha"]
    done = CliRunner().invoke(workhorse, ["--config", str(config), "collect", "--file", str(dump), *how])
    assert done.exit_code == 0, done.output
    then = time.time() - 60
    lines = [{"time": then, "by": n, "action": n, "reason": n, "excludes": n} for n in history_made.HOSTILE]
    found = contents.gather(connect(str(folder / "h.db")), "alpha", Settings(), as_of=time.time(), decisions=lines)
    path = folder / "report.html"
    report_html.write(str(path), report_html.render(found))
    return path, found


def browse(chromium, page, profile, *how):
    argv = [chromium, *QUIET, f"--user-data-dir={profile}", *how, f"file://{page}"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)


def test_rendered_without_complaints_and_nothing_ran(chromium, page, tmp_path):
    path, found = page
    done = browse(chromium, path, tmp_path / "profile", "--dump-dom")
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line], done.stderr
    dom = done.stdout
    assert re.search(r"<title>workhorse: alpha</title>", dom), "a script of a job name changed the title"
    assert "<script" not in dom.lower() and "<img" not in dom.lower() and not re.search(r"<[^>]+\sonerror=", dom)
    figures = {key: re.search(rf'<b id="{key}"[^>]*>([\d,]+)</b>', dom)[1] for key in ("nodes", "lemons")}
    assert figures == {"nodes": "200", "lemons": str(found.overview.lemons)} and found.overview.lemons == 2
    assert dom.count("<rect") > 200 and html.escape("<script>document.title='owned'</script>", quote=False) in dom


def test_five_thousand_nodes(chromium, page, tmp_path):
    """All of them are drawn and listed, with their words at hand, on a page that a browser opens at once."""
    found = page[1]
    cells = [cell for block in found.blocks for cell in block.cells]
    names = iter(range(1, 5001))
    blocks = tuple(
        contents.Block(f"leaf{i}", tuple(replace(cells[(i + k) % len(cells)], name=f"gpu{next(names):04}") for k in range(40)))
        for i in range(125)
    )
    path = tmp_path / "report.html"
    overview = replace(found.overview, nodes=5000)
    report_html.write(str(path), report_html.render(replace(found, blocks=blocks, overview=overview)))
    assert path.stat().st_size < 4_000_000
    began = time.monotonic()
    done = browse(chromium, path, tmp_path / "profile", "--dump-dom")
    assert time.monotonic() - began < 60 and not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    dom = done.stdout
    assert re.search(r'<b id="nodes"[^>]*>5,000</b>', dom) and "<script" not in dom.lower()
    for name in ("gpu0001", "gpu2500", "gpu5000"):
        assert re.search(rf"<title>{name}: [^<]*</title>", dom) and f"<td>{name}</td>" in dom
    assert sum(1 for _ in re.finditer(r"<title>gpu\d{4}: ", dom)) == 5000
    shot = tmp_path / "shot.png"
    browse(chromium, path, tmp_path / "profile", f"--screenshot={shot}", "--window-size=1200,2400")
    assert len({bytes(row[i : i + 3]) for row in decoded(shot.read_bytes())[::31] for i in range(0, len(row) - 3, 33)}) > 10


def test_a_page_that_runs_something_would_be_noticed(chromium, page, tmp_path):
    """The check above can fail: the same page with one unescaped name makes the browser complain."""
    path = tmp_path / "report.html"
    path.write_text(page[0].read_text().replace("<main>", f"<main>{history_made.HOSTILE[0]}", 1))
    done = browse(chromium, path, tmp_path / "profile", "--dump-dom")
    assert "CONSOLE" in done.stderr and "Content Security Policy" in done.stderr
    assert "<title>workhorse: alpha</title>" in done.stdout, "the page's own policy held even then"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(chromium, page, tmp_path, scheme):
    """The page follows the browser's colour scheme: its ground is light or dark, and not one flat colour."""
    shot = tmp_path / "shot.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else ["--blink-settings=preferredColorScheme=1"]
    browse(chromium, page[0], tmp_path / "profile", *dark, f"--screenshot={shot}", "--window-size=1200,1600")
    pixels = decoded(shot.read_bytes())
    corner = pixels[0][:3]
    assert (sum(corner) < 200) == (scheme == "dark"), corner
    assert len({bytes(row[i : i + 3]) for row in pixels[::7] for i in range(0, len(row) - 3, 300)}) > 10


def decoded(png):
    """Rows of pixel bytes of an 8-bit, non-interlaced PNG."""
    import struct
    import zlib

    at, data, size = 8, b"", None
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colour in (2, 6)
            size = 3 if colour == 2 else 4
        if kind == b"IDAT":
            data += body
        at += 12 + length
    raw, stride, rows, above = zlib.decompress(data), width * size, [], bytearray(width * size)
    for y in range(height):
        method, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for i in range(stride):
            left, up = (line[i - size] if i >= size else 0), above[i]
            corner = above[i - size] if i >= size else 0
            line[i] = (line[i] + predicted(method, left, up, corner)) & 255
        rows.append(line)
        above = line
    return [row if size == 3 else bytearray(b for i, b in enumerate(row) if i % 4 != 3) for row in rows]


def predicted(method, left, up, corner):
    if method == 4:
        guess = left + up - corner
        return min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
    return (0, left, up, (left + up) // 2)[method]
