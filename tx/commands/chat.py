"""`python -m tx chat`: a conversation whose cache is kept."""

import sys
from contextlib import suppress

from .terminal import (
    add_writing,
    check_listens,
    check_text,
    check_writing,
    choices,
    listen,
    load_writer,
    note,
    positive,
    status,
    write,
)

HELP = "talk with a model, turn by turn"
EXAMPLES = """
At the prompt:  Ctrl-C stops an answer, Ctrl-D ends the chat.
The model reads your new words only: keys and values of all earlier ones are in its cache.

examples:
  python -m tx chat
  python -m tx chat --system "You answer in one sentence." --temperature 0
  python -m tx chat --mine              with the parts of the model that you have written
  echo "What is a cache?" | python -m tx chat --temperature 0
"""
PROMPT = "you> "


def add_arguments(parser):
    add_writing(parser, model="smollm2-135m-instruct", max_tokens=512, temperature=0.7, top_p=0.9)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the first turn")
    parser.add_argument("--context", type=positive, metavar="N",
                        help="tokens that it can look back on (default: what it was made for)")  # fmt: skip


def run(args):
    check_writing(args)
    check_listens()
    check_text(args.system or "", "--system")
    model, tokenizer = load_writer(args)
    from ..apps.conversation import Conversation

    conversation = Conversation(model, tokenizer, system=args.system, context=args.context)
    sampling = choices(args)
    if sys.stdin.isatty():
        note(f"{args.model} listens. Ctrl-C stops an answer, Ctrl-D ends the chat.\n")
    asked = unanswered = 0
    while (text := _next()) is not None:
        if text.strip():
            asked += 1
            unanswered += not _turn(conversation, text, args, sampling)
    if unanswered and not sys.stdin.isatty():  # a person has seen it, a script asks for the exit code
        raise ValueError(f"questions without an answer: {unanswered} of {asked}.")


def _next():
    """The next line of a person or a pipe; None at its end."""
    try:
        if not sys.stdin.isatty():
            return listen("readline") or None
        with suppress(ImportError):  # arrow keys and history, where the system has them
            import readline  # noqa: F401
        return input(PROMPT)
    except EOFError:
        note("")
        return None
    except KeyboardInterrupt:
        note("\n(Ctrl-D ends the chat.)")
        return ""


def _turn(conversation, text, args, sampling):
    """One question and its answer, whatever happens in between; False where there is none."""
    started = False

    def on_read(done, wanted):
        status(f"reading … {done} of {wanted} tokens")

    def on_text(piece):
        nonlocal started
        if piece and not started:
            status("")
            started = True
        write(piece)

    try:
        conversation.ask(text.strip(), args.max_tokens, on_text=on_text, on_read=on_read, **sampling)
    except KeyboardInterrupt:
        write(" …" if started else "")
    except ValueError as error:
        status("")
        note(f"({error})")
        return False
    write("\n")
    if conversation.n_forgotten:
        note(f"(The context of {conversation.context} tokens was full: the oldest {conversation.n_forgotten} "
             "messages are forgotten.)")  # fmt: skip
    if conversation.cut_short:
        note("(The answer ends here: it may have no more tokens, see --max-tokens and --context.)")
    if sys.stdin.isatty():
        write("\n")
    return True
