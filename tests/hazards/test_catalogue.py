"""The catalogue as a whole: complete, consistent, in step with its sources and with the recorded assertions."""

from __future__ import annotations

import collections
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from preassert import hazards
from preassert.hazards.source import KINDS, catalogue

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

SLUGS = {  # for ever: outside checks and people's notes rely on them
    "target-out-of-range", "embedding-index-out-of-range", "index-out-of-range", "gather-index-out-of-range",
    "probability-outside-unit-interval", "invalid-sampling-distribution", "ctc-target-invalid", "invalid-pooling-index",
    "user-device-assert", "compiled-index-out-of-range", "kernel-internal-assert", "illegal-memory-access", "out-of-memory",
    "blas-or-dnn-failure", "communication-failure", "unsupported-device-code", "hardware-fault", "poisoned-context",
    "device-assert-unlocated",
}  # fmt: skip

# Sections that a hazard may leave out, with the reason. An exemption that is no longer needed fails.
EXEMPT: dict[tuple[str, str], str] = {
    ("illegal-memory-access", "printed"): "the kernel has no check, so nothing is printed",
    ("out-of-memory", "printed"): "raised by the allocator on the host",
    ("blas-or-dnn-failure", "printed"): "a status returned by a library",
    ("communication-failure", "printed"): "raised on the host",
    ("unsupported-device-code", "printed"): "the kernel never starts",
    ("hardware-fault", "printed"): "reported by the driver",
    ("poisoned-context", "printed"): "the assertion was printed by the earlier failure",
    ("device-assert-unlocated", "printed"): "that it is missing is the point",
    ("poisoned-context", "host"): "its words are those of the earlier failure; the sequence tells, not the line",
    ("kernel-internal-assert", "host"): "the CPU kernels have no such invariants",
}

SHORTEST = {"title": 25, "meaning": 150, "cause": 12, "confirm": 15, "fix": 15, "not_this": 40}


def test_slugs_are_the_agreed_ones() -> None:
    assert set(hazards.slugs()) == SLUGS


def missing(entry: dict[str, Any]) -> set[str]:
    return {key for key, value in entry.items() if key != "until" and not value}


@pytest.mark.parametrize("slug", sorted(SLUGS))
def test_sections_are_filled(slug: str) -> None:
    assert missing(hazards.raw()[slug]) == {section for exempt, section in EXEMPT if exempt == slug}


def test_exemptions_name_hazards() -> None:
    assert {slug for slug, _ in EXEMPT} <= SLUGS
    assert all(EXEMPT.values())


def test_a_missing_section_is_seen() -> None:
    entry = dict(hazards.raw()["target-out-of-range"])
    assert missing(entry) == set()
    assert missing({**entry, "fixes": [], "not_this": None}) == {"fixes", "not_this"}


@pytest.mark.parametrize("slug", sorted(SLUGS))
def test_prose_says_something(slug: str) -> None:
    hazard = hazards.get(slug)
    texts = [("title", hazard.title), ("meaning", hazard.meaning), ("not_this", hazard.not_this or "")]
    texts += [("cause", text) for text in hazard.causes] + [("fix", text) for text in hazard.fixes]
    texts += [("confirm", text) for text in hazard.confirm]
    for kind, text in texts:
        assert len(text) >= SHORTEST[kind], text
        assert not re.search(r"\b(?:TBA|TBD|TODO|FIXME|XXX|lorem)\b", text), text
    assert len(hazard.causes) >= 3
    assert len(hazard.fixes) >= 3
    assert not hazard.title.endswith(".")
    for text in (*hazard.causes, *hazard.fixes):
        assert text[-1] in ".)", text


@pytest.mark.parametrize("slug", sorted(SLUGS))
def test_restart_and_fixes_agree(slug: str) -> None:
    hazard = hazards.get(slug)
    told = any("restart" in text.lower() for text in hazard.fixes)
    assert told == (hazard.restart == "required") or hazard.restart == "depends"


@pytest.mark.parametrize("slug", sorted(SLUGS))
def test_ways_to_confirm_are_commands_or_python(slug: str) -> None:
    for block in hazards.get(slug).confirm:
        comment, *code = block.splitlines()
        assert comment.startswith("# "), block
        assert code, block
        if all(line.startswith(("$ ", "# ")) for line in code):
            continue
        assert not any(line.startswith("$ ") for line in code), block
        compile(block, slug, "exec")


