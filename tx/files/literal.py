"""Names of special tokens that are to stay text (chapter 7).

"<|im_end|>" ends a turn where a chat template writes it, and is eight characters where a user does. Both come
in one text, so a mark is put inside the user's ones before the template sees them: a character that occurs
nowhere else. Afterwards the text is encoded by a tokenizer in which every special token has the mark in front
of its name: names in the text that have no mark inside get it in front, and all other marks are taken out. So
a text is still encoded as a whole, and the ids around a name are those that they would have been.
"""

import json
import re
from collections import Counter

from tokenizers import Tokenizer as Backend


class ChatText(str):
    """A text in which some names of special tokens are text. marked: it, with a mark inside these; mark: which."""

    marked: str
    mark: str

    def __new__(cls, marked, mark):
        text = super().__new__(cls, marked.replace(mark, ""))
        text.marked, text.mark = marked, mark
        return text


def unused(text):
    """A character for private use that a text does not use."""
    return next(character for character in map(chr, range(0xE000, 0xF900)) if character not in text)


def marked(value, names, mark, in_list=False):
    """A text, or all texts of lists and dictionaries, with a mark inside every name.

    in_list: the text stands beside others, and might end with the beginning of a name that the next one ends.
    """
    if isinstance(value, dict):
        return {marked(key, names, mark): marked(inner, names, mark, in_list) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [marked(inner, names, mark, True) for inner in value]
    if not isinstance(value, str):
        return value
    found = [name for name in names if name in value]
    ends = (name[:n] for name in names if not name[0].isalnum() for n in range(1, len(name)))
    if in_list and value.endswith(tuple(ends)):
        value += mark
    return re.sub(f"(?s)(?={'|'.join(map(re.escape, found))}).", rf"\g<0>{mark}", value) if found else value


class Literal:
    """A tokenizer in which every special token has a mark in front of its name.

    backend: the package's. names: of its special tokens, two characters or longer: a mark stands inside.
    """

    def __init__(self, backend, names, mark):
        self.mark, self.ids = mark, {name: backend.token_to_id(name) for name in names}
        self.names = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
        values = json.loads(backend.to_str())
        model, new = values["model"], lambda name: mark + name if name in self.ids else name
        for token in values["added_tokens"]:
            token["content"] = new(token["content"])
        if isinstance(model["vocab"], dict):
            model["vocab"] = {new(name): id for name, id in model["vocab"].items()}
        else:
            model["vocab"] = [[new(name), score] for name, score in model["vocab"]]
        if model.get("unk_token") is not None:
            model["unk_token"] = new(model["unk_token"])
        if "merges" in model:  # none makes a special token of text
            model["merges"] = [[a, b] for a, b in model["merges"] if not self.ids.keys() & {a, b, a + b}]
        self.backend = Backend.from_str(json.dumps(values))

    def encode(self, text, add_special):
        """Ids of a text, in which a name without a mark is a token.

        Raises:
            ValueError: such a name is no token where it stands.
        """
        found = self.names.findall(text)
        pieces = [piece.replace(self.mark, "") for piece in self.names.split(text)]
        pairs = zip(found, pieces[1:], strict=True)
        text = pieces[0] + "".join(self.mark + name + piece for name, piece in pairs)
        ids = self.backend.encode(text, add_special_tokens=add_special).ids
        counts = Counter(ids)
        lost = [name for name, times in Counter(found).items() if counts[self.ids[name]] < times]
        if lost:
            raise ValueError(f"{lost[0]!r} is a special token that cannot be told apart from text.")
        return ids
