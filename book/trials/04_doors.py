"""Chapter 4: the token before, without positions and by each of the three doors, 12 seeds each."""

import trial

PAGE, SEEDS = "04-positions", 12
CASES = ["no mask", "causal", "sinusoidal", "learned", "RoPE", "ALiBi", "T5"]


def run(case, seed):
    import torch

    page = trial.cells(PAGE, "positions-setup", "positions-through", definitions=["positions-nope"])
    page["V"] = page["T"] = 8
    rope = page["SimpleNamespace"](base=100.0, width=8, scaling="default")
    scheme = {
        "sinusoidal": lambda: page["Sinusoidal"](32), "learned": lambda: page["Learned"](8, 32),
        "RoPE": lambda: page["Rotary"](rope), "ALiBi": lambda: page["Alibi"](4),
        "T5": lambda: page["T5Bias"](8, 16, 4, bidirectional=False),
    }.get(case, page["Positions"])  # fmt: skip
    torch.manual_seed(seed)
    model = page["Reader"](scheme(), None if case == "no mask" else page["causal"]())
    page["fit"](model, page["batch"], steps=200, lr=2e-2)
    ids, wanted = page["batch"](2048)  # (B, T), (B, T-1)
    with torch.no_grad():
        loss = page["F"].cross_entropy(model(ids).flatten(0, 1), wanted.flatten())  # ()
    found = {"seed": seed, "loss": round(loss.item(), 5)}
    if case == "learned":  # the mean cosine of neighbouring rows
        rows = model.scheme.table.weight.detach()  # (T, D)
        near = page["F"].cosine_similarity(rows[:-1], rows[1:], dim=-1)  # (T-1,)
        found["neighbours"] = round(near.mean().item(), 5)
    return found


def says(runs):
    assert min(run["loss"] for case in ("no mask", "causal") for run in runs[case]) > 1.21  # nobody passes a floor
    assert min(run["loss"] for run in runs["no mask"]) > 1.945
    return [f"{SEEDS} seeds", *(trial.band(several, digits=3) for several in runs.values()),
            trial.band(runs["learned"], "neighbours", 2).replace("-", "−")]


if __name__ == "__main__":
    trial.main()