def test_commands_of_preassert_exist() -> None:
    from preassert.cli import COMMANDS

    for slug in hazards.slugs():
        hazard = hazards.get(slug)
        for text in (*hazard.confirm, *hazard.fixes, hazard.meaning, hazard.not_this or ""):
            for command in re.findall(r"(?:\$ |`)(?:\w+=\S* )*preassert (\w+)", text):
                assert command in COMMANDS, f"{slug}: preassert {command}"


def test_sources_are_pinned() -> None:
    pinned = re.compile(r"[\w.-]+/[\w.-]+@(?:v\d+\.\d+\.\d+|[0-9a-f]{40}):[\w./-]+")
    for slug in hazards.slugs():
        for source in hazards.get(slug).sources:
            assert pinned.fullmatch(source), f"{slug}: {source}"


def test_slugs_named_in_prose_exist() -> None:
    looks_like_a_slug = re.compile(
        r"\b[a-z]+(?:-[a-z]+)*-(?:out-of-range|invalid|distribution|interval|assert|access|failure|context|unlocated|memory|fault|index|code)\b"
    )
    for slug in hazards.slugs():
        hazard = hazards.get(slug)
        for text in (*hazard.causes, *hazard.fixes, hazard.meaning, hazard.not_this or ""):
            for word in looks_like_a_slug.findall(text):
                if word not in ("device-side-assert",):
                    assert word in SLUGS, f"{slug}: {word}"


def test_host_examples_match_their_own_hazard_only() -> None:
    wrong = [
        (slug, message.example, found)
        for slug in hazards.slugs()
        for message in hazards.get(slug).host
        if (
            found := {
                other for other in hazards.slugs() for m in hazards.get(other).host if re.search(m.pattern, message.example)
            }
        )
        != {slug}
    ]
    assert wrong == []


def test_host_patterns_stay_quick_on_hostile_lines() -> None:
    unbounded = re.compile(r"(?:\.|\[\^[^\]]*\])[*+]")
    patterns = [message.pattern for slug in hazards.slugs() for message in hazards.get(slug).host]
    assert [pattern for pattern in patterns if unbounded.search(re.sub(r"\\.", "", pattern))] == []
    assert unbounded.search(".*")
    assert unbounded.search("[^)]+")


# What the CPU of torch 2.13 raises for the same mistake (measured).
HOST: dict[str | None, tuple[str, ...]] = {
    "target-out-of-range": (
        "IndexError: Target -1 is out of bounds.",
        "IndexError: Target 255 is out of bounds.",
        "RuntimeError: target out of range",
        "RuntimeError: argument #3 'target' is out of range",
        "RuntimeError: Target values should be in [0, 9], but values in range [-1, 5] were found. ",
    ),
    "embedding-index-out-of-range": (
        "IndexError: index out of range in self",
        "RuntimeError: Index 1 of input takes value -1 which is not in the valid range [0, 10)",
        "RuntimeError: embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be -1",
        "RuntimeError: offsets[-1] can not be greater than input's length 3 but got offsets[-1] of 9",
        "AssertionError: Padding_idx must be within num_embeddings",
    ),
    "index-out-of-range": (
        "IndexError: index -6 is out of bounds for dimension 0 with size 5",
        "IndexError: index is out of bounds for dimension with size 0",
        "IndexError: index_copy_(): index -1 is out of bounds for dimension 0 with size 5",
        "RuntimeError: INDICES element is out of DATA bounds, id=-1 axis_dim=5",
        "IndexError: out of range: tried to access index -7 on a tensor of 6 elements.",
        "IndexError: select(): index 10 out of range for tensor of size [10, 4] at dimension 0",
        "RuntimeError: Number of elements of source < number of ones in mask",
        "RuntimeError: repeats can not be negative",
        "RuntimeError: allocated size does not match required size",
        "RuntimeError: lengths contains negative value!",
        "RuntimeError: `crow_indices[..., 0] == 0` is not satisfied.",
        "RuntimeError: `0 <= col_indices < ncols` is not satisfied.",
        "RuntimeError: size is inconsistent with indices: for dim 0, size is 3 but found index 5",
    ),
    "gather-index-out-of-range": (
        "RuntimeError: index -1 is out of bounds for dimension 1 with size 4",
        "RuntimeError: Class values must be non-negative.",
        "RuntimeError: Class values must be smaller than num_classes.",
        "RuntimeError: quantile() q values must be in the range [0, 1]",
    ),
    "probability-outside-unit-interval": (
        "RuntimeError: all elements of input should be between 0 and 1",
        "RuntimeError: all elements of target should be between 0 and 1",
        "RuntimeError: Expected p_in >= 0 && p_in <= 1 to be true, but got false.",
    ),
    "invalid-sampling-distribution": (
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        "RuntimeError: invalid multinomial distribution (encountering probability entry < 0)",
        "RuntimeError: invalid multinomial distribution (sum of probabilities <= 0)",
        "RuntimeError: invalid Poisson rate, expected rate to be non-negative",
    ),
    "ctc-target-invalid": (
        "RuntimeError: Expected target_lengths to have value at least 0, but got value -1 (while "
        "checking arguments for ctc_loss_allocate_outputs)",
        "RuntimeError: blank must be in label range",
    ),
    "invalid-pooling-index": (
        "RuntimeError: Found an invalid max index: -1 (output volumes are of size 4x4)",
        "RuntimeError: index >= 0 && index < inputT * inputH * inputW INTERNAL ASSERT FAILED at "
        '"/pytorch/aten/src/ATen/native/FractionalMaxPool3d.cpp":300',
    ),
    "user-device-assert": ("RuntimeError: Expected Tensor with single nonzero value, but got zero",),
    "compiled-index-out-of-range": (
        "RuntimeError: kernel, /tmp/torchinductor_u/x/cx.main.cpp:21, index out of bounds: 0 <= tmp2 < 5L",
    ),
    # neighbours that are none of these
    None: (
        "IndexError: index 10 is out of bounds for axis 0 with size 5",
        "IndexError: list index out of range",
        "RuntimeError: expected target dtype to be Long or Byte, but got Int",
        "RuntimeError: ZeroDivisionError",
        "IndexError: The shape of the mask [4] at index 0 does not match the shape of the indexed tensor [5] at index 0",
        "cudnnStatus: CUDNN_STATUS_SUCCESS",
    ),
}


