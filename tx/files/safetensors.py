"""A folder with `config.json` and `.safetensors` files (chapter 10)."""

from .errors import CheckpointError
from .settings import read_config, read_json

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class SafeTensors:
    """A folder with `config.json` and `.safetensors` files.

    Read is `model.safetensors` if there is one, else the shards that an index names, else every file. What lies
    beside the first two, such as a copy in another form, is not read.
    """

    def __init__(self, folder):
        from safetensors import SafetensorError, safe_open

        self.folder, self.config = folder, read_config(folder)
        names, problems = _to_read(folder)
        self.files: dict = {}  # name of a weight -> the open file with it
        for name in names:
            if not (folder / name).is_file():
                problems.append(f"damaged    {name}: no file, or a link to nothing")
                continue
            try:
                file = safe_open(folder / name, "pt")
                twice = self.files.keys() & set(file.keys())
                problems += [f"twice      {weight}: also in {name}" for weight in sorted(twice)]
                self.files |= dict.fromkeys(file.keys(), file)
            except (SafetensorError, OSError, ValueError) as error:
                problems.append(f"damaged    {name}: {error}")
        if problems:
            raise CheckpointError(f"{folder} cannot be loaded", problems)
        self.names = list(self.files)

    def shape(self, name):
        return tuple(self.files[name].get_slice(name).get_shape())

    def get(self, name):
        from safetensors import SafetensorError

        try:
            return self.files[name].get_tensor(name)
        except SafetensorError as error:  # a type that torch does not have
            raise CheckpointError(f"{self.folder} cannot be loaded", [f"dtype      {name}: {error}"]) from error


def _to_read(folder):
    """Names of the files to read, and what is wrong with them."""
    present = sorted(path.name for path in folder.glob("*.safetensors"))
    if (folder / INDEX).is_file():
        try:
            wanted = set(read_json(folder / INDEX)["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            return [], [f"damaged    {INDEX}: {error}"]
        if wanted - set(present):
            absent = sorted(map(str, wanted - set(present)))
            return [], [f"missing    {name[:80]}   the index names it" for name in absent]
        return [WHOLE] if WHOLE in present else sorted(wanted), []
    if not present:
        advice = "a pickle can run any program; convert it to safetensors"
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        return [], [f"pickle     {name}: {advice}" for name in pickles] or ["missing    *.safetensors"]
    return [WHOLE] if WHOLE in present else present, []
