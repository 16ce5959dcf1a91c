"""Predict, then run: `commit` a letter, then `reveal` what the page knows about it.

The questions and the reply to each letter stand in `book/questions/*.toml`. The first guess at each
question is kept, unscored, in `exercises/.progress.json` under "predictions". Without a letter both
functions print fixed text and write nothing, so that stored outputs give nothing away.
"""

import json
import os
import tempfile
import textwrap
import tomllib
from pathlib import Path

_REPO = Path(__file__).resolve().parents[2]
_QUESTIONS = _REPO / "book" / "questions"
_PROGRESS = _REPO / "exercises" / ".progress.json"

_said: dict[str, str] = {}  # the last letter of each question in this Python process, "" for none


def commit(question, guess):
    """Write down a letter before running the cell that answers the question.

    Args:
        question: the question's id, "01-scale".
        guess: a letter, "b"; "" while you have none.

    Raises:
        ValueError: there is no such question, or it has no such letter.

    Example:
        >>> commit("01-scale", "b")
        Noted: b. The next cell says what it shows.
    """
    letters = sorted(_question(question)["replies"])
    guess = str(guess).strip().lower()
    if guess and guess not in letters:
        raise ValueError(f"{question} has no option {guess!r}: choose one of {', '.join(letters)}")
    _said[question] = guess
    if not guess:
        print(
            f"Your guess goes between the quotes: {', '.join(letters)}. Then run this cell again."
        )
        return
    first = _remember(question, guess)
    if first == guess:
        print(f"Noted: {guess}. The next cell says what it shows.")
    else:
        print(f"Now {guess}; your first guess was {first}. The next cell says what it shows.")


def reveal(question):
    """Print the reply to the committed letter, the answer, and why.

    Raises:
        ValueError: there is no such question.
    """
    entry = _question(question)
    guess = _said.get(question)
    if guess is None:  # not asked in this process: an earlier sitting may have
        guess = _predictions(_load()[0]).get(question, "")
    if guess not in entry["replies"]:
        print(f'Commit to a letter first, in the cell above: commit("{question}", "…").')
        return
    _say(f"You said {guess}. {entry['replies'][guess]}")
    if guess != entry["answer"]:
        _say(f"The answer is {entry['answer']}. {entry['explain']}")
    else:
        _say(entry["explain"])


def _question(name):
    """The question's entry: question, answer, explain, replies."""
    known = {}
    for path in sorted(_QUESTIONS.glob("*.toml")):
        known.update(tomllib.loads(path.read_text(encoding="utf-8")))
    if name not in known:
        near = [k for k in known if k[:2] == str(name)[:2]] or list(known)
        raise ValueError(f"there is no question {name!r}; there are: {', '.join(near) or 'none'}")
    return known[name]


def _say(text):
    print(textwrap.fill(" ".join(text.split()), 80))


def _load():
    """The learner's progress and whether the file could be read: ({…}, True)."""
    try:
        progress = json.loads(_PROGRESS.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, True
    except (OSError, ValueError):  # a JSON or a Unicode error is a ValueError
        return {}, False
    return (progress, True) if isinstance(progress, dict) else ({}, False)


def _predictions(progress):
    kept = progress.get("predictions")
    return kept if isinstance(kept, dict) else {}


def _remember(question, guess):
    """Keep the guess if it is the first at this question; the first guess comes back."""
    try:
        progress, readable = _load()
        if not readable:
            aside = _free_name()
            os.replace(_PROGRESS, aside)
            print(f"{_PROGRESS.name} could not be read and was set aside as {aside.name}.")
        kept = _predictions(progress)
        if question in kept:
            return kept[question]
        progress["predictions"] = {**kept, question: guess}
        _write(progress)
    except OSError as error:
        print(f"(The guess could not be written to {_PROGRESS.name}: {error.strerror}.)")
    return guess


def _free_name():
    """A name for a file that is set aside; one set aside earlier keeps its own."""
    aside, number = _PROGRESS.with_name(_PROGRESS.name + ".unreadable"), 2
    while aside.exists():
        aside, number = _PROGRESS.with_name(f"{_PROGRESS.name}.unreadable-{number}"), number + 1
    return aside


def _write(progress):
    """Replace the file in one step, so that a reader never sees half of it."""
    handle, name = tempfile.mkstemp(dir=_PROGRESS.parent, prefix=_PROGRESS.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(progress, file, indent=1, ensure_ascii=False)
            file.write("\n")
        os.replace(name, _PROGRESS)
    except OSError:
        os.unlink(name)
        raise