@pytest.mark.parametrize(("line", "slug"), [(line, slug) for slug, lines in HOST.items() for line in lines])
def test_host_wordings(line: str, slug: str | None) -> None:
    found = {other for other in hazards.slugs() for message in hazards.get(other).host if re.search(message.pattern, line)}
    assert found == ({slug} if slug else set())


PROBABILITY = "probability-outside-unit-interval"


def facts() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE.parent / "facts" / "asserts.jsonl").read_text(encoding="utf-8").splitlines()]


def base(file: str) -> str:
    """Base name as printed: ``/tmp/x/c<hash>.py  (or ...)`` -> ``c<hash>.py``."""
    return re.split(r"\s+\(", file)[0].rsplit("/", 1)[-1]


def test_every_recorded_assertion_is_under_one_hazard() -> None:
    recorded = collections.Counter((base(fact["file"]), fact["assertion"], tuple(fact["kernels"])) for fact in facts())
    printed: collections.Counter[tuple[str, str, tuple[str, ...]]] = collections.Counter()
    owners = collections.defaultdict(set)
    for slug in hazards.slugs():
        for record in hazards.get(slug).printed:
            key = (record.file, record.expression, record.kernels)
            printed[key] += 1
            owners[key].add(slug)
    assert {key: slugs for key, slugs in owners.items() if len(slugs) > 1} == {}
    assert recorded - printed == collections.Counter()
    added = printed - recorded  # seen in logs, not in the sampled wheels
    assert set(added) == {
        (
            "LossCTC.cu",
            'label >= 0 && label < num_labels && "ctc_loss: target label out of range [0, num_labels)"',
            ("get_target_prime",),
        )
    }


