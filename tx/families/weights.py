"""Weight names: from a family's file to our parameters and back.

A family lists pairs of names; `{}` is the number of the layer. Both `.weight` and `.bias` follow. A fused
matrix names several of ours and says how its rows are laid out:

    "rows"      [all of q; all of k; all of v]                        MPT, ModernBERT, GPT-2
    "per head"  [q k v of head 0; q k v of head 1; …]                 NeoX, BLOOM, DeBERTa
    "row"       stored (1, n): BART's bias of the head
    "turned"    the matrix is stored (in, out), as GPT-2's Conv1D     combined: "turned rows"
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pair:
    """One name in the file, one or several of ours, and the layout."""

    theirs: str
    ours: tuple[str, ...]
    layout: str = ""

    def split(self, tensor, sizes, n_heads):
        """The file's tensor as ours, a list; `sizes` are the numbers of rows of each."""
        if self.layout == "row":
            return [tensor[0]]
        if "turned" in self.layout and tensor.dim() == 2:
            tensor = tensor.T
        if "per head" in self.layout:
            parts = tensor.unflatten(0, (n_heads, len(self.ours), -1)).unbind(1)
            return [part.flatten(0, 1) for part in parts]
        return list(tensor.split(sizes)) if len(self.ours) > 1 else [tensor]

    def join(self, tensors, n_heads):
        """Ours as the file's tensor: the way back."""
        if self.layout == "row":
            return tensors[0][None]
        if "per head" in self.layout:
            tensor = torch.stack([x.unflatten(0, (n_heads, -1)) for x in tensors], dim=1).flatten(0, 2)
        else:
            tensor = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        return tensor.T if "turned" in self.layout and tensor.dim() == 2 else tensor


def pairs(layer, text, ours="stack.blocks.{}"):
    """Pairs from lines `theirs = ours [: layout]`.

    A name that begins with a dot continues `layer`, the file's name of a layer, or `ours`; of one
    in parentheses, `.attention.(query key value)`, each word is a name of its own.
    """
    found = []
    for line in text.strip().splitlines():
        names, _, layout = line.partition(":")
        theirs, mine = (name.strip() for name in names.split("="))
        theirs = layer + theirs if theirs.startswith(".") else theirs
        mine = ours + mine if mine.startswith(".") else mine
        stem, _, words = mine.rstrip(")").partition("(")
        found.append(Pair(theirs, tuple(stem + word for word in words.split()) or (mine,), layout.strip()))
    return found


def expand(entries, parameters, config):
    """[(file name, [our names], pair)] for every parameter of a model.

    entries: pairs with `{}` for the layer and `{e}` for the expert. parameters: the model's names.
    """
    n_layers = max(config.n_layers, config.encoder.n_layers if config.encoder else 0)
    found = []
    for pair in entries:
        text = pair.theirs + pair.ours[0]
        for layer in range(n_layers) if "{}" in text else [0]:
            for expert in range(config.n_experts) if "{e}" in text else [0]:

                def at(name, layer=layer, expert=expert):
                    return name.replace("{}", str(layer)).replace("{e}", str(expert))

                for end in ("", ".weight", ".bias"):
                    ours = [at(name) + end for name in pair.ours]
                    if all(name in parameters for name in ours):
                        found.append((at(pair.theirs) + end, ours, pair))
    return found
