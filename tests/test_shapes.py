"""Shape comments: the grammar, the checks, and the share of planted swaps that they find."""

import ast
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from tx.course.authoring import shapes

ROOT = Path(__file__).resolve().parents[1]


def findings(*cells, owner="page"):
    """What a notebook of these cells, or a module for owner None, leaves to complain about."""
    recorder, names = shapes.Recorder().install(), {"torch": torch}
    for n, source in enumerate(cells):
        tree = shapes.instrument(source, recorder, lambda line, n=n: f"{n}:{line}", owner)
        exec(compile(tree, f"cell {n}", "exec"), names)
    return shapes.findings(recorder)


# ── the grammar ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", [
    "# (B, H, T, d_k)", "# (B, T, D)   words follow", "# (T,)", "# ()", "# (T, T), (T,)", "# (T+1, H*d_k)",
    "# (..., T, S)", "# (...)", "# (B or 1, T)", "# (T,) or (B, T)", "# (2, 3)", "#(T, S)",
])
def test_shapes_are_read(text):
    assert shapes.parse(text)


@pytest.mark.parametrize("text", [
    "# (T)", "# (B, T D)", "# (B, T) words after one space", "# (B, T", "# (see chapter 3)", "# (T/2, D)",
    "# (B or 2, T)", "# the scores (B, H, T, S)", "# weights: (T, S)",
])
def test_what_only_looks_like_a_shape_is_an_error(text):
    with pytest.raises(shapes.Unreadable):
        shapes.parse(text)


@pytest.mark.parametrize("text", ["# the last query", "# 2 of 3 (or more)", "# f(x, y) is odd", "#"])
def test_words_are_left_alone(text):
    assert shapes.parse(text) is None


# ── what is checked ──────────────────────────────────────────────────────────────────────────────

RIGHT = {
    "assignment": "x = torch.zeros(2, 3)  # (T, D)\ny = x.T  # (D, T)",
    "tuple": "a, b = torch.zeros(2, 3), torch.zeros(3)  # (T, D), (D,)",
    "one shape for all": "a, b, c = torch.zeros(6, 3).chunk(3)  # (T, D)",
    "numbers are passed over": "n, x = 3, torch.zeros(2, 3)  # (T, D)",
    "augmented": "x = torch.zeros(2, 3)  # (T, D)\nx += 1  # (T, D)",
    "return": "def f(x):\n    return x.T  # (D, T)\nf(torch.zeros(2, 3))",
    "target of a loop": "x = torch.zeros(2, 3)  # (T, D)\nfor row in x:  # (D,)\n    pass",
    "append": "rows, x = [], torch.zeros(2, 3)  # (T, D)\nrows.append(x[0])  # (D,)",
    "argument": "def f(\n    x,  # (T, D)\n    y,  # (D,)\n):\n    return x @ y  # (T,)\n"
                "f(torch.zeros(2, 3), torch.zeros(3))",
    "docstring": "def f(x):\n    '''x (T, D)'''\n    return x.sum(0)  # (D,)\nf(torch.zeros(2, 3))",
    "refused first": "def _check_x(x):\n    assert x.ndim == 2\n"
                     "def f(x):\n    '''x (T, D)'''\n    if len(x) > 1:\n        _check_x(x)\n"
                     "    return x.sum(0)  # (D,)\nf(torch.zeros(2, 3))\n"
                     "try:\n    f(torch.zeros(4))\nexcept AssertionError: pass",
    "inside an expression": "x = torch.cat([\n    torch.zeros(2, 3),  # (T, D)\n"
                            "    torch.zeros(4, 3),  # (S, D)\n])  # (T+S, D)",
    "chain": "x = (torch.zeros(4, 6)  # (T, H*d_k)\n     .view(4, 3, 2)  # (T, H, d_k)\n"
             "     .transpose(0, 1))  # (H, T, d_k)",
    "a letter known later": "x = torch.zeros(4, 6)  # (T, H*d_k)\ny = x.view(4, 3, 2)  # (T, H, d_k)",
    "a variable": "T, D = 2, 3\nx = torch.zeros(T, D)  # (T, D)",
    "each turn anew": "for n in (2, 5):\n    x = torch.zeros(n, 3)  # (T, D)",
    "a call of its own": "def f(x):\n    return x  # (T, D)\n"
                         "a, b = f(torch.zeros(2, 3)), f(torch.zeros(3, 2))",
    "scalar": "x = torch.zeros(2, 3)  # (T, D)\nx.sum()  # ()",
    "an axis that may be 1": "x = torch.zeros(2, 3)  # (T, D)\ny = x[:1]  # (T or 1, D)",
    "either": "x = torch.zeros(2, 3)  # (B, T)\ny = x[0]  # (T,) or (B, T)",
    "any axes before": "x = torch.zeros(4, 2, 3)  # (..., T, D)\ny = x.mT  # (..., D, T)",
    "a size": "x = torch.zeros(2, 3)  # (T, D)\nx.T.shape  # (D, T)",
    "attribute and item": "class C: pass\nc = C()\nc.x = torch.zeros(2, 3)  # (T, D)\nc.x[0] = 1.0  # (D,)",
    "comprehension": "x = torch.zeros(2, 3)  # (T, D)\ny = [row * 2 for row in x]  # (D,)",
    "array": "x = torch.zeros(2, 3).numpy()  # (T, D)\ny = x.T  # (D, T)",
}