@pytest.mark.parametrize(
    ("file", "expression", "slug", "operator", "argument"),
    [
        ("Loss.cu", "t >= 0 && t < n_classes", "target-out-of-range", "aten::nll_loss_forward", "target"),
        ("NLLLoss2d.cu", "t >= 0 && t < n_classes", "target-out-of-range", "aten::nll_loss2d_forward", "target"),
        ("Loss.cu", "input_val >= zero && input_val <= one", PROBABILITY, "aten::binary_cross_entropy", "self"),
        ("Loss.cu", "target_val >= zero && target_val <= one", PROBABILITY, "aten::binary_cross_entropy", "target"),
        ("Loss.cu", "index >= 0", "kernel-internal-assert", "aten::nll_loss_backward", None),
        ("Indexing.cu", "srcIndex < srcSelectDimSize", "embedding-index-out-of-range", "aten::embedding", "indices"),
        ("Indexing.cu", "dstIndex < dstAddDimSize", "index-out-of-range", "aten::index_add", "index"),
        ("IndexKernel.cu", "totalElements <= srcSize", "index-out-of-range", "aten::masked_scatter", "source"),
        ("EmbeddingBag.cu", "end >= begin", "embedding-index-out-of-range", "aten::_embedding_bag", "offsets"),
        ("ScatterGatherKernel.cu", 'idx_dim >= 0 && idx_dim < index_size && "index out of bounds"', "gather-index-out-of-range", "aten::gather", "index"),  # noqa: E501
        ("TensorCompare.cu", "", "user-device-assert", "aten::_assert_async", None),
        ("TensorCompare.cu", "invalid multinomial distribution (sum of probabilities <= 0)", "invalid-sampling-distribution", "aten::multinomial", "self"),  # noqa: E501
        ("MaxUnpooling.cu", "index >= 0 && index < outputImageSize", "invalid-pooling-index", "aten::max_unpool3d", "indices"),
        ("DynamicCast.h", "false", "kernel-internal-assert", None, None),
        ("embedding_bounds_check_v2.cu", 'idx < num_rows && "Failed idx < num_rows in bounds_check_indices"', "embedding-index-out-of-range", None, "indices"),  # noqa: E501
        ("c<hash>.py", "index out of bounds: 0 <= tmpN < SIZE", "compiled-index-out-of-range", None, None),
    ],
)  # fmt: skip
def test_records(file: str, expression: str, slug: str, operator: str | None, argument: str | None) -> None:
    found = [record for record in hazards.get(slug).printed if (record.file, record.expression) == (file, expression)]
    assert found
    assert {(record.operators or (None,))[0] for record in found} >= {operator}
    assert {record.argument for record in found} == {argument}


def test_operators_are_operators_of_torch() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.ops.aten, "_scaled_grouped_mm"):
        pytest.skip("older than the newest operators that are named")
    records = [record for slug in hazards.slugs() for record in (*hazards.get(slug).printed, *hazards.get(slug).host)]
    named = {operator for record in records for operator in record.operators}
    assert {operator for operator in named if not hasattr(torch.ops.aten, operator.removeprefix("aten::"))} == set()


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_catalogue", ROOT / "tools" / "build_catalogue.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_compiled_form_is_in_step_with_the_sources() -> None:
    built: ModuleType = builder()
    assert built.main(["--check"]) == 0, "run python tools/build_catalogue.py"
    assert catalogue(KINDS)["hazards"] == hazards.raw()


def test_builder_writes_once_and_notices_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = builder()
    output = tmp_path / "catalogue.json"
    options = ["--kinds", str(KINDS), "--output", str(output)]
    assert built.main([*options, "--check"]) == 1
    assert "is stale" in capsys.readouterr().err
    assert not output.exists()
    assert built.main(options) == 0
    assert output.read_bytes() == (KINDS.parent / "catalogue.json").read_bytes()
    before = output.stat().st_mtime_ns
    assert built.main(options) == 0
    assert output.stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == ["catalogue.json"]
    output.write_text("{}", encoding="utf-8")
    assert built.main([*options, "--check"]) == 1


def test_builder_names_a_broken_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.toml").write_text("slug = 1\n", encoding="utf-8")
    assert builder().main(["--kinds", str(tmp_path), "--output", str(tmp_path / "out.json")]) == 2
    assert "bad.toml: slug: a string is needed, not int" in capsys.readouterr().err


def test_an_unknown_slug_suggests_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean target-out-of-range"):
        hazards.get("target-outofrange")
    with pytest.raises(KeyError, match="lists all"):
        hazards.get("zzzz")


def test_the_hosts_wording_of_an_operator_and_its_contract_name_one_hazard() -> None:
    from preassert.contracts.table import table

    contracts: dict[str, set[str]] = {}
    for name, row in table().items():
        contracts.setdefault(name.partition(".")[0].rstrip("_"), set()).update(
            domain.hazard or row.hazard for domain in row.domains
        )
    wrong = []
    for slug in SLUGS:
        for record in hazards.raw()[slug]["host"]:
            named = [contracts.get(operator.rstrip("_")) for operator in record["operators"]]
            # wordings that several kinds of operators share are told apart by the frames
            if named and named[0] is not None and all(hazard == named[0] for hazard in named) and slug not in named[0]:
                wrong.append((slug, record["operators"], named[0]))
    assert wrong == []
