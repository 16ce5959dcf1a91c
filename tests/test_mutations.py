"""Break `tx` one line at a time: its own tests must turn red every time.

Each mutant is one edit of one module, "masks" or "families.reading". The tests of that module and those of its
folder, where it has them, run against it, in a child of a process that has imported what they need, and have to
fail. An edit that no longer applies is a failure too, so that the list follows the code.

    python tests/test_mutations.py [WORDS]      run those of module WORDS, or whose edit contains them, and watch
"""

import gc
import os
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MUTANTS = [
    ("scaled_dot_product", "q.shape[-1] ** -0.5", "q.shape[-1] ** -1.0"),
    ("scaled_dot_product", "q.shape[-1] ** -0.5", "1.0"),
    ("scaled_dot_product", "(q * scale) @ k.transpose(-2, -1)", "(q @ k.transpose(-2, -1)) * scale"),  # fp16
    ("scaled_dot_product", "wide.detach().amax(-1", "wide.detach().amax(-2"),
    ("scaled_dot_product", "top = top.masked_fill(top == -torch.inf, 0)", "pass"),
    ("scaled_dot_product", "e.sum(-1, keepdim=True)", "e.sum(-2, keepdim=True)"),
    ("scaled_dot_product", "total + (total == 0)", "total"),
    ("scaled_dot_product", "softcap * torch.tanh(scores / softcap)", "torch.tanh(scores / softcap)"),
    ("scaled_dot_product", "masked_fill(~keep", "masked_fill(keep"),
    ("scaled_dot_product", "masked_fill(~keep, -torch.inf)", "masked_fill(~keep, -1e9)"),
    ("scaled_dot_product", "x.repeat_interleave(n_heads // x.shape[1], dim=1)",
     "x.repeat(1, n_heads // x.shape[1], 1, 1)"),
    ("scaled_dot_product", "[..., :-1]  # (B, H, T, S)", "[..., 1:]  # (B, H, T, S)"),
    ("scaled_dot_product", "scores = scores + bias", "scores = scores"),
    ("scaled_dot_product", "F.dropout(weights, dropout)", "weights"),
    ("scaled_dot_product", "F.dropout(weights, dropout)", "F.dropout(weights, dropout) * (1 - dropout)"),
    ("scaled_dot_product", "{\"scale\": scale, \"dropout_p\"", "{\"dropout_p\""),
    ("scaled_dot_product", "structure == \"causal\"}", "False}"),
    ("scaled_dot_product", "sinks is not None or return_weights\n", "return_weights\n"),
    ("masks", "k_pos <= q_pos", "k_pos < q_pos"),
    ("masks", "torch.arange(S - T, S", "torch.arange(0, T"),
    ("masks", ".abs() < W", ".abs() <= W"),
    ("masks", "lambda b, h, q_pos, k_pos: k_pos < n,", "lambda b, h, q_pos, k_pos: k_pos <= n,"),
    ("masks", "& (k_pos >= 0)\n", "\n"),
    ("masks", "self.parts + other.parts", "self.parts"),
    ("masks", "value < S]", "value <= S]"),
    ("masks", "T > S or set(wide)", "set(wide)"),
    ("masks", "if T == 1 or not wide", "if not wide"),
    ("masks", "\"causal\" if T == S else \"dense\"", "\"causal\""),
    ("masks", "(q_pos >= 0) & (ids", "(ids"),
    ("masks", "b if table.shape[0] > 1 else b * 0", "b * 0"),
    ("masks", "hidden = ~as_mask", "hidden = as_mask"),
    ("masks", "first = table.shape[3] - table.shape[2]", "first = 0"),
    ("masks", "known = one if one.q_pos is not None else other", "known = one"),
    ("multihead", "return rows.transpose(1, 2)", "return rows.reshape(B, H, T, d_k)"),
    ("multihead", "rows = x.reshape(B, T, H, d_k)", "rows = x.reshape(B, T, d_k, H).transpose(2, 3)"),
    ("multihead", "rows = x.transpose(1, 2)", "rows = x"),
    ("multihead", "self.value(source)", "self.key(source)"),
    ("multihead", "self.key(source)", "self.key(x)"),
    ("multihead", "return self.out(merge_heads(out))", "return merge_heads(out)"),
    ("multihead", "out = self.out(merge_heads(out))", "out = merge_heads(out)"),
    ("positions", "rope.base**-steps", "rope.base**steps"),
    ("positions", "b * cos + a * sin", "b * cos - a * sin"),
    ("positions", "x[..., half : 2 * half]", "x[..., :half]"),
    ("positions", "max_distance / exact", "max_distance"),
    ("positions", "(distance > 0) * n_buckets", "(distance >= 0) * n_buckets"),
    ("positions", "*range(1, 2 * power, 2)", "*range(2, 2 * power, 2)"),
    ("positions", "row.mT)", "row.flip(-1).mT)"),
    ("positions", "c.n_heads, not c.causal)", "c.n_heads, True)"),
    ("positions", "half, dtype=torch.float64, device", "half, dtype=torch.float32, device"),
    ("config", "value is not None and not isinstance", "not isinstance"),
    ("config", "not used and getattr", "used and getattr"),
    ("stack", 'if not stack.schemes["full"].numbered:', "if False:"),
    ("stack", "if causal and getattr(config, name):", "if False:"),
    ("config", "if not self.given(name):", "if getattr(self, name) in (None, 0, ()):"),
    ("config", "_Number(c.n_heads)", "_Number(1)"),
    ("config", "c.d_model // c.n_heads", "c.d_model // c.n_kv_heads"),
    ("config", "_Number(c.d_model)", "_Number(c.d_head)"),
    ("config", "(\"window\" if c.window else \"full\",)", "(\"full\",)"),
    ("config", "not c.given(\"d_head\") and c.d_model % c.n_heads", "False"),
    ("config", "not c.given(\"d_head\") and c.d_model % c.n_heads", "c.d_model % c.n_heads"),
    ("config", "n_heads = {c.n_heads}.\": c.n_heads % c.n_kv_heads", "n_heads = {c.n_heads}.\": False"),
    ("config", "not 0 < c.experts_per_token <= c.n_experts", "not 0 < c.experts_per_token"),
    ("config", "not 0 < c.experts_per_token <= c.n_experts", "c.experts_per_token > c.n_experts"),
    ("config", "len(c.layer_types) != c.n_layers", "False"),
    ("config", "\"window\" in c.layer_types and not c.window", "False"),
    ("config", "c.positions == \"rope\" and not c.rope", "False"),
    ("config", "max(ropes, default=0) > c.d_head", "False"),
    ("config", "for rope in (c.rope, c.rope_window)", "for rope in (c.rope,)"),
    ("config", "c.positions == \"deberta\" and not c.bucket_distance", "False"),
    ("config", "(c.encoder or c).d_model != c.d_model", "False"),
    ("config", "c.encoder and c.encoder.encoder", "False"),
    ("config", "to turn.\": r.width % 2", "to turn.\": False"),
    ("config", "least {least}.\": r.original < least", "least {least}.\": False"),
    ("config", "\"longrope\": 2}", "\"longrope\": 1}"),
    ("config", "r.scaling == \"llama3\" and r.low_freq_factor >=",
     "r.scaling == \"llama3\" and r.low_freq_factor >"),
    ("config", "r.scaling == \"yarn\" and r.base == 1 or", ""),
    ("config", "or r.scaling == \"dynamic\" and pairs == 1", ""),
    ("config", "not len(r.short_factor) == len(r.long_factor) == pairs",
     "len(r.short_factor) != len(r.long_factor)"),
    ("config", "and not isinstance(value, bool) and", "and"),
    ("config", "least <= value <= most", "least <= value"),
    ("config", "least <= value <= most", "value <= most"),
    ("config", "or value is None and name in FOLLOWS", ""),
    ("config", "fits, words = not all(wrong)", "fits, words = True"),
    ("block", "norm(x + self.dropout(part(x, *arguments)))", "x + self.dropout(norm(part(x, *arguments)))"),
    ("block", "self.scale / (layer + 1)", "self.scale / max(layer, 1)"),
    ("block", "weights / weights.sum(dim=-1, keepdim=True)", "weights"),
    ("block", "self.value(flow.memory)", "self.key(flow.memory)"),
    ("block", "1.0 + self.weight", "self.weight"),
    ("block", "c.attention_dropout if self.training else 0.0", "c.attention_dropout"),
    ("block", "x + self.dropout(attended)", "x + attended"),
    ("block", "+ self.dropout(self.feed_forward(self.feed_forward_norm(x)))",
     "+ self.feed_forward(self.feed_forward_norm(x))"),
    ("block", "c.n_kv_heads > 1 and H *", "H *"),
    ("block", "H * c.n_kv_heads != G * c.n_heads", "False"),
    ("block", "bias.shape[1] not in (1, H)", "bias.shape[1] != 1 and False"),
    ("block", "len(layer.sinks) != H", "False"),
    ("block", "x.shape[-1] != d_head * n_heads", "False"),
    ("block", "x.clamp(-c.clip_qkv, c.clip_qkv)", "x.clamp(max=c.clip_qkv)"),
    ("block", "before and (layer or c.first_attention_norm)", "before and c.first_attention_norm"),
    ("block", "self.down(self.dropout(inner))", "self.down(inner)"),
    ("block", "dim=-1, dtype=wide)", "dim=-1)"),
    ("block", "x if x.dtype == torch.float64 else x.float()", "x.float()"),
    ("stack", "* count - 1", "- 1"),
    ("stack", "mask.long().cumsum(1) - 1", "mask.long().cumsum(1)"),
    ("stack", "[:, -slots.shape[0] :]", "[:, : slots.shape[0]]"),
    ("stack", "return slots[None]  # (1, T)", "return slots[None] - slots[0]"),
    ("stack", "bool(mask.all())", "bool(mask.any())"),
    ("stack", "return own  # a dense mask", "pass  #"),
    ("stack", "mask & window(c.window) if kind == \"window\" else mask", "mask"),
    ("stack", "if kind == \"window\" else mask", "if c.window else mask"),
    ("stack", "if stop != S:", "if stop > S:"),
    ("stack", "if stop != S:", "if stop < S:"),
    ("stack", "slots[None], k_slots[None], wide", "positions, k_slots[None], wide"),
    ("stack", "slots[None], k_slots[None], wide", "slots[None], k_slots[None], x.dtype"),
    ("stack", "torch.tensor(c.embedding_scale, dtype=x.dtype)", "c.embedding_scale"),
    ("stack", "self.dropout(self.embedding_norm(x))", "self.embedding_norm(x)"),
    ("stack", "layer % len(self.blocks)", "0"),
    ("stack", "before -= int((~mask[:, :before]).sum(1).min())", "pass"),
    ("stack", "after -= int((~mask).sum(1).min())", "pass"),
    ("stack", "weight, std=0.02", "weight, std=0.04"),
    ("stack", "nn.init.zeros_(module.bias)", "pass"),
    ("stack", "math.sqrt(2 * stack", "math.sqrt(stack"),
    ("stack", "(\"attention.out.weight\", \".down.weight\")", "(\".down.weight\",)"),
    ("stack", "(\"attention.out.weight\", \".down.weight\")", "(\"attention.out.weight\",)"),
    ("decoder", "x * c.head_scale", "x"),
    ("decoder", "torch.tanh(logits / c.logit_softcap)", "torch.tanh(logits)"),
    ("decoder", "bias=config.head_bias", "bias=False"),
    ("decoder", "if config.tied:", "if True:"),
    ("decoder", "self.head.linear.weight = self.stack.embedding.weight", "pass"),
    ("decoder", "initialise(self)", "pass"),
    ("decoder", "positions=positions, cache", "cache"),
    ("decoder", "x[:, -last:]", "x[:, :last]"),
    ("decoder", "last < 1", "last < 0"),
    ("tokenization", "self.backend.no_truncation()", "pass"),
    ("tokenization", "self.backend.no_padding()", "pass"),
    ("tokenization", "x.special or MARKER.fullmatch(x.content)", "x.special"),
    ("tokenization", "if len(name) > 1}", "}"),
    ("tokenization", "not parse_special and any", "False and any"),
    ("tokenization", "add_special_tokens=add_special", "add_special_tokens=True"),
    ("tokenization", "or self._literal.mark != mark", "or False"),
    ("tokenization", "skip_special_tokens=not special", "skip_special_tokens=True"),
    ("tokenization", "\"add_generation_prompt\": reply", "\"add_generation_prompt\": True"),
    ("tokenization", "with_marks.replace(mark, \"\") != text", "False"),
    ("tokenization", "{} if self.template is None else {\"chat_template\": self.template}", "{}"),
    ("tokenization", "[] if begins else tokenizer._before", "tokenizer._before"),
    ("tokenization", "[] if begins else tokenizer._before", "[]"),
    ("tokenization", "if id in self.tokenizer.silent", "if False"),
    ("tokenization", "min(broken, HOLD)", "0"),
    ("tokenization", "if len(self.ids) > 256:", "if False:"),
    ("tokenization", "text[: min(ends)]", "text[: max(ends)]"),
    ("tokenization", "text = self.held + text", "pass"),
    ("tokenization", "place >= length - sizes if left", "place < sizes if left"),
    ("sampling", "if real is None else real).long()", ").long()"),
    ("sampling", "torch.where(logits > 0, logits / penalty, logits * penalty)", "logits / penalty"),
    ("sampling", "logits.masked_fill(logits < last", "logits.masked_fill(logits <= last"),
    ("sampling", "<= 1 - p  # (B, V)", "< p  # (B, V)"),
    ("sampling", "hidden.scatter(1, order, hidden)", "hidden"),
    ("sampling", "floor = p * probabilities.amax(-1, keepdim=True)", "floor = p"),
    ("sampling", "token = token.masked_fill(ended, pad)", "pass"),
    ("sampling", "ended = ended | (token", "ended = (token"),
    ("sampling", "new = tokens[:, known:]", "new = tokens[:, known - 1 if known else 0 :]"),
    ("sampling", "rows = _pick(rows, on).flatten()", "rows = (first + torch.arange(K)).flatten()"),
    ("sampling", "score[:, :K] / (step + 1)", "score[:, :K]"),
    ("sampling", "quality.index_fill(1, tokens.new_zeros(1), 0.0)", "torch.zeros_like(quality)"),
    ("sampling", "self.cache.select(rows)", "pass"),
    ("training", "mask[:, :-1] & mask[:, 1:]", "mask[:, 1:]"),
    ("training", "mask[:, :-1] & mask[:, 1:]", "mask[:, :-1]"),
    ("training", "torch.promote_types(logits.dtype, torch.float32)", "logits.dtype"),
    ("training", "reduction=\"sum\", label_smoothing=label_smoothing", "reduction=\"sum\""),
    ("training", "count.clamp(min=1)", "count"),
    ("training", "p.dim() > 1 and id(p) not in embeddings", "p.dim() > 1"),
    ("training", "if p.requires_grad]", "]"),
    ("training", ".masked_fill(targets[:, :-1] == -100, pad)", ""),
    ("training", "model.eval()", "pass"),
    ("training", "model.train(was_training)", "pass"),
    ("training", "max(context, counted + stride)", "counted + stride"),
    ("training", "min(1024, model.config.max_positions)", "1024"),
    ("training", "context // 2 if stride", "context - 1 if stride"),
    ("training", "- len(first.encode())", ""),
    ("training", ".rstrip(\"\\ufffd\")", ""),
    ("training", "/ math.log(2)", ""),
    ("inspecting", "kept.clear()", "pass"),
    ("inspecting", "undo.callback(hook.remove)", "pass"),
    ("inspecting", "undo.callback(delattr, layer, \"attend\")", "pass"),
    ("inspecting", "if not seen.hidden:", "if True:"),
    ("inspecting", "isinstance(layer, CrossAttention)", "False"),
    ("inspecting", "keep(weights)", "keep(weights.detach())"),
    ("inspecting", "        seen.begin()", "        pass"),
    ("inspecting", "if in_pass:", "if True:"),
    ("inspecting", "\"attend\" in vars(layer)", "False"),
    ("inspecting", "mask, bias, return_weights=True", "mask, None, return_weights=True"),
    ("encoder", "self.activation(self.dense(x))", "self.dense(x)"),
    ("encoder", "self.norm(self.activation(self.dense(x)))", "self.activation(self.dense(x))"),
    ("encoder", "config.masked_activation or config.activation", "config.activation"),
    ("encoder", "bias=config.masked_head_bias", "bias=True"),
    ("encoder", "initialise(self)", "pass"),
    ("encoder", "self.masked_head.head.linear.weight = self.stack.embedding.weight", "pass"),
    ("encoder", "mask, positions=positions,", "mask,"),
    ("encoder", ", segments=segments)  # (B, T, D)", ")"),
    ("encoder", "self.masked_head(self(tokens, mask, **options))", "self.masked_head(self(tokens, mask))"),
    ("encoder", "[:, 0]).tanh()", "[:, -1]).tanh()"),
    ("encoder", "[:, 0]).tanh()", "[:, 0])"),
    ("encoder_decoder", "None if hears else embedding", "None"),
    ("encoder_decoder", "self.head.linear.weight = self.decoder.embedding.weight", "pass"),
    ("encoder_decoder", "F.gelu(self.first(mel))", "self.first(mel)"),
    ("encoder_decoder", "mel = mel.to(self.first.weight.dtype)", "pass"),
    ("encoder_decoder", "initialise(self)", "pass"),
    ("encoder_decoder", "self.encode(source, source_mask)", "self.encode(source)"),
    ("encoder_decoder", "source_mask, target_mask=target_mask)", "source_mask)"),
    ("encoder_decoder", "source_mask = padding(source_mask)", "source_mask = None"),
    ("encoder_decoder", "or mask.shape != memory.shape[:2]", "or False"),
    ("encoder_decoder", "mel.shape[2] == 0", "False"),
    ("encoder_decoder", "x[:, -last:]", "x[:, :last]"),
    ("checkpoints", "return model.eval()", "return model"),
    ("checkpoints", "reader.refuse(\"is_causal\", True)", "pass"),
    ("checkpoints", "model.source_config = dict(values)", "pass"),
    ("checkpoints", "if generation := getattr(model, \"source_generation\", None):", "if generation := None:"),
    ("checkpoints", "if again and model.config.tied:", "if again:"),
    ("checkpoints", "if not name.endswith(family.ignored)]", "]"),
    ("checkpoints", "sorted(set(tensors.names) - set(found.values()))", "[]"),
    ("checkpoints", "if id(parameter) not in named]", "if False]"),
    ("checkpoints", "if shape != expected:", "if len(shape) != len(expected):"),
    ("checkpoints", "part.to(device, dtype)", "part.to(device)"),
    ("checkpoints", "torch.equal(loaded[head], loaded[embedding])", "True"),
    ("checkpoints", "torch.equal(tensor, tensors.get(found[of]))", "True"),
    ("checkpoints", "atol=4 * torch.finfo(tensor.dtype).eps", "atol=1e3"),
    ("checkpoints", "bool(tensor.isfinite().all())", "True"),
    ("checkpoints", "(tensor.abs() > most)", "(tensor > most)"),
    ("checkpoints", "if tensor.dtype not in FLOATS:", "if False:"),
    ("checkpoints", "found {tensor.dtype}\"]", "found {tensor.dtype}\"][:0]"),
    ("checkpoints", "found[of] = found.pop(copy)", "pass"),
    ("checkpoints", "path.name != \"model.safetensors\"]", "True]"),
    ("checkpoints", "**{part: False}", ""),
    ("cache", "max(0, k.shape[2] - self.keep)", "max(0, k.shape[2] - self.keep + 1)"),
    ("cache", "max(0, self.length - keep)", "max(0, stop - keep)"),
    ("cache", "self.length, self.unfinished = length, False", "pass"),
    ("cache", "kv.keys[rows], kv.values[rows]", "kv.keys[rows], kv.values"),
    ("cache", "max(self.longest, self.length)", "self.length"),
    ("cache", "self.longest, self.unfinished = 0, 0, False", "self.unfinished = 0, False"),
    ("cache", "if self.unfinished:", "if False:"),
    ("cache", "self.unfinished = True", "pass"),
    ("cache", "self.length + n_new > self.room", "self.length + n_new >= self.room"),
    ("cache", "slots >= stop", "slots > stop"),
    ("cache", "config.window - 1 if rolling", "config.window if rolling"),
    ("cache", "return self._start()  # the memory", "pass  #"),
    ("cache", "if length and any(self.keep.values())", "if False"),
    ("cache", "kv.cut(length)", "pass"),
    ("speed", "row = row if self.bias is None else row + self.bias", "pass"),
    ("speed", "FusedAttention, \"query\", \"key\", \"value\"", "FusedAttention, \"query\", \"value\", \"key\""),
    ("speed", "FusedFeedForward, \"gate\", \"up\"", "FusedFeedForward, \"up\", \"gate\""),
    ("speed", "(compiled if x.shape[1] == 1 else Block.forward)", "compiled"),
    ("speed", "x.numel() != self.weight.shape[1]", "x.shape[0] != 1"),
    ("speed", "any(layer.bias is not None", "all(layer.bias is not None"),
    ("speed", "zeros if layer.bias is None else layer.bias.detach()", "zeros"),
    ("speed", "type(module) is Attention", "isinstance(module, Attention)"),
    ("speed", "and not module.config.share_position_projection", ""),
    ("speed", "model.requires_grad_(False)", "model"),
    ("speed", "delattr(module, name)", "pass"),
    ("speed", "MethodType(forward, block)", "lambda x, *rest, block=block: forward(block, x, *rest)"),
    ("apps.audio", "- 128  #", "- 127  #"),
    ("apps.audio", ".view(torch.int8)", ""),
    ("apps.audio", "wide / 2 ** (8 * width - 1)", "wide / 2 ** (8 * width)"),
    ("apps.audio", ".view(-1, channels).mean(-1)  # (N,)", ".view(-1, channels)[:, 0]"),
    ("apps.audio", "file.tell() + size + size % 2", "file.tell() + size"),
    ("apps.audio", "and form[26:] == TAIL", ""),
    ("apps.audio", "or frame != channels * bits // 8", ""),
    ("apps.audio", "max(1, PIECE // frame) * frame", "PIECE"),
    ("apps.audio", "0.99 * min(up, down) / down", "0.99"),
    ("apps.audio", "kernel / kernel.sum(-1, keepdim=True)", "kernel"),
    ("apps.audio", "mel < 15, mel * 200 / 3", "mel < 15, mel * 100 / 3"),
    ("apps.audio", "triangles * (2 / (edges[2:] - edges[:-2]))[:, None]", "triangles"),
    ("apps.audio", "spectrum[:, :-1].abs().square()", "spectrum[:, 1:].abs().square()"),
    ("apps.audio", ".abs().square()  # (n_bins", ".abs()  # (n_bins"),
    ("apps.audio", "float(mel.max()) - 8", "float(mel.max()) - 80"),
    ("apps.audio", "not loudest <= LOUDEST", "loudest > LOUDEST"),
    ("apps.conversation", "(\"eos\", \"eot\", \"eom\")", "(\"eos\",)"),
    ("apps.conversation", "(\"source_config\", \"source_generation\")", "(\"source_config\",)"),
    ("apps.conversation", "isinstance(id, bool) or not 0 <= id < size", "not 0 <= id < size"),
    ("apps.conversation", "_agree(ids, self.ids[: self.cache.length])", "0"),
    ("apps.conversation", "_agree(ids, self.ids[: self.cache.length])", "min(len(ids), self.cache.length)"),
    ("apps.conversation", "len(ids) - 1), PIECE", "len(ids)), PIECE"),
    ("apps.conversation", "if not same_tables(", "if False and not same_tables("),
    ("apps.conversation", "self.ids = ids + answer", "self.ids = ids"),
    ("apps.conversation", "if answer:\n", "if True:\n"),
    ("apps.conversation", "stream(begins=True)", "stream()"),
    ("apps.conversation", "del messages[:2]", "del messages[:1]"),
    ("apps.conversation", "wanted > self.context // 2:", "wanted > self.context:"),
    ("apps.conversation", "self.context - len(ids))", "self.context)"),
    ("apps.conversation", "add_special=False", "add_special=True"),
    ("apps.conversation", "self.cut_short = answer[-1] not in self.eos", "self.cut_short = False"),
    ("apps.embedding", "weights.sum(1).clamp(min=1)", "hidden.shape[1]"),
    ("apps.embedding", "weights.sum(1).clamp(min=1)", "weights.sum(1)"),
    ("apps.embedding", "F.normalize(pool(self.model(tokens, real), real))",
     "pool(self.model(tokens, real), real)"),
    ("apps.embedding", "self.model(tokens, real), real", "self.model(tokens), real"),
    ("apps.embedding", "torch.tensor(order).argsort()", "torch.tensor(order)"),
    ("apps.embedding", "ids[: self.longest - 1] + ids[-1:]", "ids[: self.longest]"),
    ("apps.embedding", "self.prompt + text", "text"),
    ("apps.embedding", "min(longest, most)", "longest"),
    ("apps.embedding", "min(k, len(passages))", "k"),
    ("apps.embedding", "~((lengths - 1).abs() <= 0.01)", "(lengths - 1).abs() > 0.01"),
    ("apps.transcription", "+ EARLIEST * rate", "+ 0"),
    ("apps.transcription", "+ pause // 2)", ")"),
    ("apps.transcription", "attempt.nothing_said > NO_SPEECH and", "False and"),
    ("apps.transcription", "(not sure or len(attempt.ids) <= FEW)", "not sure"),
    ("apps.transcription", "(not sure or len(attempt.ids) <= FEW)", "True"),
    ("apps.transcription", "[attempt] if attempt.whole else []", "[attempt]"),
    ("apps.transcription", "if attempt.whole and sure:", "if sure:"),
    ("apps.transcription", "best = max(found", "best = min(found"),
    ("apps.transcription", "resample(samples[begin:end], rate)", "samples[begin:end]"),
    ("apps.transcription", "[self.no_times - 1]", "[self.no_times]"),
    ("apps.transcription", "scores if step else scores.index_fill(0, self.not_first, -math.inf)", "scores"),
    ("apps.transcription", "certainty / (step + 1)", "certainty"),
    ("apps.transcription", "ended and not self._loops(ids)", "ended"),
    ("apps.transcription", "*range(ENGLISH + 1, vocab_size)", "*()"),
    ("apps.transcription", "0 <= id < vocab_size", "id < vocab_size"),
    ("apps.transcription", "read_settings(folder / name) | values", "values | read_settings(folder / name)"),
    ("apps.transcription", "if self.eos != ENGLISH:", "if False:"),
    ("families.reading", "{**values, **self.values}", "{**self.values, **values}"),
    ("families.reading", "{**self.values, **given}", "{**given, **self.values}"),
    ("families.reading", "not 0 < value <= most", "not 0 <= value <= most"),
    ("families.reading", "if \"layer\" in key or \"expert\" in key", "if \"layer\" in key"),
    ("families.reading", "given = self.values.get(\"sliding_window\", default)",
     "given = self.values.get(\"sliding_window\") or default"),
    ("families.reading", "if line not in self.problems:", "if True:"),
    ("families.reading", "not in (None, allowed)", "not in (None, allowed, False)"),
    ("families.reading", "ACTIVATION_NAMES.get(value, \"gelu\")", "\"gelu\""),
    ("families.reading", "\"gelu_fast\": \"gelu_tanh\"", "\"gelu_fast\": \"gelu\""),
    ("families.reading", "Reader(old or new)", "Reader(new or old)"),
    ("families.reading", "own if base_key == \"rope_local_base_freq\" else own | old", "own | old"),
    ("families.reading", "given(\"partial_rotary_factor\", float(self(*share)))", "self(*share)"),
    ("families.reading", "if scaling == \"dynamic\":", "if False:"),
    ("families.reading", "elif kind is None:  # what", "elif False:  # what"),
    ("families.reading", "longest / original)", "1.0)"),
    ("families.reading", "(grown * over + 1.0) / (grown * under + 1.0)", "grown * over + 1.0"),
    ("families.reading", "and values[\"factor\"] > 1:", ":"),
    ("families.reading", "given(\"rope_theta\", float(self(base_key, float(base))))",
     "self(base_key, float(base))"),
    ("families.reading", "isinstance(value, int) and not isinstance(value, bool)", "isinstance(value, int)"),
    ("families.reading", "isinstance(value, float) and math.isfinite(value)", "isinstance(value, float)"),
    ("families.reading", "bool(nested) != (kind is not None)", "False"),
    ("families.writing", "0 if c.positions_skip_pad is None else c.position_offset", "0"),
    ("families.writing", "round(c.scale**-2) if c.scale else c.d_head", "c.d_head"),
    ("families.writing", "2 * (c.window or 65) - 2", "2 * (c.window or 65)"),
    ("families.writing", "if rope.width != c.d_head:", "if False:"),
    ("families.writing", "if not reader.problems and _resolved(back, config)", "if _resolved(back, config)"),
    ("families.writing", "_resolved(back, config) == _resolved(config, config)", "True"),
    ("families.writing", "scale=c.scale or c.d_head**-0.5,", ""),
    ("families.writing", "pooler=c.pooler and like.pooler,", ""),
    ("families.writing", "if config.given(field.name) and getattr", "if getattr"),
    ("families.writing", "r.problems += side.problems", "pass"),
    ("families.writing", "\"pad_token_id\": config.positions_skip_pad", "\"pad_token_id\": None"),
    ("files.chat_template", "trim_blocks=True", "trim_blocks=False"),
    ("files.chat_template", "len(template) > LONGEST", "False"),
    ("files.chat_template", "self.sizes.get(f.name, self.size)", "self.size"),
    ("files.chat_template", "type(obj).__module__ != \"builtins\" and super()", "super()"),
    ("files.chat_template", "\"dict\": _Dict()", "\"dict\": dict"),
    ("files.chat_template", "(\"urlize\", \"wordwrap\")", "(\"urlize\",)"),
    ("files.chat_template", "min(times, count)", "times"),
    ("files.chat_template", "ensure_ascii=ensure_ascii, indent", "indent"),
    ("files.chat_template", "return text.strip(chars)", "return text.strip()"),
    ("files.chat_template", "return sum(items, start)", "return sum(items)"),
    ("files.gguf", "[::-1]\n        number", "\n        number"),
    ("files.gguf", "if part and int(part[2]) > 1:", "if False:"),
    ("files.gguf", "if count not in (0, 1):", "if False:"),
    ("files.gguf", "if name in self.metadata:", "if False:"),
    ("files.gguf", "or alignment & (alignment - 1)", ""),
    ("files.gguf", "if start != place:", "if False:"),
    ("files.gguf", "if end > len(self.bytes):", "if False:"),
    ("files.gguf", "if name in tensors:", "if False:"),
    ("files.gguf", "or shape[-1] % in_block", ""),
    ("files.gguf", "version not in (2, 3)", "False"),
    ("files.gguf", "count * each > len(self.bytes) - self.at", "False"),
    ("files.gguf", "\"output.weight\" not in self.file.tensors", "True"),
    ("files.gguf", "self.config.get(key, self.config[\"num_attention_heads\"])",
     "self.config[\"num_attention_heads\"]"),
    ("files.gguf", "[f\"missing    {SETTINGS[key]}\" for key in needed if key not in self.config]", "[]"),
    ("files.gguf", "stored.shape != (half,) or half", "half"),
    ("files.gguf", "0 < factor < math.inf", "factor < math.inf"),
    ("files.gguf", "if found != allowed:", "if False:"),
    ("files.gguf", "and key not in known", "and False"),
    ("files.safetensors", "if not (folder / name).is_file():", "if False:"),
    ("files.safetensors", "self.files.keys() & set(file.keys())", "set()"),
    ("files.safetensors", "if problems:", "if False:"),
    ("files.safetensors", "if (folder / INDEX).is_file():", "if False:"),
    ("files.safetensors", "if wanted - set(present):", "if False:"),
    ("files.safetensors", "[WHOLE] if WHOLE in present else sorted(wanted)", "sorted(wanted)"),
    ("files.safetensors", "[WHOLE] if WHOLE in present else sorted(wanted)", "present"),
    ("files.safetensors", "[WHOLE] if WHOLE in present else present", "present"),
    ("files.safetensors", "if path.suffix in PICKLES", "if False"),
    ("files.tokenizers", "\"lstrip\": True", "\"lstrip\": False"),
    ("files.tokenizers", "cut=\"qwen2\"", "cut=\"gpt-2\""),
    ("files.tokenizers", "if (folder / \"chat_template.jinja\").is_file():", "if False:"),
    ("files.tokenizers", "_without_space if _asks_for_no_space(folder, settings) else None", "None"),
    ("files.tokenizers", "step[\"start\"] = 0", "pass"),
    ("files.tokenizers", "if len(vocabulary) != len(pieces):", "if False:"),
    ("files.tokenizers", "or pair in merges:", ":"),
    ("files.tokenizers", "flag(\"do_lower_case\", True)", "True"),
    ("files.tokenizers", "\"extra_ids\", 100", "\"extra_ids\", 99"),
    ("files.tokenizers", "in reversed(range(extra))", "in range(extra)"),
    ("files.tokenizers", "100 * bool(", "0 * bool("),
    ("files.tokenizers", "not _flag(folder, settings, \"legacy\", True)", "False"),
    ("files.tokenizers", "tokens = (end,) if settings[f\"add_{end}_token\"] else ()", "pass"),
    ("files.tokenizers", "if found != number:", "if False:"),
    ("files.tokenizers", "or number in seen:", ":"),
]  # fmt: skip
ALSO = {"files.tokenizers": ["sentencepiece"]}  # its folders with a model of pieces are tested there


