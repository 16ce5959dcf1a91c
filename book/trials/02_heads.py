"""Chapter 2: how often do two heads find the difference of two prices, 48 seeds each?"""

import trial

PAGE, SEEDS = "02-many-heads", 48
CASES = {"two heads": {"H": 2}, "flat start": {"H": 2, "spread": 0.1}, "four heads": {"H": 4},
         "flat start, scale 1/√D": {"H": 2, "spread": 0.1}}
WORDS = {"flat start": "a flat start", "four heads": "four heads",
         "flat start, scale 1/√D": "a flat start and the scale 1/√D"}


def run(case, seed):
    page = trial.cells(PAGE, "setup", "task", "measure", definitions=["two-heads-run"])
    if case.endswith("√D"):
        similarity = page["similarity"]
        page["similarity"] = lambda q, k: similarity(q, k, scale=16**-0.5)
    model, loss = page["learn"](page["Heads"], seed, **CASES[case])
    start, end = ([round(gain, 3) for gain in gains] for gains in (model.start, page["gains"](model)))
    return {"seed": seed, "loss": round(loss, 5), "start": start, "end": end,
            "jars": model.weights[0].argmax(-1).tolist()}  # of each head and question


def says(runs):
    pair = runs["two heads"]
    stuck = [run for run in pair if run["loss"] > 0.5]
    alike = [run for run in pair if run["start"][0] * run["start"][1] > 0]
    same = [run for run in stuck if run["jars"][0] == run["jars"][1]]
    idle = [run for run in stuck if min(map(abs, run["end"])) < 0.05]
    assert all(run in alike for run in stuck) and len(same) + len(idle) == len(stuck)
    bad = {case: sum(run["loss"] > 0.5 for run in several) for case, several in runs.items()}
    return [f"{SEEDS} seeds", f"{len(stuck)} of {len(alike)} starts with equal signs",
            f"none of {SEEDS - len(alike)} with opposite ones", f"In {len(same)} both heads",
            f"in {len(idle)} one head",
            *(f"with {words}: {bad[case]}" for case, words in WORDS.items())]


if __name__ == "__main__":
    trial.main()
