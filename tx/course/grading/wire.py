"""What crosses between the grader and the learner's code: JSON and raw tensor bytes.

Never a pickle: unpickling an object that the learner made would run the learner's code on the
grader's side. Numbers, strings, None, tensors, and lists, tuples and dicts of these cross by value;
anything else stays where it is and crosses as a handle.
"""

import json

import torch

DTYPES = {
    str(dtype): dtype
    for dtype in (
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64,
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    )
}  # fmt: skip
DEEPEST = 40
LARGEST = 1 << 28  # bytes of one message


class TooMuch(ValueError):
    """A value that is too deep, too long or too large to cross."""


def pack(value, as_handle=None):
    """Bytes of `value`. `as_handle(object)` gives JSON for what cannot cross by value."""
    blobs: list[bytes] = []
    tree = _encode(value, blobs, as_handle, 0)
    head = json.dumps([tree, [len(blob) for blob in blobs]]).encode()
    size = 8 + len(head) + sum(map(len, blobs))
    if size > LARGEST:
        raise TooMuch(f"{size / 1e6:.0f} MB are too much for one result")
    return b"".join([len(head).to_bytes(8, "big"), head, *blobs])


def unpack(data, from_handle=None):
    """The value in `data`. `from_handle(json)` gives the object that stands for a handle.

    Raises ValueError for bytes that `pack` did not make.
    """
    try:
        start = 8 + int.from_bytes(data[:8], "big")
        tree, sizes = json.loads(data[8:start])
        blobs = []
        for size in sizes:
            blobs.append(bytearray(data[start : start + size]))
            start += size
        return _decode(tree, blobs, from_handle)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, RecursionError) as error:
        raise ValueError(f"not a message of the grader: {error}") from None


def _encode(value, blobs, as_handle, depth):
    if depth > DEEPEST:
        raise TooMuch("a result this deeply nested cannot be read (does it contain itself?)")
    if value is None or type(value) in (bool, str, float):
        return value
    if type(value) is int and value.bit_length() < 10_000:
        return value
    if isinstance(value, torch.Tensor) and _is_plain(value):
        return _encode_tensor(value, blobs)
    if isinstance(value, (list, tuple)):
        tag = "list" if isinstance(value, list) else "tuple"
        return [tag, [_encode(v, blobs, as_handle, depth + 1) for v in value]]
    if isinstance(value, dict):
        pairs = [[_encode(x, blobs, as_handle, depth + 1) for x in kv] for kv in value.items()]
        return ["dict", pairs]
    if isinstance(value, float):  # numpy's float64 is a float, too
        return float.__float__(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _encode(value.item(), blobs, as_handle, depth + 1)
    if as_handle is None:
        raise TypeError(f"a {type(value).__name__} cannot cross to the learner's code")
    return ["handle", as_handle(value)]


def _is_plain(x):
    return x.layout == torch.strided and x.device.type == "cpu" and str(x.dtype) in DTYPES


def _encode_tensor(x, blobs):
    if x.numel() * x.element_size() + sum(map(len, blobs)) > LARGEST:
        raise TooMuch(f"a tensor of shape {tuple(x.shape)} is too much for one result")
    x = torch.Tensor.detach(x).resolve_conj().resolve_neg()
    order = sorted(range(x.ndim), key=lambda axis: -x.stride(axis))
    if not x.permute(order).is_contiguous():
        order = list(range(x.ndim))
    dense = x.permute(order).clone(memory_format=torch.contiguous_format)  # one number may have any stride
    flat = dense.reshape(-1)
    blobs.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return ["tensor", len(blobs) - 1, str(x.dtype), list(x.shape), order]


def _decode(tree, blobs, from_handle):
    if not isinstance(tree, list):
        return tree
    tag, *rest = tree
    if tag in ("list", "tuple"):
        items = [_decode(item, blobs, from_handle) for item in rest[0]]
        return items if tag == "list" else tuple(items)
    if tag == "dict":
        return {
            _decode(key, blobs, from_handle): _decode(item, blobs, from_handle)
            for key, item in rest[0]
        }
    if tag == "tensor":
        return _decode_tensor(blobs, *rest)
    if tag == "handle" and from_handle is not None:
        return from_handle(rest[0])
    raise ValueError(f"unknown tag {tag!r}")


def _decode_tensor(blobs, index, dtype, shape, order):
    dtype, blob = DTYPES[dtype], blobs[index]
    stored = [shape[axis] for axis in order]
    flat = torch.frombuffer(blob, dtype=dtype) if blob else torch.empty(0, dtype=dtype)
    back = sorted(range(len(order)), key=order.__getitem__)
    return flat.reshape(stored).permute(back)
