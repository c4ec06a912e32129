"""The report in a real browser: every chart is there and whole, on a desk, a phone and paper, and nothing leaves the machine.

Needs a Chromium on the PATH (Debian: apt-get install chromium); `.ci/run` sees to it. LABCLI_SCREENSHOTS names a folder that
keeps the pictures.
"""

import os
import shutil
from pathlib import Path

import pytest

from labcli.record import ResultRecord
from labcli.render.report_html import build_report
from labcli.results_store import StoredRecord
from tests.labcli.chart_records import every_chart, record_with_charts

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install -e .[dev]")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")

SCHEMA_1 = Path(__file__).resolve().parents[1] / "golden" / "records_schema_1"
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

# Boxes of all texts against the box of the picture they are in, with a pixel and a half for letters that overhang.
OUTSIDE = """() => [...document.querySelectorAll('svg[role=img]')].flatMap(picture => {
  const frame = picture.getBoundingClientRect();
  return [...picture.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 1.5 || box.right > frame.right + 1.5 || box.top < frame.top - 1.5 || box.bottom > frame.bottom + 1.5;
  }).map(text => text.textContent);
})"""
# Texts of one picture that lie on each other by more than a pixel or two; letters of a block map stand in their boxes.
OVERLAPS = """() => [...document.querySelectorAll('svg[role=img]')].flatMap(picture => {
  const texts = [...picture.querySelectorAll('text:not([class^=on-])')].map(text => [text.textContent, text.getBoundingClientRect()]);
  return texts.flatMap(([one, a], index) => texts.slice(index + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
                    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
    .map(([other]) => one + ' | ' + other));
})"""
PICTURES = "() => [...document.querySelectorAll('svg[role=img]')].map(one => [one.clientWidth, one.clientHeight])"


@pytest.fixture(scope="module")
def browser():
    with playwright_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=list(FLAGS))  # with a profile of its own
        yield chromium
        chromium.close()


@pytest.fixture
def page_file(record, tmp_path):
    """A report of every kind of chart, and of records of schema 1, whose charts are derived."""
    old = [
        StoredRecord(path, ResultRecord.from_json(path.read_text(encoding="utf-8"))) for path in sorted(SCHEMA_1.glob("*.json"))
    ]
    stored = [StoredRecord(Path("results/04-prefix-cache-hit-rate/x.json"), record_with_charts(record)), *old]
    path = tmp_path / "report.html"
    path.write_text(build_report(stored, "2026-03-01T14:25:01.042Z"), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, page_file, tmp_path):
    """A call opens the report at a width; what it asked for and complained about is checked at the end."""
    asked, complaints, pages = [], [], []

    def open_report(width, **settings):
        page = browser.new_page(viewport={"width": width, "height": 900}, **settings)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(page_file.as_uri())
        pages.append(page)
        return page

    yield open_report
    for page in pages:
        page.close()
    assert complaints == []
    assert {url for url in asked if not url.startswith("data:")} == {page_file.as_uri()}


def keep_picture(page, name, tmp_path):
    """A picture of the whole page, for people to look at."""
    path = tmp_path / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 20_000
    if folder := os.environ.get("LABCLI_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)


def num_charts():
    return len(every_chart()) + 1 + 4  # that of hostile texts, and two derived ones for each old record


@pytest.mark.parametrize("width, scheme", [(1280, "light"), (400, "light"), (1280, "dark"), (352, "light")])
def test_every_chart_is_whole_and_no_text_leaves_it(opened, tmp_path, width, scheme):
    page = opened(width, color_scheme=scheme)
    sizes = page.evaluate(PICTURES)
    assert len(sizes) == num_charts()
    assert all(wide >= 320 and high >= 40 for wide, high in sizes)
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    keep_picture(page, f"report-{width}-{scheme}", tmp_path)


def test_on_paper_tables_are_open_and_charts_keep_their_shapes(opened, tmp_path):
    page = opened(794)  # A4 at 96 dots an inch
    shown = "() => document.querySelector('details.table table').checkVisibility()"
    assert not page.evaluate(shown)
    page.emulate_media(media="print", color_scheme="dark")  # paper is white, whatever the screen is
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(shown)
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 794
    assert len(page.pdf(format="A4")) > 20_000
    keep_picture(page, "report-print", tmp_path)


def test_texts_of_a_record_run_no_script_and_load_no_picture(opened):
    page = opened(1280)
    assert page.evaluate("() => document.scripts.length + document.images.length") == 0
    assert "<script>alert(" in page.inner_text("h2 >> nth=0")


def test_what_series_mean_is_told_without_colour(opened):
    """In grey, states of blocks still differ: by letter, and by how light they are."""
    page = opened(1280)
    lightness = page.evaluate(
        """() => ['free', 'used', 'held', 'kept', 'gone'].map(name => {
          const [r, g, b] = getComputedStyle(document.documentElement).getPropertyValue('--' + name)
            .match(/[0-9a-f]{2}/gi).map(two => parseInt(two, 16));
          return .2126 * r + .7152 * g + .0722 * b;
        })"""
    )
    gaps = sorted(lightness)
    assert min(right - left for left, right in zip(gaps, gaps[1:])) > 15
