"""The live picture: its networks are those that effdeg measured, and a browser computes what the library does."""

import importlib.util
import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
import torch

import effdeg
from effdeg.demo import POOL, load_digits

LIVE = Path(__file__).parents[2] / "docs" / "live"
PAIRS = 50


def _load_script():
    spec = importlib.util.spec_from_file_location("make_weights", LIVE / "make_weights.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


script = _load_script()
data = script.read()
models = {each["name"]: script.decode(each["layers"]) for each in data["networks"]}


class Page:
    def __init__(self, driver):
        self.driver = driver
        self.run = driver.execute_script

    def open(self, *, width=1440, scheme="light", motion="reduce"):
        from selenium.webdriver.support.wait import WebDriverWait

        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": k, "value": v} for k, v in features.items()]}
        )
        self.driver.get((LIVE / "live.html").as_uri())
        # On a busy machine the page may not have run its script yet.
        WebDriverWait(self.driver, 60).until(lambda _: self.run("return document.querySelector('input[type=range]')"))
        return self

    def act(self):
        """Return a chain of what a person does; ``perform()`` does it."""
        from selenium.webdriver.common.action_chains import ActionChains

        return ActionChains(self.driver, duration=0)

    def press(self, key):
        self.act().send_keys(key).perform()

    def press_back(self):
        from selenium.webdriver.common.keys import Keys

        self.act().key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()

    def slider(self):
        return self.run("return document.querySelector('input[type=range]').valueAsNumber / 100")

    def degrees(self):
        found = self.run(
            "return [...document.querySelectorAll('.live-network')].map((card) =>"
            " [card.dataset.network, +card.querySelector('.live-number').dataset.value])"
        )
        return dict(found)


@pytest.fixture(scope="module")
def driver():
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    program = shutil.which("chromedriver")
    if browser is None or program is None:
        pytest.skip("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
    options = selenium.ChromeOptions()
    options.binary_location = browser
    # As root, as in a container, Chromium runs only without its sandbox; /dev/shm is small there.
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    for argument in ["--headless=new", "--disable-dev-shm-usage", "--hide-scrollbars", *root]:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(program))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver):
    driver.get_log("browser")
    yield Page(driver)
    assert driver.get_log("browser") == []


def test_degrees_are_those_of_the_library(page):
    """Pairs change by one digit at a time, which takes half as long."""
    draw = random.Random(0)
    changes = [(("from", "to")[step % 2], draw.randrange(len(data["labels"]))) for step in range(PAIRS)]
    page.open()
    ends, digits = dict(zip(("from", "to"), data["start"], strict=True)), script.pixels(data)
    for end, index in changes:
        page.run(f"document.querySelector('[name^=live-{end}][value=\"{index}\"]').click()")
        ends[end] = index
        pair = digits[[ends["from"], ends["to"]]]
        expected = {name: script.path_degree(model, *pair) for name, model in models.items()}
        assert page.degrees() == pytest.approx(expected, abs=1e-9)


def test_the_page_says_what_the_network_does(page):
    page.open()
    first, second = script.pixels(data)[data["start"]]
    for name, model in models.items():
        page.run(f"document.querySelector('[value={name}]').click()")
        for alpha in (0.0, 0.37, 1.0):
            page.run(
                "const slider = document.querySelector('input[type=range]'); slider.value = arguments[0];"
                "slider.dispatchEvent(new Event('input'))",
                100 * alpha,
            )
            with torch.no_grad():
                share, digit = model(torch.lerp(first, second, alpha)).softmax(0).max(0)
            said = page.run("return document.querySelector('.live-reading').textContent")
            assert said == f"{100 * alpha:.0f}% of the way: the network says {digit} with {100 * share:.0f}%"
        shown = page.run("return document.querySelector('output').textContent")
        assert shown == f"{page.degrees()[name]:.2f}"


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_overflows(page, width):
    page.open(width=width)
    outside = page.run("""
        const inside = ({ left, right }) => left >= 0 && right <= innerWidth;
        const cut = (node) => node instanceof HTMLElement && node.clientWidth && node.scrollWidth > node.clientWidth;
        return [...document.querySelectorAll(".effdeg-live, .effdeg-live *")]
          .filter((node) => !inside(node.getBoundingClientRect()) || cut(node)).map((node) => node.outerHTML);
    """)
    assert outside == []
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_every_control_is_reached_by_tab_and_moved_by_arrows(page):
    from selenium.webdriver.common.keys import Keys

    page.open()
    focused = "const node = document.activeElement; return node.type === 'range' ? 'place' : node.name"
    reached = []
    for _ in range(4):
        page.press(Keys.TAB)
        reached.append(page.run(focused))
    groups = page.run(
        "return [...new Set([...document.querySelectorAll('input')].map((each) => each.name || 'place'))]"
    )
    assert reached == groups == ["live-from-0", "live-to-0", "live-network-0", "place"]

    page.press(Keys.ARROW_RIGHT)
    assert page.slider() == pytest.approx(0.51)
    page.press(Keys.HOME)
    assert page.slider() == 0
    before = page.degrees()
    page.press_back()
    page.press(Keys.ARROW_RIGHT)
    assert page.run("return document.querySelector('.live-body').dataset.network") == "mixup"
    page.press_back()
    page.press(Keys.ARROW_RIGHT)
    assert page.degrees() != before


