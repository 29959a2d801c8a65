"""What the frames and the text around a failure make likely, and advice that fits the kind of program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from preassert.logs.frames import Frame
from preassert.logs.lines import Text
from preassert.logs.patterns import lazy


class Clue(NamedTuple):
    """A hazard that something in the text speaks for, and what it is."""

    hazard: str
    because: str


_EMBEDDING_SOURCE = lazy(r"\b(?:torch|F|functional)\.embedding\(|\bembedding_bag\(")
_INDEX_SELECT = lazy(r"\.index_select\(|\btorch\.index_select\(")

# (hazard, pattern over function and source line of a frame, words for the person); the first that fits a frame counts
_FRAME_CLUES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (hazard, lazy(pattern))
    for hazard, pattern in (
        ("ctc-target-invalid", r"\bctc_loss\b|CTCLoss"),
        ("probability-outside-unit-interval", r"binary_cross_entropy\b(?!_with_logits)|BCELoss\b|\bbernoulli\b|bce_?loss\("),
        ("invalid-sampling-distribution", r"\bmultinomial\b|Categorical\b|\bdo_sample\b|\bdef sample\b"),
        (
            "gather-index-out-of-range",
            r"\bone_hot\b|\.scatter(?:_add|_reduce)?_?\(|\bscatter_(?:add|sum|mean|max|min)\b|\.gather\("
            r"|torch\.gather\(|take_along_dim",
        ),
        ("embedding-index-out-of-range", r"\b(?:torch|F)\.embedding\(|\w*embed\w*\(|\bwte\(|\bwpe\(|\bword_embeddings\b"),
        (
            "target-out-of-range",
            r"\bcross_entropy\b|\bnll_loss\b|CrossEntropy|NLLLoss|criterion\(|loss_(?:fn|func|fct|function)\(|\bF?\.?nll\(",
        ),
        (
            "index-out-of-range",
            r"\.index_(?:select|add|copy|fill|put)_?\(|\.take\(|masked_scatter|\w+\[[^\]\"']*(?:_ids?|idx"
            r"|index|indices|ids|labels?|targets?|mask|inds?|rows|perm)\w*[^\]\"']*\]",
        ),
    )
)
_FUNCTION_CLUES = {
    "embedding": "embedding-index-out-of-range",
    "embedding_bag": "embedding-index-out-of-range",
    "cross_entropy": "target-out-of-range",
    "nll_loss": "target-out-of-range",
    "multinomial": "invalid-sampling-distribution",
    "_sample": "invalid-sampling-distribution",
    "sample": "invalid-sampling-distribution",
    "binary_cross_entropy": "probability-outside-unit-interval",
    "one_hot": "gather-index-out-of-range",
    "ctc_loss": "ctc-target-invalid",
}
_TEXT_CLUES: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (
        "embedding-index-out-of-range",
        lazy(r"Token indices sequence length is longer than the specified maximum sequence length[^(]{0,40}\((\d+) > (\d+)\)"),
        "the tokenizer warned that a sequence is longer than the position table ({0} > {1})",
    ),
    (
        "embedding-index-out-of-range",
        lazy(
            r"(?:input has|sequence length|seq_len)[^.]{0,60}\b(?:exceeds|longer than"
            r"|greater than)\b[^.]{0,60}(?:max_position|positions?|maximum)"
        ),
        "a warning says that a sequence exceeds the positions",
    ),
    (
        "probability-outside-unit-interval",
        lazy(r"\bloss\w*[ :=]+nan\b", re.IGNORECASE),
        "the loss was NaN before the failure, so NaN probabilities are likely",
    ),
)
# Calls that cannot assert themselves: they only wait for the GPU, or are the first to notice
_INNOCENT = lazy(
    r"\b(?:backward|step|synchronize|empty_cache|zero_grad|__repr__|_str|_str_intern|item|tolist|cpu|numpy|to"
    r"|cuda|_apply|convert|arange|zeros|ones|full"
    r"|randn?|manual_seed|_lazy_init|all_reduce|barrier|print|memory_summary|nonzero|clip_grad_norm_?|clone"
    r"|copy_|contiguous|conv\d?d?|linear)\b"
)


def frame_text(frame: Frame) -> str:
    return f"{frame.function} {frame.source or ''}"


def shows_embedding(frames: Sequence[Frame]) -> bool:
    """Does a frame show the lookup in an embedding table (and not just a module that has one)?"""
    for frame in frames:
        if frame.function in ("embedding", "embedding_bag") and re.search(r"functional\.py$|embedding", frame.file):
            return True
        if frame.source and _EMBEDDING_SOURCE.search(frame.source):
            return True
        if re.search(r"torch[/\\]nn[/\\]modules[/\\]sparse\.py$", frame.file):
            return True
    return False


def shows_index_select(frames: Sequence[Frame]) -> bool:
    return any(frame.source and _INDEX_SELECT.search(frame.source) for frame in frames)


def shows_sampling(frames: Sequence[Frame]) -> bool:
    return any(
        frame.function in ("_sample", "sample", "multinomial", "generate", "beam_sample", "_beam_search")
        or re.search(r"\bmultinomial\(", frame.source or "")
        for frame in frames
    )


def clues(frames: Sequence[Frame], texts: Sequence[Text]) -> list[Clue]:
    """What the frames (innermost last) and the texts speak for, the strongest first; empty if they say nothing."""
    found: list[Clue] = []
    for frame in reversed(frames):
        place = f"{frame.file}:{frame.line}" if frame.line else frame.file
        words = frame.source or frame.function
        hazard = _FUNCTION_CLUES.get(frame.function)
        if hazard is None:
            hazard = next((slug for slug, pattern in _FRAME_CLUES if pattern.search(frame_text(frame))), None)
        if hazard is not None:
            found.append(Clue(hazard, f"the frame {place} shows `{words}`"))
    for hazard, pattern, words in _TEXT_CLUES:
        for text in texts:
            match = pattern.search(text.text)
            if match:
                found.append(Clue(hazard, words.format(*match.groups())))
                break
    unique: dict[str, Clue] = {}
    for clue in found:
        unique.setdefault(clue.hazard, clue)
    return list(unique.values())[:4]


def innocent(frames: Sequence[Frame]) -> bool:
    """Is the innermost frame a call that can only have noticed the failure?"""
    if not frames:
        return False
    last = frames[-1]
    return bool(_INNOCENT.search(last.function) or (last.source and _INNOCENT.search(last.source)))


# ------------------------------------------------------------------------------------------------- advice by kind of program

_PROGRAMS: tuple[tuple[re.Pattern[str], tuple[str, ...], str], ...] = tuple(
    (lazy(pattern), hazards, advice)
    for pattern, hazards, advice in (
        (
            r"position_(?:ids|embeddings?)|embed_positions|\bwpe\b|max_position_embeddings|positional"
            r"|Token indices sequence length",
            ("embedding-index-out-of-range", "index-out-of-range"),
            "Positions: a sequence is longer than max_position_embeddings (RoBERTa keeps 2 rows for "
            "padding). Truncate with truncation=True, max_length=...",
        ),
        (
            r"token_type",
            ("embedding-index-out-of-range",),
            "token_type_ids: RoBERTa-like models have one token type only (type_vocab_size=1); pass none.",
        ),
        (
            r"transformers|tokenizer|embed_tokens|word_embeddings|\bwte\b|input_ids|modeling_\w+|vocab",
            ("embedding-index-out-of-range", "index-out-of-range", "device-assert-unlocated", "blas-or-dnn-failure"),
            "transformers: compare input_ids.max() with model.get_input_embeddings().num_embeddings; after "
            "adding tokens call model.resize_token_embeddings(len(tokenizer)). "
            "If the ids fit, the sequence is longer than max_position_embeddings.",
        ),
        (
            r"ForSequenceClassification|ForTokenClassification|num_labels|Trainer|transformers|classifier|id2label",
            ("target-out-of-range",),
            "transformers heads: labels must be 0..num_labels-1; pass num_labels=len(label_names) to "
            "from_pretrained (tags outside it must be -100).",
        ),
        (
            r"[Mm]ask|seg(?:ment|kit)|unet|deeplab|mmseg|Spatial|2d|VOC|cityscapes|semantic",
            ("target-out-of-range", "gather-index-out-of-range"),
            "Masks: the pixel values are the class ids. np.unique of every mask must lie in 0..num_classes-1 "
            "or equal ignore_index (255 needs ignore_index=255); "
            "background counts as a class; masks saved as JPEG or resized with interpolation hold other values.",
        ),
        (
            r"yolo|ultralytics|box_loss|cls_loss|dfl_loss|mAP50|data\.yaml|detect|coco|instances|bbox|anchor",
            ("target-out-of-range", "gather-index-out-of-range", "index-out-of-range", "device-assert-unlocated"),
            "Detection: class ids in the label files must be 0..nc-1 (COCO ids are sparse and start at 1: "
            "map them to 0..K-1). Check with: preassert check data.yaml",
        ),
        (
            r"generate\(|_sample|do_sample|temperature|logits|sampl|chat|gptq|awq|llama|qwen",
            ("invalid-sampling-distribution", "user-device-assert"),
            "Text generation: torch.multinomial met NaN or infinite logits. Load in bfloat16 or float32 "
            "instead of float16, check the checkpoint and the quantisation, "
            "left-pad with an attention mask; do_sample=False avoids the check but not the NaN.",
        ),
        (
            r"vllm|sglang|engine|logit_bias|penalt|serving|EngineCore|VllmWorker",
            ("index-out-of-range", "gather-index-out-of-range", "embedding-index-out-of-range", "device-assert-unlocated"),
            "Serving engines: check token ids that a client can send (prompt_token_ids, logit_bias, "
            "stop_token_ids) against the vocabulary, and prompt plus output against max_model_len.",
        ),
        (
            r"comfy|ComfyUI|automatic1111|webui|img2img|txt2img|Sampler|sd-scripts|kohya|lora",
            ("index-out-of-range", "embedding-index-out-of-range", "illegal-memory-access", "device-assert-unlocated"),
            "Image generators: a prompt chunk longer than 77 tokens, an embedding or LoRA made for another "
            "text encoder, or a wrong tokenizer; restart the server after the failure.",
        ),
        (
            r"isaac|env_ids|terrain|num_envs|reset_idx|\benvs?\b",
            ("index-out-of-range", "gather-index-out-of-range"),
            "Vectorised environments: env_ids must be below num_envs, and every per-environment table "
            "(origins, terrain levels) needs num_envs rows.",
        ),
        (
            r"edge_index|torch_geometric|torch_scatter|num_nodes|\bgraph\b|dgl",
            ("gather-index-out-of-range", "index-out-of-range", "embedding-index-out-of-range"),
            "Graphs: edge_index.max() must be below num_nodes (the rows of x); a transform that adds or "
            "removes nodes must renumber the edges.",
        ),
        (
            r"Discriminator|Loss_D|\bGAN\b|gan|sigmoid|BCELoss|BCECriterion",
            ("probability-outside-unit-interval",),
            "Use BCEWithLogitsLoss on raw scores instead of BCELoss; NaN from diverging training fails the same check.",
        ),
    )
)


def programs(hazard: str, frames: Sequence[Frame], texts: Sequence[Text], evidence: str) -> list[str]:
    """Advice for the kind of program that the frames and texts show, most specific first; at most three."""
    about = "\n".join(
        [evidence, *(f"{frame.file} {frame_text(frame)}" for frame in frames), *(text.text[:400] for text in texts[:400])]
    )
    return [advice for pattern, slugs, advice in _PROGRAMS if hazard in slugs and pattern.search(about)][:3]