def place(module):
    """The file of a module, and the files of tests that have to notice what is wrong with it."""
    *folders, name = module.split(".")
    tests = [ROOT / "tests" / f"test_{part}.py" for part in (name, *folders, *ALSO.get(module, []))]
    return ROOT.joinpath("tx", *folders, f"{name}.py"), [str(path) for path in tests if path.exists()]


class Mutant(SourceFileLoader):
    """Finds one module, and imports it from another source than its file's."""

    def __init__(self, module, path, source):
        super().__init__(f"tx.{module}", str(path))
        self.source = source

    def find_spec(self, name, path=None, target=None):
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, name):
        return compile(self.source, f"{self.path} (mutant)", "exec")


class Order:
    """What has killed the mutants before runs first, and what is slow last; a failure is written to a file."""

    def __init__(self, killers, note):
        self.killers, self.note = killers, note

    def pytest_collection_modifyitems(self, items):
        rank = {name: n for n, name in enumerate(self.killers)}
        items.sort(key=lambda item: (rank.get(item.nodeid, len(rank)), bool(item.get_closest_marker("slow"))))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.note.write_text(report.nodeid, encoding="utf-8")


def survives(module, old, new, killers):
    """Why the mutant was not killed, or None. Runs in a child process that is spent afterwards.

    killers: the names of tests that have killed a mutant of this module, the last one first; its own is added.
    """
    path, tests = place(module)
    source = path.read_text(encoding="utf-8")
    if old not in source:
        return "the edit does not apply any more"
    scratch = tempfile.TemporaryDirectory()  # what a child leaves that ends without cleaning up
    note = Path(scratch.name, "killer")
    child = os.fork()
    if child == 0:
        os.environ["TMPDIR"] = tempfile.tempdir = scratch.name
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        sys.meta_path.insert(0, Mutant(module, path, source.replace(old, new, 1)))  # before anything imports it
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and all of them take two seconds
        # Nobody reads a traceback, and to collect garbage after the last test takes as long as most of the tests.
        quiet = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
        os._exit(int(pytest.main([*quiet, *tests], plugins=[Order(killers, note)])))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if note.exists():
        killer = note.read_text(encoding="utf-8")
        killers[:] = [killer, *(name for name in killers if name != killer)]
    scratch.cleanup()
    return None if code == 1 else f"survived (pytest ended with {code})"


