"""Chapter 3: which wrong masks and reshapes does the loss show, 24 seeds each?"""

import trial

PAGE, SEEDS = "03-masks", 24
CASES = ["causal", "no mask", "hides self", "split by view", "merge by reshape", "both"]


def run(case, seed):
    import torch

    page = trial.cells(PAGE, "masks-setup", "masks-reader", definitions=["masks-chunks", "masks-train"])
    attend = {"no mask": page["attention"], "hides self": page["hides_self"]}.get(case, page["causal_attention"])
    if case in ("split by view", "both"):
        page["split_heads"] = lambda x, H: x.reshape(len(x), H, x.shape[1], -1)  # (B, H, T, d_k)
    if case in ("merge by reshape", "both"):
        page["merge_heads"] = lambda x: x.reshape(len(x), x.shape[2], -1)  # (B, T, D)
    torch.manual_seed(seed)
    model = page["Reader"](attend)
    page["fit"](model, page["batch"], steps=300)
    rows = page["losses"](model)  # (T,)
    return {"seed": seed, "loss": round(rows.mean().item(), 5), "row 0": round(rows[0].item(), 5),
            "leaks": leaks(model)}


def leaks(model, T=12, V=8):
    """Whether a token moves a row before it."""
    import torch

    ids = torch.zeros(V, T, dtype=torch.long)  # (B, T)
    for t in range(1, T):
        other = ids.clone()  # (B, T)
        other[:, t] = torch.arange(V)
        with torch.no_grad():
            moved = (model(other) - model(ids)).abs()[:, :t]  # (B, t, V)
        if moved.max() > 5e-5:
            return True
    return False


def says(runs):
    for case, several in runs.items():  # the property finds what leaks, in every run, and nothing else
        assert {run["leaks"] for run in several} == {case not in ("causal", "both")}
    return [f"{SEEDS} seeds", *(trial.band(several, digits=2 if "by" in case else 3)
                                for case, several in runs.items())]


if __name__ == "__main__":
    trial.main()
