"""Chapter 1: associative recall with attention, with the plain mean, and with tied matrices, 24 seeds each."""

import trial

PAGE, SEEDS = "01-attention", 24
CASES = ["attention", "mean", "q = k", "k = v"]


def run(case, seed):
    import torch

    page = trial.cells(PAGE, "setup", "quote", "recall-model", definitions=["recall-train"])
    torch.manual_seed(seed)
    model = page["Recall"](selects=case != "mean")
    if case == "q = k":
        model.k = model.q
    if case == "k = v":
        model.v = model.k
    losses = page["fit"](model, page["draw"], steps=250)
    return {"seed": seed, "loss": round(sum(losses[-20:]) / 20, 6)}


def says(runs):
    return [f"{SEEDS} seeds", *(trial.band(runs[case], digits=2 if case == "mean" else 4) for case in CASES)]


if __name__ == "__main__":
    trial.main()