@pytest.mark.parametrize("case", RIGHT)
def test_right_comments_pass_and_every_one_is_checked(case):
    assert findings(RIGHT[case]) == []


def swapped(claims):
    """Every way to swap two neighbouring axes of one of the shapes, as other claims."""
    for c, alternatives in enumerate(claims):
        for a, shape in enumerate(alternatives):
            for n in range(len(shape) - 1):
                one, two = shape[n], shape[n + 1]
                if one.text != "..." and one.text != two.text:
                    other = (*shape[:n], two, one, *shape[n + 2:])
                    choice = (*alternatives[:a], other, *alternatives[a + 1:])
                    yield (*claims[:c], choice, *claims[c + 1:])


@pytest.mark.parametrize("case", RIGHT)
def test_a_wrong_axis_in_any_of_them_is_found(case):
    """Another number of axes in the last comment of each."""
    source = RIGHT[case]
    at = source.rindex("# (")
    wrong = source[:at] + source[at:].replace("# (", "# (7, ", 1)
    assert findings(wrong)


@pytest.mark.parametrize("case, source", {
    "one letter, two sizes": "x = torch.zeros(2, 3)  # (T, T)",
    "a swap against a variable": "T, D = 2, 3\nx = torch.zeros(T, D)  # (D, T)",
    "a swap against a docstring": "def f(x):\n    '''x (T, D)'''\n    return x.T  # (T, D)\n"
                                  "f(torch.zeros(2, 3))",
    "a product": "x = torch.zeros(2, 6)  # (T, H*d_k)\ny = x.view(2, 2, 3)[:, :, :2]  # (T, H, d_k)",
    "two shapes for three": "a, b, c = torch.zeros(3, 2)  # (T,), (T,)",
    "a line that never ran": "if False:\n    x = torch.zeros(2, 3)  # (T, D)",
    "a line without a tensor": "x = 3  # (T, D)",
    "a with that binds nothing": "with torch.no_grad():  # (T, D)\n    pass",
    "a comment that stands alone": "# (T, D)\nx = 3",
    "a comment that cannot be read": "x = torch.zeros(2, 3)  # (T, D) words",
    "letters of one size": "x = torch.zeros(3, 3)  # (T, D)",
}.items(), ids=lambda x: x if "=" not in x else "")
def test_wrong_comments_are_found(case, source):
    assert findings(source)


def test_a_later_cell_is_bound_by_the_tensors_it_reads():
    first, last = "x = torch.zeros(2, 3)  # (T, D)", "y = x.sum(0)  # (D,)"
    assert findings(first, last) == []
    assert findings("x = torch.zeros(2, 3)  # (D, T)", last)
    assert findings(first, "x = torch.zeros(5, 4)  # (T, D)") == []  # a new x is no x of before


def test_letters_that_have_to_be_equal_say_why():
    assert findings("# T = D: a square\nx = torch.zeros(3, 3)  # (T, D)") == []


