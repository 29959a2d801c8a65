"""Cards: everything from outside is escaped, whatever field it comes in."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from preassert.errors import Violation
from preassert.integrations.explain import explain
from preassert.model import ArgumentInfo, BadElement, Sample, Site
from preassert.report.card import card, commands, diagnosis_card, folded, listing, violation_card

HOSTILE = "<img src=x onerror=alert(1)>&\x1b[31m\u202e</pre></div><script>"

ASSERTION = "Loss.cu:242: nll_loss: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed."

VIOLATION = Violation(
    "target-out-of-range",
    operator="aten::nll_loss_forward",
    call=HOSTILE,
    argument=HOSTILE,
    valid=HOSTILE,
    arguments=(ArgumentInfo(HOSTILE, HOSTILE, (HOSTILE, 4)),),
    elements=(BadElement((3,), 5), BadElement((7, 1), float("nan"))),
    count=64,
    total=1000,
    minimum=0,
    maximum=5,
    site=Site(HOSTILE, 41, HOSTILE, HOSTILE),
    module=HOSTILE,
    sample=Sample((1041,), detail=HOSTILE),
    likely=HOSTILE,
    detail=HOSTILE,
    rank=2,
)


class Tags(HTMLParser):
    """Collects the tags and checks that each one is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert all(name in ("class",) for name, _ in attrs), attrs
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


CARDS = {
    "violation": violation_card(VIOLATION, frames=HOSTILE),
    "violation in a cell": violation_card(VIOLATION, place=HOSTILE),
    "relayed violation": violation_card(Violation(HOSTILE)),
    "assertion": diagnosis_card(
        explain(f"{ASSERTION}{HOSTILE}").to_dict(),
        lead=HOSTILE,
        place=HOSTILE,
        frames=HOSTILE,
    ),
    "unknown": diagnosis_card(explain(f"Traceback (most recent call last):\nKeyError: '{HOSTILE}'").to_dict(), frames=HOSTILE),
    "clean": diagnosis_card(explain(HOSTILE).to_dict()),
    "remark": card(HOSTILE, [listing(HOSTILE, [HOSTILE, f"`{HOSTILE}`"]), commands([(HOSTILE, HOSTILE)])], "note"),
}  # fmt: skip


@pytest.mark.parametrize("html", CARDS.values(), ids=CARDS.keys())
def test_text_from_outside_stays_text(html: str) -> None:
    tags = Tags(html)
    assert tags.seen <= {
        "style", "div", "h1", "h2", "h3", "p", "ul", "ol", "li", "table", "tr", "th", "td", "code", "pre", "b", "small",
        "details", "summary", "br",
    }  # fmt: skip
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html)


@pytest.mark.parametrize("html", CARDS.values(), ids=CARDS.keys())
def test_the_style_touches_the_card_only(html: str) -> None:
    style = html.partition("<style>")[2].partition("</style>")[0]
    selectors = [each for rule in re.findall(r"([^{}]+)\{", style) for each in rule.split(",")]
    assert selectors
    assert [each for each in selectors if not each.strip().startswith(".preassert-card")] == []
    assert "http" not in style


def test_what_a_violation_says() -> None:
    html = violation_card(Violation(
        "target-out-of-range", operator="aten::nll_loss_forward", call="F.nll_loss", argument="target", valid="0..4",
        elements=(BadElement((3,), 5),), count=64, total=1000, minimum=0, maximum=5,
        sample=Sample(tuple(range(12))), site=Site("train.py", 41, "step", "loss = f(x)"),
    ))  # fmt: skip
    for words in (
        "target[3] = 5, ... (63 more)",
        "64 of 1,000 (min 0, max 5)",
        "train.py:41 in step",
        "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 ...",
    ):
        assert words in html


def test_a_traceback_of_any_length_fits() -> None:
    html = folded("Full traceback", "x" * 5_000_000)
    assert len(html) < 250_000
    assert "[...]" in html
