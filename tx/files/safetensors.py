"""A folder with `config.json` and `.safetensors` files (chapter 10)."""

from .errors import CheckpointError
from .settings import read_config, read_json

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class SafeTensors:
    """A folder with `config.json` and `.safetensors` files; an index of shards is not needed."""

    def __init__(self, folder):
        from safetensors import SafetensorError, safe_open

        self.config = read_config(folder)
        files = sorted(folder.glob("*.safetensors"))
        odd = [f"damaged    {path.name}: no file, or a link to nothing" for path in files if not path.is_file()]
        if odd:
            raise CheckpointError(f"{folder} cannot be loaded", odd)
        if not files:
            pickles = [p.name for p in sorted(folder.iterdir()) if p.suffix in PICKLES]
            advice = "a pickle can run any program; convert it to safetensors"
            found = [f"pickle     {name}: {advice}" for name in pickles]
            raise CheckpointError(f"{folder} cannot be loaded", found or ["missing    *.safetensors"])
        self.files: dict = {}  # name of a weight -> the open file with it
        problems = []
        for path in files:
            try:
                file = safe_open(path, "pt")
                twice = self.files.keys() & set(file.keys())
                problems += [f"twice      {name}: also in {path.name}" for name in sorted(twice)]
                self.files |= dict.fromkeys(file.keys(), file)
            except (SafetensorError, OSError, ValueError) as error:
                problems.append(f"damaged    {path.name}: {error}")
        problems += self._missing_shards(folder, files)
        if problems:
            raise CheckpointError(f"{folder} cannot be loaded", problems)
        self.names = list(self.files)

    def _missing_shards(self, folder, files):
        index = folder / "model.safetensors.index.json"
        if not index.is_file():
            return []
        try:
            wanted = set(read_json(index)["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            return [f"damaged    {index.name}: {error}"]
        present = {path.name for path in files}
        return [f"missing    {name[:80]}   the index names it" for name in sorted(map(str, wanted - present))]

    def shape(self, name):
        return tuple(self.files[name].get_slice(name).get_shape())

    def get(self, name):
        return self.files[name].get_tensor(name)
