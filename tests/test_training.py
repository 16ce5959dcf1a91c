"""What training lowers and evaluation reports, against sums by hand and the reference."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_block import V, close, config, made, vectors
from torch import nn

from tests import oracle
from tx.checkpoints import load
from tx.config import Rope
from tx.decoder import Decoder
from tx.encoder import Encoder
from tx.masks import causal
from tx.training import loss, parameter_groups, shift_right, surprise

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


class Bytes:
    """A tokenizer whose tokens are the bytes of the text, up to the size of a small vocabulary."""

    def __init__(self, n=61):
        self.n = n

    def encode(self, text):
        return [byte % self.n for byte in text.encode()]

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_the_loss_is_the_next_tokens_nats():
    close(loss(torch.zeros(2, 5, V), TOKENS), torch.tensor(math.log(V)))
    logits = vectors(2, 5, V)
    nats = [-logits[b, t].log_softmax(-1)[TOKENS[b, t + 1]] for b in range(2) for t in range(4)]
    close(loss(logits, TOKENS), torch.stack(nats).mean())
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    close(loss(logits, TOKENS, real), torch.stack(nats[:6]).mean())


def test_a_pair_counts_when_both_places_are_real():
    logits, tokens = vectors(1, 4, 5), torch.tensor([[0, 0, 3, 2]])
    real = torch.tensor([[False, False, True, True]])
    expected = F.cross_entropy(logits[0, 2:3], tokens[0, 3:])
    close(loss(logits, tokens, real), expected)
    hole = torch.tensor([[True, True, False, True]])
    close(loss(logits, tokens, hole), F.cross_entropy(logits[0, :1], tokens[0, 1:2]))
    logits[0, :2] += 1000 * vectors(2, 5, seed=3)
    tokens[0, :2] = 4
    close(loss(logits, tokens, real), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_fp32(dtype):
    logits, tokens = 2 * vectors(4, 2048, 50), torch.arange(4 * 2048).view(4, 2048) % 50
    logits = logits.to(dtype).requires_grad_()
    got = loss(logits, tokens)
    close(got, loss(logits.double(), tokens).float(), 1e-5)  # an fp16 sum overflows, a bf16 one is off by 0.01
    assert got.dtype == torch.float32 and loss(logits, tokens, reduction="sum")[0] > 2**15
    got.backward()
    assert logits.grad.dtype == dtype and logits.grad.isfinite().all()
    assert loss(logits.double(), tokens).dtype == torch.float64


def test_label_smoothing_is_the_one_of_torch():
    logits, real = vectors(2, 5, V), torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    pairs = torch.cat([logits[0, :4], logits[1, 2:4]]), torch.cat([TOKENS[0, 1:], TOKENS[1, 3:]])
    for share in (0.0, 0.1, 1.0):
        close(loss(logits, TOKENS, real, label_smoothing=share), F.cross_entropy(*pairs, label_smoothing=share))
    assert loss(logits, TOKENS, label_smoothing=0.1) != loss(logits, TOKENS)


def test_sums_and_counts_of_parts_give_the_gradient_of_the_whole():
    model = made(Decoder, config())
    real = torch.tensor([[True] * 5, [False] * 3 + [True] * 2])  # 4 pairs and 1: a mean of means is another number
    whole = loss(model(TOKENS, real), TOKENS, real)
    whole.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    total = count = 0
    for row in (0, 1):
        part, n = loss(model(TOKENS[row : row + 1], real[row : row + 1]), TOKENS[row : row + 1],
                       real[row : row + 1], reduction="sum")  # fmt: skip
        part.backward()
        total, count = total + part.detach(), count + n
    assert int(count) == 5
    close(total / count, whole.detach())
    for p, gradient in zip(model.parameters(), expected, strict=True):
        close(p.grad / count, gradient)


def test_a_batch_in_which_nothing_counts_teaches_nothing():
    logits = vectors(2, 5, V).requires_grad_()
    real = torch.zeros(2, 5, dtype=torch.bool)
    real[:, 2] = True  # a real token without a real neighbour
    got = loss(logits, TOKENS, real, label_smoothing=0.1)
    got.backward()
    assert got.item() == 0 and not logits.grad.any()
    assert [x.item() for x in loss(logits, TOKENS, real, reduction="sum")] == [0, 0]


@pytest.mark.parametrize("change, message", [
    (dict(logits=torch.zeros(5, V)), r"expected floating-point numbers \(B, T, V\)"),
    (dict(logits=torch.zeros(2, 5, V, dtype=torch.long)), "logits of torch.int64: expected floating-point"),
    (dict(logits=torch.zeros(2, 4, V)), r"\(B, T\) as of the logits.\n  logits \(2, 4, 11\)   tokens \(2, 5\)"),
    (dict(tokens=TOKENS.float()), "tokens of torch.float32: expected int64 or int32"),
    (dict(logits=torch.zeros(2, 1, V), tokens=TOKENS[:, :1]), "a text of one token has no next one"),
    (dict(mask=torch.ones(2, 5)), "mask .* of torch.float32: expected booleans"),
    (dict(mask=torch.ones(2, 4).bool()), r"mask \(2, 4\) of torch.bool"),
    (dict(mask=causal()), "mask is a Mask: expected booleans"),
    (dict(label_smoothing=1.5), r"label_smoothing = 1.5: expected a share in \[0, 1\]"),
    (dict(reduction="none"), "reduction = 'none': expected 'mean' or 'sum'"),
])  # fmt: skip
def test_losses_of_nothing_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        loss(**{"logits": torch.zeros(2, 5, V), "tokens": TOKENS, **change})


@pytest.mark.parametrize("switches", [
    dict(positions="learned", tied=True), dict(positions="t5", buckets=4, bucket_distance=8, tied=False),
    dict(positions="rope", rope=Rope(100.0, 2), norm="rms", tied=False, sinks=True),
])  # fmt: skip
def test_matrices_decay_and_norms_biases_and_embeddings_do_not(switches):
    model = made(Decoder, config(**switches))
    model.stack.blocks[0].feed_forward.up.weight.requires_grad_(False)
    groups = parameter_groups(model, 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    names = {id(p): name for name, p in model.named_parameters()}
    decays, stays = ({names[id(p)] for p in group["params"]} for group in groups)
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    linear -= {"stack.blocks.0.feed_forward.up.weight"} | ({"head.linear.weight"} if switches["tied"] else set())
    assert decays == linear and len(decays) > 10
    assert stays == {name for name, p in model.named_parameters() if p.requires_grad} - linear
    assert {"stack.embedding.weight", "stack.norm.weight"} < stays
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    torch.optim.SGD(groups, lr=1.0).step()
    for name, p in model.named_parameters():
        close(p.detach(), before[name] * (0.9 if name in decays else 1.0), 1e-6)


@pytest.mark.parametrize("decay", [-0.1, math.nan, math.inf, "0.1", None])
def test_no_weight_grows_by_decay(decay):
    with pytest.raises(ValueError, match="weight_decay = .*: expected a number, 0 or more"):
        parameter_groups(nn.Linear(2, 2), decay)


def test_targets_shifted_right():
    targets = torch.tensor([[5, 6, 2, -100], [7, 2, -100, -100], [8, 9, 3, 2]])
    assert shift_right(targets, 1, 0).tolist() == [[1, 5, 6, 2], [1, 7, 2, 0], [1, 8, 9, 3]]
    for wrong in ((targets[0], 1, 0), (targets.float(), 1, 0), (targets, 1, -100), (targets, None, 0)):
        with pytest.raises(ValueError, match="expected (ids|an id)"):
            shift_right(*wrong)


@torch.no_grad()
def test_surprise_is_the_mean_of_every_token_with_the_context_it_had():
    theirs, folder = oracle.checkpoint("llama-1")
    ours = load(folder)
    text = "abcdefghij klmnopqrst uvwxyz!"
    ids = torch.tensor([Bytes().encode(text)])
    whole = surprise(ours, Bytes(), text)
    expected = theirs(ids, labels=ids).loss.item()
    assert whole.nats_per_token == pytest.approx(expected, abs=1e-5)
    assert whole.perplexity == pytest.approx(math.exp(expected), rel=1e-5)
    assert whole.bits_per_byte == pytest.approx(expected / math.log(2), rel=1e-5), "a token is a byte here"
    assert (whole.n_tokens, whole.n_bytes) == (28, 28)
    for context, stride in ((8, 3), (8, 7), (5, 1), (28, 14), (29, 1)):
        total, low = 0.0, 0
        for at in range(1, 29):  # every token by itself
            stop = context if at < context else context + -(-(at + 1 - context) // stride) * stride
            low = max(0, min(stop, 29) - context)
            total -= ours(ids[:, low:at])[0, -1].log_softmax(-1)[ids[0, at]].item()
        found = surprise(ours, Bytes(), text, context=context, stride=stride)
        assert found.nats == pytest.approx(total, abs=1e-3), (context, stride)
        assert found.n_tokens == 28


def test_surprise_drops_nothing_and_leaves_the_mode_as_it_was():
    model = made(Decoder, config(dropout=0.5)).train()
    assert surprise(model, Bytes(V), "0123") == surprise(model, Bytes(V), "0123")
    assert model.training


def test_a_text_longer_than_the_model_is_read_in_windows_that_half_overlap():
    model, text = made(Decoder, config()), "0123456789" * 3
    found = surprise(model, Bytes(V), text)
    assert found == surprise(model, Bytes(V), text, context=16, stride=8)
    assert found != surprise(model, Bytes(V), text, context=16, stride=15)


def test_half_a_character_at_the_start_is_no_byte_yet():
    class Halves(Bytes):
        def decode(self, ids):
            return "\ufffd"

    assert surprise(made(Decoder, config()), Halves(V), "0123").n_bytes == 4


@pytest.mark.parametrize("text, windows, message", [
    ("a", {}, "a text of 1 tokens"),
    ("abc", dict(context=8, stride=8), "stride = 8 with context = 8"),
    ("abc", dict(context="8"), "context = '8': expected a whole number"),
    (b"abc", {}, "text = b'abc': expected a text"),
])  # fmt: skip
def test_texts_that_have_no_surprise(text, windows, message):
    with pytest.raises(ValueError, match=message):
        surprise(made(Decoder, config()), Bytes(V), text, **windows)


def test_models_that_have_no_surprise_are_refused_and_their_mode_stays():
    with pytest.raises(ValueError, match="does not predict the next token"):
        surprise(made(Encoder, config(causal=False)), Bytes(V), "abc")
    broken = made(Decoder, config()).train()
    broken.head.linear.weight.data[3, 5] = math.nan
    with pytest.raises(ValueError, match="logits are NaN"):
        surprise(broken, Bytes(V), "0123")
    with pytest.raises(ValueError, match="token id 99 is outside the vocabulary"):
        surprise(broken, Bytes(10**6), "0123abc")
    assert broken.training


def test_loss_names_an_id_outside_the_vocabulary():
    logits = torch.zeros(1, 3, 5)
    for wrong in (5, -7):
        with pytest.raises(ValueError, match=f"token id {wrong} is outside the vocabulary: expected 0 … 4"):
            loss(logits, torch.tensor([[0, -100, wrong]]))
    with pytest.raises(ValueError, match="tokens are a list: expected a tensor"):
        loss(logits, [[0, 1, 2]])