def main(words=""):
    sys.path.insert(0, str(ROOT))  # tests import tests.oracle
    import hypothesis  # noqa: F401  imported once, here, and not in every child
    import torch  # noqa: F401
    from torch.nn.attention import flex_attention  # noqa: F401
    from transformers import AutoTokenizer, GPT2LMHeadModel, LlamaForCausalLM  # noqa: F401

    gc.freeze()  # a child has not to look through what is imported here
    chosen = [mutant for mutant in MUTANTS if words in (mutant[0], "")]
    chosen = chosen or [mutant for mutant in MUTANTS if words in " ".join(mutant[1:])]
    alive, killers = 0, {mutant[0]: [] for mutant in chosen}
    for number, (module, old, new) in enumerate(chosen, 1):
        why = survives(module, old, new, killers[module])
        alive += why is not None
        print(f"{number}/{len(chosen)} tx.{module}  - {old!r}  + {new!r}  {why or 'killed'}", flush=True)
    return alive


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="mutants run in forked children; this system has no fork")
@pytest.mark.parametrize("module", sorted({mutant[0] for mutant in MUTANTS}))
def test_every_mutant_is_killed(module):
    import subprocess

    done = subprocess.run([sys.executable, __file__, module], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if not line.endswith("killed")]
    assert done.returncode == 0 and not lines, "\n".join(lines) + done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == sum(mutant[0] == module for mutant in MUTANTS)


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 100))
