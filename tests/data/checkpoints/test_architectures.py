"""The table of architectures against transformers itself: tiny models are run at the limit and one beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from preassert.data.checkpoints import architectures
from preassert.data.checkpoints.limits import Limits, limits_of
from preassert.data.checkpoints.weights import TensorInfo

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TINY: dict[str, Any] = {
    "vocab_size": 40, "max_position_embeddings": 20, "type_vocab_size": 2, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "hidden_size": 16, "d_model": 16, "n_embd": 16, "dim": 16, "embedding_size": 16, "emb_dim": 16,
    "intermediate_size": 16, "d_ff": 16, "dff": 16, "ffn_dim": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
    "hidden_dim": 16, "d_kv": 8, "head_dim": 8, "rotary_dim": 4, "n_positions": 20, "n_inner": 16, "num_hidden_layers": 1,
    "n_layer": 1, "n_layers": 1, "num_layers": 1, "encoder_layers": 1, "decoder_layers": 1, "num_decoder_layers": 1,
    "num_attention_heads": 2, "n_head": 2, "n_heads": 2, "num_heads": 2, "num_key_value_heads": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "attention_window": 4,
}  # fmt: skip

# model class, tokens that a row may have (None: no bound), tokens that labels may have (encoder-decoder)
MODELS: list[tuple[str, int | None, int | None]] = [
    ("BertForMaskedLM", 20, None),
    ("AlbertForMaskedLM", 20, None),
    ("DistilBertForMaskedLM", 20, None),
    ("ElectraForMaskedLM", 20, None),
    ("DebertaV2ForMaskedLM", 20, None),
    ("RobertaForMaskedLM", 18, None),
    ("XLMRobertaForMaskedLM", 18, None),
    ("CamembertForMaskedLM", 18, None),
    ("MPNetForMaskedLM", 18, None),
    ("ModernBertForMaskedLM", None, None),
    ("GPT2LMHeadModel", 20, None),
    ("OpenAIGPTLMHeadModel", 20, None),
    ("OPTForCausalLM", 20, None),
    ("BioGptForCausalLM", 20, None),
    ("XLMWithLMHeadModel", 20, None),
    ("RoFormerForMaskedLM", 20, None),
    ("GPTJForCausalLM", 20, None),
    ("CTRLLMHeadModel", 20, None),
    ("LlamaForCausalLM", None, None),
    ("MistralForCausalLM", None, None),
    ("Qwen2ForCausalLM", None, None),
    ("GPTNeoXForCausalLM", None, None),
    ("BloomForCausalLM", None, None),
    ("XLNetLMHeadModel", None, None),
    ("XGLMForCausalLM", None, None),
    ("MambaForCausalLM", None, None),
    ("BartForConditionalGeneration", 20, 20),
    ("MBartForConditionalGeneration", 20, 20),
    ("PegasusForConditionalGeneration", 20, 20),
    ("MarianMTModel", 20, 20),
    ("BlenderbotForConditionalGeneration", 20, 20),
    ("T5ForConditionalGeneration", None, None),
    ("M2M100ForConditionalGeneration", None, None),
]


def tiny(name: str, **more: Any) -> Any:
    made = getattr(transformers, name).config_class
    known = made()
    accepted = {key: value for key, value in {**TINY, **more}.items() if hasattr(known, key)}
    if made.model_type == "xlnet":  # has no such limit, and says so by refusing it
        del accepted["max_position_embeddings"]
    return getattr(transformers, name)(made(**accepted)).eval()


def limits_from(model: Any) -> Limits:
    config: Mapping[str, Any] = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    tensors = {name: TensorInfo(name, "F32", tuple(tensor.shape), "w") for name, tensor in model.state_dict().items()}
    return limits_of(config, "config.json", tensors)


def accepts(model: Any, **ids: Any) -> bool:
    inputs = {name: torch.as_tensor(value).reshape(1, -1) for name, value in ids.items()}
    if model.config.is_encoder_decoder:
        inputs.setdefault("decoder_input_ids", torch.tensor([[5, 6]]))
    try:
        with torch.no_grad():
            model(**inputs)
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "longest", "longest_labels"), MODELS, ids=[name for name, _, _ in MODELS])
def test_the_limit_is_accepted_and_one_more_is_not(name: str, longest: int | None, longest_labels: int | None) -> None:
    model = tiny(name)
    limits = limits_from(model)
    assert limits.task == "tokens"
    tokens = limits.tokens
    assert tokens is not None
    assert (limits.positions.size if limits.positions else None) == longest
    assert (limits.decoder_positions.size if limits.decoder_positions else None) == longest_labels
    # the rows of the table
    assert accepts(model, input_ids=[5, tokens.size - 1])
    assert not accepts(model, input_ids=[5, tokens.size])
    # the positions
    assert accepts(model, input_ids=[5] * (longest or 40))
    assert longest is None or not accepts(model, input_ids=[5] * (longest + 1))
    if longest_labels is not None:
        assert accepts(model, input_ids=[5], decoder_input_ids=[5] * longest_labels)
        assert not accepts(model, input_ids=[5], decoder_input_ids=[5] * (longest_labels + 1))
    # the outputs
    assert limits.output_tokens is not None
    assert limits.output_tokens.size == model.get_output_embeddings().weight.shape[0]


@pytest.mark.parametrize("name", ["BertModel", "RobertaModel", "AlbertModel", "GPT2Model", "XLMModel"])
def test_token_types(name: str) -> None:
    model = tiny(name)
    bound = limits_from(model).token_types
    assert bound is not None
    assert accepts(model, input_ids=[5, 6], token_type_ids=[0, bound.size - 1])
    assert not accepts(model, input_ids=[5, 6], token_type_ids=[0, bound.size])


CLASSIFIERS = [
    "BertForSequenceClassification",
    "RobertaForSequenceClassification",
    "DistilBertForSequenceClassification",
    "GPT2ForSequenceClassification",
    "LlamaForSequenceClassification",
    "T5ForSequenceClassification",
    "BartForSequenceClassification",
    "XLNetForSequenceClassification",
    "XLMForSequenceClassification",
    "ElectraForSequenceClassification",
    "BertForTokenClassification",
    "GPT2ForTokenClassification",
    "LlamaForTokenClassification",
    "ViTForImageClassification",
    "ResNetForImageClassification",
    "LevitForImageClassification",
    "SwinForImageClassification",
    "SegformerForSemanticSegmentation",
    "MobileViTForSemanticSegmentation",
    "ASTForAudioClassification",
    "Wav2Vec2ForSequenceClassification",
]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classes(name: str) -> None:
    config = getattr(transformers, name).config_class(num_labels=7)
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    bound = limits_from(model).classes
    assert bound is not None
    assert (bound.size, bound.file, bound.declared) == (7, "w", 7)


def test_the_head_of_a_ctc_model() -> None:
    with torch.device("meta"):
        model = transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(vocab_size=33))
    limits = limits_from(model)
    assert (limits.task, limits.tokens) == ("ctc", None)
    assert limits.output_tokens is not None
    assert limits.output_tokens.size == 33


def test_vision_tables_are_not_taken_for_text() -> None:
    with torch.device("meta"):
        model = transformers.CLIPModel(transformers.CLIPConfig())
    limits = limits_from(model)
    assert limits.tokens is not None
    assert limits.positions is not None
    assert (limits.tokens.size, limits.positions.size) == (49408, 77)


def test_two_models_joined() -> None:
    joined = transformers.EncoderDecoderModel(
        encoder=tiny("BertModel", vocab_size=50), decoder=tiny("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    )
    limits = limits_from(joined)
    assert limits.tokens is not None
    assert limits.decoder_tokens is not None
    assert (limits.tokens.size, limits.decoder_tokens.size) == (50, 40)


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertForMultipleChoice", "other"),
        ("BertForPreTraining", "other"),
        ("BertModel", "unknown"),
        ("LlavaForConditionalGeneration", "tokens"),
        ("DetrForObjectDetection", "boxes"),
    ],
)
def test_tasks(architecture: str, task: str) -> None:
    assert architectures.task_of([architecture]) == task


@pytest.mark.parametrize("value", [None, [], "BertModel", [7], {}])
def test_no_architecture_is_no_error(value: Any) -> None:
    assert architectures.task_of(value) == "unknown"