def test_it_moves_until_it_is_touched_and_can_be_dragged(page):
    from selenium.webdriver.support.wait import WebDriverWait

    frames = "let left = 10; const wait = () => left-- ? requestAnimationFrame(wait) : arguments[0](); wait()"
    page.open(motion="no-preference")
    first = page.slider()
    WebDriverWait(page.driver, 20).until(lambda _: page.slider() != first)
    curves = page.run("return document.querySelector('.live-curves')")
    page.act().click_and_hold(curves).perform()
    page.driver.execute_async_script(frames)
    assert page.slider() == pytest.approx(0.5, abs=0.01)
    page.act().move_by_offset(100, 0).release().perform()
    assert page.slider() == pytest.approx(0.5 + 100 / (curves.size["width"] - 64), abs=0.01)
    page.open(motion="reduce")
    page.driver.execute_async_script(frames)
    assert page.slider() == 0.5


def test_a_finger_moves_along_the_path(page):
    page.open(width=360)
    page.run("document.querySelector('.live-path').scrollIntoView({block: 'center'})")
    box = page.run("return document.querySelector('.live-path').getBoundingClientRect()")
    start, end = box["x"] + box["width"] / 2, box["x"] + box["width"] - 32
    for kind, places in {"touchStart": [start], "touchMove": [start + 30, end], "touchEnd": [None]}.items():
        for x in places:
            points = [] if x is None else [{"x": x, "y": box["y"] + 32}]
            page.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    assert page.slider() == pytest.approx(1, abs=0.02)


def test_the_theme_is_the_systems_unless_the_page_has_one(page):
    color = "return getComputedStyle(document.querySelector('.effdeg-live')).color"
    light, dark = (page.open(scheme=scheme).run(color) for scheme in ("light", "dark"))
    assert light != dark
    assert page.run("document.body.dataset.theme = 'light';" + color) == light
    assert page.run("document.body.dataset.theme = 'auto';" + color) == dark


def test_the_networks_are_those_described():
    digits = load_digits(per_class=POOL, seed=0)
    for each in data["networks"]:
        model = models[each["name"]]
        assert "accuracy" not in each  # the settings were chosen for the picture
        measured = effdeg.measure(model, digits.held_out.double(), paths=data["paths"])
        assert measured.value == pytest.approx(each["mean"], rel=1e-6)


def test_the_story_is_there():
    plain, mixup, ed = data["networks"]
    assert ed["mean"] < mixup["mean"] < plain["mean"] / 3


def test_files_are_small_and_need_no_network():
    assert (LIVE / "weights.js").stat().st_size <= 150_000
    for file in LIVE.glob("live.*"):
        assert set(re.findall(r"https?:[^\"]*", file.read_text())) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("method", ["plain", "mixup", "ed"])
def test_a_network_survives_its_rounding(method):
    digits = load_digits(per_class=POOL, seed=0)
    model, again = (script.train(method, digits, steps=3) for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters(), strict=True))
    rounded = script.decode(json.loads(json.dumps(script.encode(model))))
    for one, two in zip(model[::2], rounded[::2], strict=True):
        assert torch.equal(one.bias.double(), two.bias)
        step = one.weight.abs().amax(1, keepdim=True) / 127
        assert ((one.weight - two.weight).abs() <= 0.501 * step).all()
