"""What is known about model architectures: which tensor is which table, and how positions are numbered.

Every row is a fact about transformers' modelling code (read at 5.24, tried out against tiny models in
tests/data/checkpoints/test_architectures.py). An architecture without a row gets the general rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Task = Literal["classes", "tokens", "ctc", "pixels", "boxes", "other", "unknown"]

# --- tables: role -> name of the module that holds the embedding, the most specific first -------------------------------

TOKEN_TABLES = (
    "word_embeddings", "embed_tokens", "wte", "tok_embeddings", "token_embedding", "embed_in", "tokens_embed",
    "word_embedding", "shared", "input_embedding", "token_embeddings",
    "embeddings",  # transformer.embeddings (XLM), backbone.embeddings (Mamba), rwkv.embeddings
    "w",  # transformer.w (CTRL)
)  # fmt: skip
POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe", "position_embedding", "positions_embed")
TOKEN_TYPE_TABLES = ("token_type_embeddings",)
BOX_TABLES = ("x_position_embeddings", "y_position_embeddings")  # LayoutLM family: column ``bbox``

# A table under a module of such a name is not looked up with the text tokens.
OTHER_MODALITIES = re.compile(
    r"(?!visual_bert$)(?:vision|visual|image|img|audio|speech|video)(?:_.*)?|.*_(?:vision|image|audio|speech)_?(?:model|tower|encoder)?|"
    r"(?:patch|entity|codec|depth|talker|qformer|vqmodel|patcher)(?:_.*)?"
)

# --- heads: regular expressions for the module, at the end of its path (with ^: the whole path) ---

TOKEN_HEADS = (
    r"lm_head(?:\.decoder|\.out_proj)?", r"cls\.predictions\.decoder", r"predictions\.decoder", r"vocab_projector",
    r"generator_lm_head", r"pred_layer\.proj", r"output_projection", r"embed_out", r"lm_loss", r"proj_out", r"ctc_head",
    r"head\.decoder", r"^decoder", r"^output", r"^head",
)  # fmt: skip
CLASS_HEADS = (
    r"(?:classification_head|classifier|score)\.(?:out_proj|linear_out)", r"decode_head\.classifier",
    r"segmentation_head\.classifier\.convolution", r"classifier", r"score", r"logits_proj", r"sequence_summary\.summary",
    r"cls_classifier",
    r"classifier\.(?:linear|dense|convolution)", r"classifier\.\d+", r"class_labels_classifier(?:\.layers\.\d+)?",
    r"class_predictor", r"head\.head\.4", r"decoder\.decoder\.final_layer", r"^fc", r"^head",
)  # fmt: skip
# Two-way heads of pre-training and heads beside the main one: never the head that labels are compared with.
NOT_A_HEAD = re.compile(r"(?:^|\.)(?:auxiliary_head|dist_head|seq_relationship|distillation_classifier)(?:\.|$)")

# --- tasks: the end of a class name in ``architectures`` says what the labels are ---------------------------------------

TASKS: tuple[tuple[str, Task], ...] = (
    ("ForSequenceClassification", "classes"),
    ("ForTokenClassification", "classes"),
    ("ForImageClassification", "classes"),
    ("ForImageClassificationWithTeacher", "classes"),
    ("ForAudioClassification", "classes"),
    ("ForVideoClassification", "classes"),
    ("ForAudioFrameClassification", "classes"),
    ("ForSemanticSegmentation", "pixels"),
    ("ForObjectDetection", "boxes"),
    ("ForUniversalSegmentation", "boxes"),
    ("ForInstanceSegmentation", "boxes"),
    ("ForCTC", "ctc"),
    ("ForCausalLM", "tokens"),
    ("ForMaskedLM", "tokens"),
    ("LMHeadModel", "tokens"),
    ("LMHead", "tokens"),
    ("ForConditionalGeneration", "tokens"),
    ("ForSpeechSeq2Seq", "tokens"),
    ("EncoderDecoderModel", "tokens"),
    ("MTModel", "tokens"),
    ("GenerationDecoder", "tokens"),
    ("ForTextToText", "tokens"),
    ("ForSpeechToText", "tokens"),
    ("Text2Text", "tokens"),
    ("ForMultipleChoice", "other"),
    ("ForQuestionAnswering", "other"),
    ("ForNextSentencePrediction", "other"),
    ("ForPreTraining", "other"),
)

# Keys under which a configuration keeps the configuration of its text model.
TEXT_CONFIGS = ("text_config", "language_config", "llm_config", "thinker_config", "decoder")


def task_of(architectures: object) -> Task:
    """What the labels of a model are, from ``architectures`` in its config.json."""
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(name, str):
        return "unknown"
    return next((task for ending, task in TASKS if name.endswith(ending)), "unknown")


_GENERATES = re.compile(
    r"(?:CausalLM|LMHeadModel|LMHead|ConditionalGeneration|Seq2Seq|DecoderModel|Decoder|MTModel|ToText|Text2Text)$"
)


def generates(architectures: object) -> bool:
    """Whether ``generate`` is what a model is for; True where the config does not say."""
    names = [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    return not names or any(_GENERATES.search(name) for name in names)


# --- positions ---------------------------------------------------------------------------------------------------------

PADDING = "padding"  # the offset is padding_idx + 1


@dataclass(frozen=True, slots=True)
class Positions:
    """How an architecture numbers the tokens of a sequence.

    Attributes:
        offset: number of rows before that of the first token, or PADDING.
        included: ``max_position_embeddings`` counts the rows of the offset too (RoBERTa: 514 for 512 tokens), or it does
            not (BART: 1024 with 1026 rows).
        bounded: False where no length can leave the table.
        from_config: True where positions index a buffer of ``max_position_embeddings`` rows that is not in the checkpoint;
            that is indexed, not embedded.
    """

    offset: int | str = 0
    included: bool = True
    bounded: bool = True
    from_config: bool = False


_AFTER_PADDING = Positions(offset=PADDING)
_TWO_MORE = Positions(offset=2, included=False)
_ENDLESS = Positions(bounded=False)
_BUFFER = Positions(from_config=True)

POSITIONS: dict[str, Positions] = {
    **dict.fromkeys(
        (
            "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mluke",
            "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "clap_text_model",
        ),
        _AFTER_PADDING,
    ),
    **dict.fromkeys(
        ("bart", "biogpt", "mbart", "mra", "mvp", "nystromformer", "opt", "plbart", "trocr", "yoso"),
        _TWO_MORE,
    ),
    **dict.fromkeys(("prophetnet", "xlm-prophetnet"), _ENDLESS),  # positions are clamped to the table
    **dict.fromkeys(("fsmt", "tapas"), _ENDLESS),  # the table grows; positions restart in every cell and stop at the last
    **dict.fromkeys(("codegen", "ctrl", "gptj"), _BUFFER),
}  # fmt: skip

# Values of ``position_embedding_type`` for which a table is not looked up, even if the checkpoint holds one (ESM-2).
TABLELESS_POSITIONS = frozenset({"rotary", "rope", "alibi", "none"})

# Models whose position table bounds the length, for checkpoints whose weights are not there to be looked at.
LEARNED_POSITIONS = frozenset(
    {
        "albert", "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt", "blenderbot", "blenderbot-small",
        "camembert", "clip_text_model", "convbert", "data2vec-text", "deberta", "distilbert", "electra", "ernie", "flaubert",
        "fnet", "git", "gpt2", "gpt_bigcode", "gpt_neo", "ibert", "layoutlm", "layoutlmv3", "led", "lilt", "longformer", "luke",
        "marian", "markuplm", "mbart", "megatron-bert", "mobilebert", "mpnet", "mra", "mvp", "nystromformer", "openai-gpt", "opt",
        "pegasus", "plbart", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "squeezebert", "trocr",
        "visual_bert", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso",
    }
)  # fmt: skip

# ``token_type_ids`` are looked up in the token table.
TOKEN_TYPES_ARE_TOKENS = frozenset(
    {"codegen", "ctrl", "flaubert", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "imagegpt", "openai-gpt", "xlm"}
)

# Rows of the token table beyond ``vocab_size``.
EXTRA_ROWS = {"mllama": 8, "mllama_text_model": 8, "moshi": 1}

# Encoders that take sounds or images: their position table is added whole.
NOT_TEXT_ENCODERS = frozenset(
    {
        "whisper", "speech_to_text", "speecht5", "vision-encoder-decoder", "speech-encoder-decoder", "pix2struct", "moonshine",
        "trocr", "nougat", "donut",
    }
)  # fmt: skip
