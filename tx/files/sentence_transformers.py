"""What a folder of the sentence-transformers package says of how a model's hidden states become a vector.

    modules.json                        the steps, each with a folder of its own
    sentence_bert_config.json           the longest text; older names have roberta, … for bert
    1_Pooling/config.json               which mean
    config_sentence_transformers.json   texts in front of a text, and how vectors are compared

Supported is the mean over all tokens, of unit length; what asks for more is refused by name.
"""

from typing import NamedTuple

from .settings import read_settings

ANY = object()
# Keys of each file and all their values that ask for nothing more than is done here.
TRANSFORMER = {
    "max_seq_length": ANY, "do_lower_case": [False], "transformer_task": ["feature-extraction"],
    "module_output_name": ["token_embeddings"],
    "modality_config": [{"text": {"method": "forward", "method_output_name": "last_hidden_state"}}],
}  # fmt: skip
OTHER_MEANS = ("cls_token", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
POOLING = {
    "pooling_mode": ["mean", ["mean"]], "pooling_mode_mean_tokens": [True],
    **{f"pooling_mode_{name}": [False] for name in OTHER_MEANS},
    "include_prompt": [True, False], "word_embedding_dimension": ANY, "embedding_dimension": ANY,
}  # fmt: skip
WHOLE = {
    "model_type": ["SentenceTransformer"], "similarity_fn_name": ["cosine", "dot"], "prompts": ANY,
    "default_prompt_name": ANY, "__version__": ANY,
}  # fmt: skip
STEPS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
MODELS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")  # in this order


class Recipe(NamedTuple):
    """How a text becomes a vector, apart from the mean.

    prompt: text in front of every text, often "". longest: tokens of a text that are read, None where no file
    says so.
    """

    prompt: str
    longest: int | None


def read_recipe(folder):
    """The `Recipe` of a folder; without such files that of a plain encoder.

    Raises:
        ValueError: a file is damaged, or asks for anything but the mean of all tokens, of unit length.
    """
    kinds, pooling = _steps(folder)
    means = _settings(folder / pooling / "config.json", POOLING)
    whole = _settings(folder / "config_sentence_transformers.json", WHOLE)
    if whole.get("similarity_fn_name") == "dot" and "Normalize" not in kinds:
        raise ValueError(f"{folder} compares vectors of any length by their dot product: only vectors of unit "
                         "length are supported, where it is the cosine.")  # fmt: skip
    prompt = _prompt(folder, whole)
    if prompt and not means.get("include_prompt", True):
        raise ValueError(f"{folder} leaves its prompt out of the mean: include_prompt = false is not supported.")
    return Recipe(prompt, _longest(folder))


def _settings(path, usual):
    """The settings in a file that need not be there, {} then."""
    found = {key: value for key, value in read_settings(path).items() if value not in (None, {})}
    for key, value in found.items():
        if key not in usual or usual[key] is not ANY and value not in usual[key]:
            raise ValueError(f"{path.parent}: {key[:80]} = {value!r:.80} in {path.name} is not supported; a text "
                             "becomes the mean of its tokens, of unit length.")  # fmt: skip
    return found


def _steps(folder):
    """The kinds of steps between a text and its vector, and the folder with the settings of the mean."""
    modules = read_settings(folder / "modules.json", list)
    if not modules:
        return STEPS[0], "1_Pooling"
    entries = [module if isinstance(module, dict) else {"type": module} for module in modules]
    kinds = [str(entry.get("type")).rpartition(".")[2] for entry in entries]
    if kinds not in STEPS:  # a Dense layer, say
        raise ValueError(f"{folder}: modules.json has {', '.join(kinds):.80}, expected a transformer and its mean "
                         "only: Transformer, Pooling and perhaps Normalize.")  # fmt: skip
    model, pooling = (entry.get("path") for entry in entries[:2])
    if model not in (None, "", ".") or not isinstance(pooling, str):
        raise ValueError(f"{folder}: modules.json has the transformer in {model!r:.80} and the pooling in "
                         f"{pooling!r:.80}, expected '' and the name of a folder.")  # fmt: skip
    return kinds, pooling


def _prompt(folder, whole):
    name, prompts = whole.get("default_prompt_name"), whole.get("prompts", {})
    if name is None:
        return ""
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if not isinstance(prompt, str):
        raise ValueError(f"{folder}: default_prompt_name = {name!r:.80} in config_sentence_transformers.json, "
                         f"expected one of its prompts, {prompts!r:.80}.")  # fmt: skip
    return prompt


def _longest(folder):
    """What the settings say, else the tokenizer's, where that is more than "no end" (a 1 with thirty zeros)."""
    path = next((path for kind in MODELS if (path := folder / f"sentence_{kind}_config.json").is_file()), None)
    longest = None if path is None else _settings(path, TRANSFORMER).get("max_seq_length")
    if longest is None:
        longest = read_settings(folder / "tokenizer_config.json").get("model_max_length")
        longest = longest if isinstance(longest, int) and longest < 10**9 else None
    if longest is not None and (not isinstance(longest, int) or longest < 3):
        raise ValueError(f"{folder}: max_seq_length = {longest!r:.80}, expected 3 or more.")
    return longest
