"""``preassert.explain``: the command, for a text or an exception that is at hand in Python."""

from __future__ import annotations

import os
from typing import Any

from preassert import logs
from preassert.errors import Violation
from preassert.logs import Report
from preassert.model import Diagnosis
from preassert.report.diagnosis import to_text


class Explanation:
    """What a text or an exception turns out to mean. ``str`` gives the report for people; notebooks show it as HTML."""

    def __init__(self, report: Report) -> None:
        self.report = report

    @property
    def verdict(self) -> str:
        """Slug of the hazard, ``"unknown"`` or ``"clean"``."""
        return self.report.verdict

    @property
    def restart_required(self) -> bool | None:
        """Must the process that failed be restarted? None where the text does not decide it."""
        return self.report.restart_required

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        return self.report.diagnoses

    @property
    def cause(self) -> Diagnosis | None:
        return self.report.cause

    def to_dict(self) -> dict[str, Any]:
        """The object that ``preassert explain --json`` prints."""
        return self.report.to_dict()

    def __str__(self) -> str:
        return to_text(self.to_dict())

    def __repr__(self) -> str:
        return f"<preassert.Explanation {self.verdict}>"

    def _repr_html_(self) -> str:
        from preassert.report.card import diagnosis_card

        return diagnosis_card(self.to_dict())


def explain(
    text_or_exception: str | bytes | BaseException | os.PathLike[str], *, shape: tuple[int, ...] | None = None
) -> Explanation:
    """Explain a text (a log, a traceback), an exception with its causes, or the file of a path object.

    Args:
        text_or_exception: a ``str`` is always the text itself, never the name of a file.
        shape: shape of the offending argument, to turn positions into coordinates.

    Raises:
        InputError: a path that cannot be read. TypeError: anything else than the types above.
    """
    if isinstance(text_or_exception, BaseException):
        import traceback

        text = "".join(traceback.format_exception(text_or_exception))
        return Explanation(logs.explain_text(text, name="<exception>", shape=shape))
    if isinstance(text_or_exception, str):
        return Explanation(logs.explain_text(text_or_exception, shape=shape))
    if isinstance(text_or_exception, (bytes, bytearray)):
        return Explanation(logs.explain_text(bytes(text_or_exception).decode("utf-8", "surrogateescape"), shape=shape))
    if isinstance(text_or_exception, os.PathLike):
        return Explanation(logs.explain_files([os.fspath(text_or_exception)], shape=shape))
    raise TypeError(f"explain takes a text, an exception or a path, not {type(text_or_exception).__name__}")


def kills_context(error: BaseException) -> bool:
    """Does this error say that the CUDA context of the process is dead?"""
    if not isinstance(error, RuntimeError) or isinstance(error, Violation) or not names_device(error):
        return False
    return bool(explain(error).restart_required)


def names_device(error: BaseException) -> bool:
    """Does its message name what runs on the device? Cheap: tells whether explaining it is worth while."""
    return any(word in str(error) for word in ("CUDA", "HIP", "Triton", "CUBLAS", "CUDNN"))