def test_each_function_of_a_module_tells_its_letters_apart():
    source = "def f(x):\n    return x  # (T, D)\ndef g(x):\n    return x  # (T, D)\nf(torch.zeros(2, 3))\n"
    assert findings(source + "g(torch.zeros(3, 3))", owner=None)
    assert findings(source + "g(torch.zeros(4, 3))", owner=None) == []
    assert findings(source + "g(torch.zeros(3, 3))", owner="one page") == []


# ── planted swaps ────────────────────────────────────────────────────────────────────────────────


def planted_in(what, where):
    """How many swaps were planted in the comments of `where` while `what` runs, and those that no check sees."""
    recorder = shapes.Recorder(log=[])
    with shapes.watched(recorder):
        assert (shapes.run_notebook(ROOT / what, recorder) if what else shapes.run_tests(recorder)) == []
    assert not [c for c in recorder.comments if c.failure]
    missed, planted = [], 0
    for number, comment in enumerate(recorder.comments):
        ours = comment.where.startswith(where) and comment.text.startswith("#")  # no docstrings
        for claims in swapped(comment.shapes) if ours else ():
            planted += 1
            if not recorder.replay(number, claims):
                axes = " | ".join(str([axis.text for axis in shape]) for c in claims for shape in c)
                missed.append(f"{comment.where}: {comment.text} as {axes}")
    return planted, missed


def share_found(what, where):
    """The same in a process of its own, where no test has imported `tx` yet: the number, and the share missed."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        planted, missed = pool.submit(planted_in, what, where).result()
    print(f"\n{1 - len(missed) / planted:.0%} of {planted} planted swaps found, not:", *missed, sep="\n  ")
    return planted, len(missed) / planted


@pytest.mark.slow
def test_planted_swaps_in_the_comments_of_tx():
    planted, missed = share_found(None, "tx/")
    assert planted > 400 and missed < 0.06  # what is left: lines whose letters nothing else in the call binds


@pytest.mark.slow
def test_planted_swaps_in_the_comments_of_a_chapter():
    planted, missed = share_found("book/01-attention.ipynb", "01-attention")
    assert planted > 50 and missed < 0.13  # measured: .118, in cells where nothing else binds the letters


def use_tx():
    """Call the first chapters' functions once, with sizes that are all different."""
    import tx

    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 9)
    real = torch.ones(2, 7, dtype=torch.bool)
    mask = tx.causal() & tx.padding(real)
    for how in ("sdpa", "explicit"):
        for bias in (None, torch.randn(5, 7)):
            tx.attention(q, k, v, mask, bias=bias, how=how)
    tx.attention(q, k, v, mask, softcap=9.0, sinks=torch.randn(6))
    layer = tx.MultiHeadAttention(12, 3)
    layer(torch.randn(2, 5, 12), source=torch.randn(2, 7, 12))
    layer(torch.randn(2, 5, 12), tx.documents(torch.arange(10).view(2, 5)), return_weights=True)
    full = tx.as_mask(torch.ones(2, 6, 5, 7, dtype=torch.bool))
    placed = full.at(torch.arange(2, 7).expand(2, -1), torch.arange(7).expand(2, -1))
    tx.to_additive(full, (2, 6, 5, 7)), tx.to_mha(full, (2, 6, 5, 7)), placed.dense((2, 6, 5, 7))


def use_positions():
    """The same for every position scheme."""
    from tx import positions
    from tx.config import Rope

    where, q_slots, k_slots = torch.randn(2, 5).argsort(1), torch.arange(3, 8)[None], torch.arange(8)[None]
    q, k = torch.randn(2, 6, 5, 10), torch.randn(2, 3, 8, 10)
    positions.Learned(9, 12).embed(where), positions.Sinusoidal(12).embed(where)
    ropes = [Rope(100.0, 8, scaling, 2.0, original, short_factor=(1.0,) * 4, long_factor=(2.0,) * 4)
             for scaling in ("default", "linear", "dynamic", "yarn", "llama3", "longrope") for original in (4, 8)]
    schemes = [positions.Rotary(rope) for rope in ropes]
    schemes += [positions.Alibi(6), positions.Alibi(8), positions.T5Bias(4, 9, 6, True)]
    for scheme in schemes:
        table = scheme.tables(where, q_slots, k_slots)
        scheme.turn(q, k[:, :, :5], table), scheme.bias(q, k, table, None)
    rows = torch.randn(1, 6, 14, 10)
    for buckets in (0, 6):
        scheme = positions.Disentangled(7, 12, buckets, 9)
        scheme.bias(q, k.repeat_interleave(2, 1), scheme.tables(where, q_slots, k_slots), lambda _: (rows, rows))


