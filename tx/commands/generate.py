"""`python -m tx generate`: go on with a text."""

from contextlib import ExitStack

from .terminal import (
    add_writing,
    check_text,
    check_writing,
    choices,
    load_writer,
    positive,
    readable,
    waiting,
    write,
)

HELP = "go on with a text, token by token"
EXAMPLES = """
Only what is new goes to standard output. A model with two stacks (T5, BART, Marian) reads the prompt and
writes its answer. An instruct model sees the prompt as plain text here; `chat` speaks its language.

examples:
  python -m tx generate "The capital of France is" --max-tokens 8
  python -m tx generate "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 1
  python -m tx generate "1. apples" --stop "4." --repetition-penalty 1.1
  python -m tx generate - < letter.txt                   the prompt from standard input
  python -m tx generate "translate English to German: Hello" --model ./t5-small --beams 4
"""


def add_arguments(parser):
    parser.add_argument("prompt", metavar="PROMPT", help='the text to go on with; "-" reads standard input')
    add_writing(parser, model="smollm2-135m-instruct", max_tokens=128, temperature=0.0, top_p=None)
    parser.add_argument("--beams", type=positive, default=1, metavar="K",
                        help="search for the most likely text with K texts at once")  # fmt: skip
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT",
                        help="end before this text; may be given several times")  # fmt: skip


def run(args):
    check_writing(args, args.beams)
    if "" in args.stop:
        raise ValueError('--stop "" would stop before the first character.')
    check_text(args.prompt, "PROMPT")
    for text in args.stop:
        check_text(text, "--stop")
    prompt = readable("-") if args.prompt == "-" else args.prompt
    if not prompt:
        raise ValueError("the prompt is empty: there must be a token to go on from.")
    model, tokenizer = load_writer(args)
    import torch

    from ..apps.conversation import ends
    from ..sampling import generate

    ids = tokenizer.encode(prompt)
    if not ids:
        raise ValueError(f"the prompt {prompt!r:.40} has no token in this vocabulary: it needs one to go on from.")
    two = model.config.encoder is not None
    start = _start(model) if two else None
    stream = tokenizer.stream(args.stop, begins=two)

    before = ExitStack()

    def on_token(token, step):
        before.close()
        write(stream.push(token))
        return stream.stopped

    eos = sorted(ends(model, tokenizer))
    options = choices(args) | {"start": start, "eos": eos, "beams": args.beams}
    if args.beams == 1:
        with before:
            before.enter_context(waiting(f"reading {len(ids)} tokens"))  # until the first one comes
            generate(model, torch.tensor([ids]), args.max_tokens, on_token=on_token, **options)
    else:  # which of the texts wins is known at the end
        with waiting(f"searching with {args.beams} beams"):
            tokens = generate(model, torch.tensor([ids]), args.max_tokens, **options)[0]  # (T,)
        for token in tokens[1 if two else len(ids) :].tolist():
            if on_token(token, None):
                break
    write(stream.finish() + "\n")


def _start(model):
    """The id that an answer of two stacks begins with."""
    files = (model.source_config, model.source_generation)
    start = next((id for file in files if (id := file.get("decoder_start_token_id")) is not None), None)
    if start is None:
        raise ValueError("this checkpoint does not say what an answer begins with (decoder_start_token_id).")
    return start
