"""JSON files of a checkpoint: read, bounded, refused by name (chapter 10)."""

import json

from .errors import CheckpointError

MOST_JSON = 2**26  # bytes of a text; the index of the largest models has a few million
MOST_VALUES = 2**22  # in a file; each takes up to a hundred bytes, and a vocabulary has a million


def read_json(path, kind=dict):
    """The dictionary, or the list, in a JSON file.

    Raises:
        ValueError: no JSON, of another kind, nested without end, too large, or not to be read.
    """
    try:
        text = read_text(path)
        count = sum(map(text.count, ",[{"))
        if count > MOST_VALUES:
            raise ValueError(f"{count} values, expected {MOST_VALUES} at most")
        values = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(values, ensure_ascii=False).encode()  # half a character, which no library takes, fails
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(values, kind):
        raise ValueError(f"expected a {kind.__name__}, found a {type(values).__name__}")
    return values


def read_text(path):
    """The text of a file.

    Raises:
        ValueError: too large, not UTF-8, or not to be read.
    """
    try:
        size = path.stat().st_size
        if size > MOST_JSON:
            raise ValueError(f"{size} bytes, expected {MOST_JSON} at most")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from error


def read_settings(path, kind=dict):
    """The dictionary, or the list, in a JSON file that need not be there, empty then.

    Raises:
        CheckpointError: the file is damaged.
    """
    try:
        return read_json(path, kind) if path.is_file() else kind()
    except (ValueError, OSError) as error:  # the latter where a name is too long for one
        problem = f"damaged    {path.name[:80]}: {error}"
        raise CheckpointError(f"{path.parent} cannot be loaded", [problem]) from error


def read_config(folder):
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} is no checkpoint", ["missing    config.json"])
    try:
        return read_json(path)
    except ValueError as error:
        raise CheckpointError(f"{folder} cannot be loaded", [f"config     config.json: {error}"]) from error