def use_block():
    """The same for a stack: with a cache and padding, of experts, from two sides, reading a memory."""
    from tx.cache import Cache
    from tx.config import Config
    from tx.stack import Stack

    sizes = dict(vocab_size=13, d_model=12, n_layers=2, n_heads=6, n_kv_heads=3, d_head=4, d_ff=20,
                 max_positions=11, d_embedding=10)  # fmt: skip
    tokens = torch.arange(10).view(2, 5)
    real = torch.ones(2, 7, dtype=torch.bool)
    real[0, 0] = False
    for more in (
        {"norm": "rms", "gated": True, "n_experts": 4, "experts_per_token": 3, "embedding_scale": 2.0},
        {"norm": "rms_plus_one", "norm_place": "sandwich", "n_segments": 2, "qk_norm": "head"},
        {"norm_place": "post", "positions_skip_pad": 3, "positions": "none", "causal": False},
        {"norm_place": "output", "qk_norm": "full"},
        {"parallel": True},
        {"positions": "alibi"},
    ):
        config = Config(**sizes, **more)
        cache, cross = Cache(config), config.norm_place in ("pre", "post") and not config.parallel
        stack, memory = Stack(config, cross=cross), torch.randn(2, 8, 12) if cross else None
        stack(tokens[:, :2], real[:, :2], cache=cache, memory=memory)
        stack(tokens, real, cache=cache, memory=memory)
        stack(tokens, memory=memory)


def planted_in_code(path):
    """(line, source) for each commented line whose tensor gets two neighbouring axes swapped."""
    source = path.read_text(encoding="utf-8")
    comments = {line: shapes.parse(text) for line, text, alone in shapes._comments(source)
                if not alone and text.startswith("# (")}
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.walk(ast.parse(source)):
        claims = comments.get(getattr(node, "end_lineno", 0), ())
        if not isinstance(node, (ast.Assign, ast.Return)) or len(claims) != 1:
            continue
        if any(isinstance(x, ast.Tuple) for x in (node.value, *getattr(node, "targets", ()))):
            continue  # one shape for several tensors
        axes = [axis.text for axis in claims[0][0]]
        first = starts[node.value.lineno - 1] + node.value.col_offset
        last = starts[node.value.end_lineno - 1] + node.value.end_col_offset
        for n in range(1, len(axes)):
            if axes[-n] != axes[-n - 1] and axes[-n - 1] != "...":
                swap = f"(lambda x: x if x is None else x.transpose(-{n}, -{n + 1}))(".encode()
                text = source.encode()
                yield node.lineno, (text[:first] + swap + text[first:last] + b")" + text[last:]).decode()


@pytest.mark.slow
def test_a_swap_in_the_code_of_tx_turns_red():
    planted, missed, uses = 0, [], {"positions": use_positions, "block": use_block}
    for module in ("scaled_dot_product", "multihead", "masks", "positions", "block"):
        for line, changed in planted_in_code(ROOT / "tx" / f"{module}.py"):
            planted += 1
            recorder = shapes.Recorder()

            def change(name, source, module=module, changed=changed):
                return changed if name == f"tx.{module}" else source

            with shapes.watched(recorder, change):
                try:
                    uses.get(module, use_tx)()
                except (RuntimeError, ValueError, IndexError):
                    continue
            if not any(c.failure for c in recorder.comments):
                missed.append(f"{module}:{line}")
    assert planted > 60 and not missed, f"{len(missed)} of {planted} went unseen: {missed}"


def test_nothing_turns_red_where_nothing_is_planted():
    recorder = shapes.Recorder()
    with shapes.watched(recorder):
        use_tx(), use_positions(), use_block()
    assert not [c for c in recorder.comments if c.failure]
    assert sum(c.checked > 0 for c in recorder.comments) > 130
