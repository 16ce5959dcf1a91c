"""Reading a family's `config.json`: every key with its default, every problem collected."""

import math

from ..config import Rope


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; the message lists every problem that was found."""

    def __init__(self, what, problems):
        self.problems = list(problems)
        plural = "s" if len(self.problems) != 1 else ""
        super().__init__(f"{what} ({len(self.problems)} problem{plural}):\n  " + "\n  ".join(self.problems))


class Reader:
    """A `config.json` that collects what is wrong with it.

    values: the file's dictionary. problems: one line each, "kind  key = value   expectation".
    """

    def __init__(self, values):
        self.values, self.problems = values, []

    def __call__(self, key, default=None):
        """The value of a key; a missing key or null gives the default."""
        value = self.values.get(key)
        return default if value is None else value

    def assume(self, **values):
        """What this family means by a key that its file leaves out; null stays null."""
        self.values = {**values, **self.values}

    def number(self, key, default=None):
        """A positive whole number; anything else is a problem.

        Layers and experts are objects even without memory for their weights, so there is a limit.
        """
        value = self(key, default)
        most = 1000 if "layer" in key or "expert" in key else 2**31 - 1
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            expected = "a positive whole number" + (f", at most {most}" if most == 1000 else "")
            self.problems.append(f"config     {key} = {value!r}   expected {expected}")
            return 1
        return value

    def refuse(self, key, allowed):
        """A switch that only has this value here; another one is a problem."""
        if self(key, allowed) != allowed:
            self.problems.append(f"switch     {key} = {self(key)!r}   only {allowed!r} is supported")

    def activation(self, key, default):
        """The name of an activation, in our words."""
        value = self(key, default)
        if value not in ACTIVATION_NAMES:
            known = ", ".join(sorted(ACTIVATION_NAMES))
            self.problems.append(f"unknown    {key} = {value!r}   known: {known}")
        return ACTIVATION_NAMES.get(value, "gelu")

    def rope(self, width, base=10000.0, layer_type=None, base_key="rope_theta", share=1.0):
        """Rotary positions, in the new spelling (`rope_parameters`) or the old ones.

        width: features of a head; the share that turns is in the file. layer_type: where the file
        nests parameters by kind of layer. base_key: where old files keep this kind's base. share: of
        the features that turns unless the file says so.
        """
        new = self("rope_parameters", {})
        if layer_type in new:
            new = new[layer_type] or {}
        old = self("rope_scaling", {}) if base_key != "rope_local_base_freq" else {}
        given = {**old, **new}
        kind = given.get("rope_type", given.get("type", "default"))
        if kind not in SCALINGS:
            self.problems.append(f"unknown    rope_type = {kind!r}   known: {', '.join(SCALINGS)}")
        share = given.get("partial_rotary_factor", self("partial_rotary_factor", self("rotary_pct", share)))
        longest = self("max_position_embeddings", 2048)
        trained = self("original_max_position_embeddings", longest)
        original = longest if kind == "dynamic" else given.get("original_max_position_embeddings", trained)
        factor = given.get("factor") or longest / original
        if kind == "longrope" and self("original_max_position_embeddings"):
            factor = longest / original
        magnitude = given.get("attention_factor")
        if kind == "yarn" and magnitude is None and given.get("mscale") and given.get("mscale_all_dim"):
            over, under = (0.1 * given[m] * math.log(factor) + 1.0 for m in ("mscale", "mscale_all_dim"))
            magnitude = over / under
        return Rope(
            base=float(given.get("rope_theta", self(base_key, base))),
            width=int(width * share), scaling=kind, factor=float(factor), original=int(original),
            beta_fast=float(given.get("beta_fast") or 32), beta_slow=float(given.get("beta_slow") or 1),
            truncate=given.get("truncate", True),
            low_freq_factor=float(given.get("low_freq_factor", 1.0)),
            high_freq_factor=float(given.get("high_freq_factor", 4.0)),
            short_factor=tuple(given.get("short_factor", ())),
            long_factor=tuple(given.get("long_factor", ())),
            magnitude=magnitude,
        )  # fmt: skip


SCALINGS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
ACTIVATION_NAMES = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
