"""JSON files of a checkpoint: read, bounded, refused by name (chapter 10)."""

import json

from .errors import CheckpointError

MOST_JSON = 2**26  # bytes; the index of the largest models has a few million


def read_json(path, kind=dict):
    """The dictionary, or the list, in a JSON file.

    Raises:
        ValueError: no JSON, of another kind, nested without end, too large, or not to be read.
    """
    try:
        if path.stat().st_size > MOST_JSON:
            raise ValueError(f"{path.stat().st_size} bytes, expected {MOST_JSON} at most")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(values, kind):
        raise ValueError(f"expected a {kind.__name__}, found a {type(values).__name__}")
    return values


def read_settings(path, kind=dict):
    """The dictionary, or the list, in a JSON file that need not be there, empty then.

    Raises:
        CheckpointError: the file is damaged.
    """
    try:
        return read_json(path, kind) if path.is_file() else kind()
    except ValueError as error:
        raise CheckpointError(f"{path.parent} cannot be loaded", [f"damaged    {path.name}: {error}"]) from error


def read_config(folder):
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} is no checkpoint", ["missing    config.json"])
    try:
        return read_json(path)
    except ValueError as error:
        raise CheckpointError(f"{folder} cannot be loaded", [f"config     config.json: {error}"]) from error
