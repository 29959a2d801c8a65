"""Mangle real logs at random and explain them: no crash, no runaway time or memory, no raw control character, no raw HTML.

    python tools/fuzz_explain.py --minutes 10 [--seed 1] [--keep FOLDER]

Every input is made from a seed that is printed with a failure, so a failure can be repeated: --seed SEED --count 1.
"""

from __future__ import annotations

import argparse
import gzip
import html.parser
import io
import json
import random
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from preassert import hazards
from preassert.logs.diagnose import diagnose, read
from preassert.logs.reading import open_stream
from preassert.report.diagnosis import to_github, to_html, to_text

ROOT = Path(__file__).resolve().parents[1]
LOGS = sorted((ROOT / "tests" / "cases" / "logs").glob("[0-9]*"))
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
VERDICTS = {*hazards.slugs(), "unknown", "clean"}
SLOW_S = 20.0  # for one input of at most a few hundred KB, on a busy machine
MEMORY_MB = 700
TOKENS = (
    b"Assertion `", b"` failed.", b"block: [1,0,0], thread: [2,0,0] ", b"Device-side assertion `", b"\x1b[31m", b"\x1b]0;x\x07",
    b"\r", b"\n", b"\0", b"\xff\xfe", b"\\n", b'\\"', b"<script>", b"&lt;", b"{", b"}", b'{"log": "', b"[rank3]:", b"> ",
    b"Traceback (most recent call last):\n", b'  File "x.py", line 3, in f\n', b"RuntimeError: CUDA error: ",
    b"device-side assert triggered", b"IndexError: Target 5 is out of bounds.", b".cu:12: k: ", b"C:\\a\\b.cu:1: ",
    b"GPU assertion failure message = ", b"\xe2\x80\xae", b"'" * 40, b"a" * 5000, b"(" * 3000, b"[" * 3000, b" " * 4000,
    b"/" * 3000, b"\\" * 3000, b"1" * 2000, b":" * 2000, b"`" * 1000, b"\n" * 2000, b"(", b"[", b"|",
)  # fmt: skip


def mangled(rng: random.Random) -> bytes:
    """A log, or several, cut, spliced, repeated and sprinkled with what parsers trip over."""
    data = bytearray(rng.choice(LOGS).read_bytes())
    for _ in range(rng.randrange(1, 8)):
        operation = rng.randrange(9)
        at = rng.randrange(len(data) + 1)
        if operation == 0:
            data[at:at] = rng.choice(TOKENS)
        elif operation == 1:
            del data[at : at + rng.randrange(1, 400)]
        elif operation == 2:
            piece = data[at : at + rng.randrange(1, 2000)]
            data[at:at] = piece * rng.randrange(1, 30)
        elif operation == 3:
            other = rng.choice(LOGS).read_bytes()
            start = rng.randrange(len(other) + 1)
            data[at:at] = other[start : start + rng.randrange(1, 4000)]
        elif operation == 4:
            for _ in range(rng.randrange(1, 30)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
        elif operation == 5:
            width = rng.randrange(1, 160)
            text = bytes(data)
            data = bytearray(b"\n".join(text[start : start + width] for start in range(0, len(text), width)))
        elif operation == 6:
            data = bytearray(data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"", b" ", b"\\n", b"\n\n", b"\n> "))))
        elif operation == 7:
            data = bytearray(json.dumps({"log": data.decode("latin-1")}).encode() + b"\n")
        else:
            lines = bytes(data).split(b"\n")
            rng.shuffle(lines)
            data = bytearray(b"\n".join(lines))
        if len(data) > 300_000:
            del data[300_000:]
    return bytes(data)


def wrapped(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """(file name, bytes): now and then in another encoding or compressed, also with a damaged end."""
    kind = rng.randrange(12)
    if kind == 0:
        return "x.log", data.decode("utf-8", "replace").encode("utf-16")
    if kind == 1:
        packed = gzip.compress(data)
        return "x.log.gz", packed[: rng.randrange(len(packed) + 1)]
    if kind == 2:
        return "x.txt", b"\x1f\x8b" + data
    return "x.log", data


class _Strict(html.parser.HTMLParser):
    """Fails on a tag or attribute that the report itself does not write."""

    TAGS = frozenset(
        (
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "h1",
            "h2",
            "p",
            "small",
            "b",
            "pre",
            "code",
            "table",
            "tr",
            "td",
            "th",
            "ul",
            "ol",
            "li",
        )
    )

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.TAGS or any(name not in ("lang", "charset", "name", "content", "class") for name, _ in attrs):
            raise AssertionError(f"<{tag} {attrs}> in the page")


def check(name: str, data: bytes) -> str:
    """Explain one input and look at every output; the verdict. Raises what goes wrong."""
    report = diagnose([read(open_stream(io.BytesIO(data), name, len(data)))]).to_dict()
    assert report["verdict"] in VERDICTS, report["verdict"]
    causes = [each for each in report["diagnoses"] if each["role"] == "cause"]
    assert len(causes) == (report["verdict"] != "clean")
    outputs: dict[str, Callable[[], str]] = {
        "text": lambda: to_text(report, verbose=True),
        "github": lambda: to_github(report),
        "html": lambda: to_html(report),
        "json": lambda: json.dumps(report, ensure_ascii=True),
    }
    for form, render in outputs.items():
        text = render()
        found = RAW.search(text)
        assert found is None, f"raw {found.group()!r} in {form}"
        assert len(text) < 2_000_000, f"{form} has {len(text)} characters"
        if form == "html":
            _Strict().feed(text)
    return str(report["verdict"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Explain mangled logs until the time is up.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, default=0, help="stop after so many inputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the inputs that fail")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    done, failed, slowest, size = 0, 0, 0.0, 0
    verdicts: dict[str, int] = {}
    while time.monotonic() < end and (not arguments.count or done < arguments.count):
        seed = arguments.seed + done
        rng = random.Random(seed)
        name, data = wrapped(rng, mangled(rng))
        start = time.monotonic()
        try:
            verdict = check(name, data)
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
            seconds = time.monotonic() - start
            assert seconds < SLOW_S, f"took {seconds:.1f} s for {len(data):,} bytes"
        except Exception:
            failed += 1
            print(f"--- seed {seed} ({len(data):,} bytes)\n{traceback.format_exc()}", file=sys.stderr)
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                (arguments.keep / f"{seed}-{name}").write_bytes(data)
        slowest = max(slowest, time.monotonic() - start)
        size += len(data)
        done += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{done:,} inputs, {size / 1e6:.0f} MB, {failed} failures, slowest {slowest:.2f} s, peak memory {peak:.0f} MB")
    print(", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items())))
    return 1 if failed or peak > MEMORY_MB else 0


if __name__ == "__main__":
    sys.exit(main())
