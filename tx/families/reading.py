"""Reading a family's `config.json`: every key with its default, every problem collected."""

import math

from ..config import Rope
from ..files.errors import shown


class Reader:
    """A `config.json` that collects what is wrong with it.

    values: the file's dictionary. problems: one line each, "kind  key = value   expectation". asked: its keys
    that were read, missing ones, too.
    """

    def __init__(self, values):
        self.values, self.problems, self.asked = values, [], set()

    def __call__(self, key, default=None):
        """The value of a key; a missing key or null gives the default. Another type than its is a problem."""
        self.asked.add(key)
        value = self.values.get(key)
        if value is None:
            return default
        kind = next((kind for kind in TYPES if isinstance(default, kind)), None)
        if kind is not None and not TYPES[kind][0](value):
            self.problem("config", key, value, f"expected {TYPES[kind][1]}")
            return default
        return value

    def problem(self, kind, key, value, expected):
        """Note what is wrong with a value, once."""
        line = f"{kind.ljust(10)} {key} = {shown(value)}   {expected}"
        if line not in self.problems:
            self.problems.append(line)

    def assume(self, **values):
        """What this family means by a key that its file leaves out; null stays null."""
        self.values = {**values, **self.values}

    def alias(self, **names):
        """Other names of keys, which the reference prefers: other = key."""
        given = {key: self.values[other] for other, key in names.items() if self.values.get(other) is not None}
        self.values = {**self.values, **given}

    def number(self, key, default=None):
        """A positive whole number; anything else is a problem.

        Layers and experts are objects even without memory for their weights, so there is a limit.
        """
        self.asked.add(key)
        value = self.values.get(key)
        value = default if value is None else value
        most = 1000 if "layer" in key or "expert" in key else 2**31 - 1
        if not _is_whole(value) or not 0 < value <= most:
            self.problem("config", key, value, "expected a positive whole number"
                         + (f", at most {most}" if most == 1000 else ""))  # fmt: skip
            return 1
        return value

    def window(self, default=None):
        """`sliding_window`, a positive whole number; null, or neither in the file nor a default, is None."""
        self.asked.add("sliding_window")
        given = self.values.get("sliding_window", default)
        return None if given is None else self.number("sliding_window", default)

    def refuse(self, key, allowed):
        """A switch that only has this value here; another one is a problem."""
        if self(key) not in (None, allowed):
            self.problem("switch", key, self(key), f"only {allowed!r} is supported")

    def activation(self, key, default):
        """The name of an activation, in our words."""
        value = self(key, default)
        if value not in ACTIVATION_NAMES:
            self.problem("unknown", key, value, f"known: {', '.join(sorted(ACTIVATION_NAMES))}")
        return ACTIVATION_NAMES.get(value, "gelu")

    def rope(self, width, base=10000.0, kind=None, base_key="rope_theta", share=None):
        """Rotary positions, in the new spelling (`rope_parameters`) or the old ones.

        width: features of a head. kind: of layer, where the file nests parameters by it. base_key: where old
        files keep the base. share: (old key, default) of the share of features that turns; None = all do.
        """
        new, old = self("rope_parameters", {}), self("rope_scaling", {})
        nested = [key for key, value in new.items() if isinstance(value, dict)]
        if new and bool(nested) != (kind is not None) or set(nested) - LAYER_TYPES:
            expected = f"{sorted(LAYER_TYPES)}, each with its own" if kind else "the same for all layers"
            self.problem("config", "rope_parameters", new, f"expected {expected}")
            new = {}
        if kind is None:
            given = top = Reader(old or new)  # as the reference, which reads one of the two
        else:
            top, own = Reader(new), new.get(kind) or {} if new else {"rope_type": "default"}
            given = Reader(own if base_key == "rope_local_base_freq" else own | old)
        scaling = given("rope_type", given("type", "default"))
        if scaling not in SCALINGS:
            self.problem("unknown", "rope_type", scaling, f"known: {', '.join(SCALINGS)}")
        for key in ("factor", "low_freq_factor", "high_freq_factor") if scaling != "longrope" else ():
            if key in SCALINGS.get(scaling, ()) and given(key) is None:
                self.problem("missing", key, None, f"expected a number, which rope_type = {scaling!r} needs")
        if share is None:
            self.refuse("partial_rotary_factor", 1.0)
            given.refuse("partial_rotary_factor", 1.0)
        else:
            width = int(width * given("partial_rotary_factor", float(self(*share))))
        longest = self.number("max_position_embeddings", 2048)
        original = given.number("original_max_position_embeddings", longest)
        if scaling == "dynamic":
            original = longest
        elif kind is None:  # what stands outside counts
            original = self.number("original_max_position_embeddings", original)
        values = dict(
            factor=given("factor", longest / original), original=original, truncate=top("truncate", True),
            beta_fast=given("beta_fast", 32.0) or 32.0, beta_slow=given("beta_slow", 1.0) or 1.0,
            low_freq_factor=given("low_freq_factor", 1.0), high_freq_factor=given("high_freq_factor", 4.0),
            short_factor=tuple(given("short_factor", [])), long_factor=tuple(given("long_factor", [])),
            magnitude=given("attention_factor"),
        )  # fmt: skip
        over, under = given("mscale", 0.0), given("mscale_all_dim", 0.0)
        if values["magnitude"] is None and over and under and values["factor"] > 1:
            grown = 0.1 * math.log(values["factor"])
            values["magnitude"] = (grown * over + 1.0) / (grown * under + 1.0)
        base = given("rope_theta", float(self(base_key, float(base))))
        self.problems = list(dict.fromkeys(self.problems + given.problems + top.problems))
        if self.problems:
            return Rope(base=1e4, width=2)  # refused all the same
        return Rope(base, width, scaling, **{name: values[name] for name in SCALINGS[scaling]})


def _is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


TYPES = {  # of a default: what a value must be, in code and in words
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (_is_whole, "a whole number"),
    float: (lambda value: _is_whole(value) or isinstance(value, float) and math.isfinite(value), "a number"),
    str: (lambda value: isinstance(value, str), "a text"),
    list: (lambda value: isinstance(value, list), "a list"),
    dict: (lambda value: isinstance(value, dict), "a dictionary"),
}
LAYER_TYPES = {"full_attention", "sliding_attention"}
SCALINGS = {  # of rope, with what each reads
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "original"),
    "yarn": ("factor", "original", "beta_fast", "beta_slow", "truncate", "magnitude"),
    "llama3": ("factor", "original", "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", "original", "short_factor", "long_factor", "magnitude"),
}
ACTIVATION_NAMES = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
