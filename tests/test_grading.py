"""The grader: its wire, its verdicts, what it survives, and what it says."""

import contextlib
import dataclasses
import inspect
import json
import linecache
import math
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the synthetic course, whatever the import mode

import grading_course as course  # noqa: E402

from tx.course import contracts  # noqa: E402
from tx.course.authoring import proof  # noqa: E402
from tx.course.grading import live, plugin, processes, tables, wire  # noqa: E402
from tx.course.grading import report as words  # noqa: E402
from tx.course.grading.advice import advise  # noqa: E402
from tx.course.grading.comparing import compare, name_of, telling  # noqa: E402
from tx.course.grading.impl import Gone, InProcess, TimedOut, time_limit  # noqa: E402
from tx.course.grading.learner import captured  # noqa: E402
from tx.course.grading.notebook import (  # noqa: E402
    Notebook,
    Unreadable,
    as_it_came,
    fingerprint,
    without_magics,
)
from tx.course.grading.progress import Progress  # noqa: E402
from tx.course.grading.sandbox import Sandbox, Worker  # noqa: E402
from tx.course.grading.submission import Submission, judge_notebook, students  # noqa: E402

pytest_plugins = ("pytester",)
mutants = proof.mutants()

# ── the wire ─────────────────────────────────────────────────────────────────────────────────────

VALUES = [
    None, True, 3, 2**70, -0.5, math.inf, "né", [1, (2, [3])], {"a": 1, (1, 2): None, 0: "x"},
    torch.tensor(1.5), torch.arange(6).view(2, 3), torch.empty(0, 3), torch.ones(2, 3) > 0,
    torch.randn(2, 3, dtype=torch.float64), torch.randn(3).bfloat16(), torch.randn(3).half(),
    torch.randn(2, 3, 4).transpose(1, 2), torch.ones(1).expand(4), torch.tensor([math.nan, math.inf]),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_cross_unchanged(value):
    back = wire.unpack(wire.pack(value))
    assert type(back) is type(value)
    assert compare(value, back, tolerance=0) is None
    if isinstance(value, torch.Tensor):
        assert back.dtype == value.dtype


def test_strides_cross_so_that_view_fails_as_it_would():
    x = torch.randn(2, 3, 4).transpose(1, 2)
    assert wire.unpack(wire.pack(x)).stride() == x.stride()


def test_numpy_scalars_cross_as_numbers_and_arrays_do_not():
    assert wire.unpack(wire.pack([np.int64(3), np.float64(0.5), np.bool_(True)])) == [3, 0.5, True]
    with pytest.raises(TypeError, match="ndarray"):
        wire.pack(np.zeros(3))


def test_nothing_that_contains_itself_crosses():
    endless = []
    endless.append(endless)
    with pytest.raises(wire.TooMuch):
        wire.pack(endless)


HOSTILE = [
    b"", b"\x00" * 8, b"\xff" * 100, b"\x80\x04cposix\nsystem\n",
    wire.pack(torch.zeros(2))[:-1],
    wire.pack(torch.zeros(2)).replace(b"[2]", b"[9]"),
    wire.pack(torch.zeros(2)).replace(b"float32", b"storage"),
    wire.pack(["x"]).replace(b"list", b"eval"),
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_bytes_that_are_no_message_are_refused(data):
    with pytest.raises(ValueError):
        wire.unpack(data)


# ── comparing ────────────────────────────────────────────────────────────────────────────────────

DIFFERENT = [
    (torch.zeros(2), torch.zeros(1), "shape"), (torch.zeros(2, 1), torch.zeros(2), "shape"),
    (torch.zeros(2), 0.0, "type"), (0.0, torch.zeros(()), "type"), (torch.zeros(2), None, "nothing"),
    (torch.zeros(2), torch.zeros(2).long(), "dtype"), (torch.zeros(1), torch.tensor([math.nan]), "value"),
    (torch.tensor([math.inf]), torch.tensor([-math.inf]), "value"),
    (torch.zeros(1), -5 * torch.ones(1), "value"),
    (3, 3.0, "type"), (1, True, "type"), (0.5, math.nan, "value"), ("a", "b", "value"),
    ((1, 2), (1, 2, 3), "shape"), ({"a": 1}, {"b": 1}, "shape"), ([torch.zeros(2)], [torch.ones(2)], "value"),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "got", "kind"), DIFFERENT, ids=str)
def test_what_differs_is_found(expected, got, kind):
    assert compare(expected, got).kind == kind


SAME = [
    (torch.zeros(2), torch.zeros(2).double() + 4e-5), (0.5, 0.50004), (1.0, 1), ([1], (1,)),
    (torch.tensor([1e6]), torch.tensor([1e6 + 5])), (torch.tensor([math.inf]), torch.tensor([math.inf])),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "got"), SAME, ids=str)
def test_what_is_the_same_passes(expected, got):
    assert compare(expected, got) is None


# ── judging in this process ──────────────────────────────────────────────────────────────────────


def checked(f):
    """f(x, n), with the error that the exercise asks for."""

    def answer(x, n):
        if n < 0:
            raise ValueError("n")
        return f(x, n)

    return answer


ANSWERS = {
    "right": (lambda x, n: x * n, "passed", ""),
    "another right one": (lambda x, n: sum([x] * n) if n else 0 * x, "passed", ""),
    "nothing": (lambda x, n: None, "wrong", "forget `return`"),
    "a number": (lambda x, n: 1.0, "wrong", "a float tensor of shape (2, 3) expected"),
    "an array": (lambda x, n: np.zeros(3), "wrong", "got a NumPy array"),
    "wrong rank": (lambda x, n: (x * n)[None], "wrong", "shape (2, 3) expected, got (1, 2, 3)"),
    "one row": (lambda x, n: (x * n)[:1], "wrong", "shape (2, 3) expected"),
    "integers": (lambda x, n: (x * n).long(), "wrong", "a float tensor expected, got integer"),
    "nan": (lambda x, n: x * n * math.nan, "wrong", "got nan"),
    "an error": (lambda x, n: x.nope, "error", "AttributeError: 'Tensor' object has no attribute"),
    "in place": (lambda x, n: x.mul_(n), "wrong", "changes its argument x in place"),
    "an exit": (lambda x, n: sys.exit(0), "error", "SystemExit"),
    "a skip": (lambda x, n: pytest.skip("not today"), "error", "Skipped: not today"),
    "endless recursion": (lambda x, n: ANSWERS["endless recursion"][0](x, n), "error", "RecursionError"),
    "torch's own": (lambda x, n: torch.mul(x, n), "borrowed", "it calls torch.mul"),
    "its method": (lambda x, n: x.mul(n), "borrowed", "it calls torch.mul"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_verdict_and_reason(name):
    function, state, reason = ANSWERS[name]
    report = course.times.judge(checked(function))
    assert (report.state, reason in report.reason) == (state, True), report
    assert report.points == (2 if state == "passed" else 0)


def test_a_stub_is_to_do_and_untouched_by_the_reference():
    def stub(x, n):
        raise NotImplementedError

    report = course.times.judge(stub)
    assert report.state == "todo" and not words.details(report)


def test_a_borrowed_answer_cannot_hide_behind_an_except():
    def sly(x, n):
        try:
            return torch.mul(x, n)
        except BaseException:
            return x * n

    assert course.times.judge(sly).state == "borrowed"
    assert torch.mul(torch.ones(1), 2) == 2  # the traps are gone


def test_a_name_that_was_imported_before_is_trapped_too():
    from tx import softmax

    space = {"softmax": softmax}
    exec("def f(x, n):\n    softmax(x)\n    return x * n", space)
    assert course.times.judge(space["f"]).state == "borrowed"
    assert space["softmax"] is softmax


@pytest.mark.slow
def test_a_module_that_is_loaded_late_is_trapped_from_the_next_call_on(judged, monkeypatch):
    monkeypatch.setattr(course.times, "out_of_reach", ("colorsys.rgb_to_hsv",))
    late = answer("import colorsys\ncolorsys.rgb_to_hsv(1, 1, 1)\nreturn x * n")
    early = answer("rgb_to_hsv(1, 1, 1)\nreturn x * n")
    assert judged(late).state == "borrowed"
    assert judged("from colorsys import rgb_to_hsv", early).state == "borrowed"


WAYS = {
    "torch.softmax": [
        lambda x: torch._softmax(x, -1, False), lambda x: torch.ops.aten.softmax(x, -1),
        lambda x: torch.ops.aten._softmax.default(x, -1, False), lambda x: torch._VF.softmax(x, -1),
        lambda x: torch._C._VariableFunctions._softmax(x, -1, False), lambda x: torch._safe_softmax(x, -1),
        lambda x: torch._C._special.special_softmax(x, -1), lambda x: torch.sparse.softmax(x.to_sparse(), -1),
    ],
    "torch.nn.functional.cross_entropy": [
        lambda x: torch._C._nn.cross_entropy_loss(x, torch.zeros(2).long()),
        lambda x: torch.ops.aten.cross_entropy_loss(x, torch.zeros(2).long()),
    ],
    "torch.nn.functional.scaled_dot_product_attention": [
        lambda x: torch._C._nn.scaled_dot_product_attention(x, x, x),
        lambda x: torch._scaled_dot_product_attention_math(x, x, x),
    ],
    "torch.cdist": [lambda x: torch._VF.cdist(x, x, 2.0, None), lambda x: torch._euclidean_dist(x, x)],
    "torch.func.grad": [
        lambda x: x.requires_grad_().sum().backward(), lambda x: torch.func.jvp(torch.sum, (x,), (x,)),
        lambda x: torch.func.jacfwd(torch.sum)(x), lambda x: torch.func.linearize(torch.sum, x),
        lambda x: torch.autograd.functional.hvp(lambda x: (x * x).sum(), x, x),
        lambda x: torch.autograd.graph._engine_run_backward((x.requires_grad_().sum(),), (x,), False),
        lambda x: forward_slope(x),
    ],
}  # fmt: skip
ANOTHER_THING = {
    "torch.softmax": [lambda x: torch.log_softmax(x, -1), lambda x: torch._log_softmax(x, -1, False)],
    "torch.nn.functional.nll_loss": [lambda x: torch.nn.functional.poisson_nll_loss(x, x)],
    "torch.cdist": [lambda x: torch.dist(x, x)],
    "torch.func.grad": [lambda x: torch.func.vmap(torch.sum)(x.requires_grad_()).detach()],
    "torch._safe_softmax": [lambda x: torch.softmax(x, -1)],
}


def forward_slope(x):
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.make_dual(x, x)


@pytest.mark.parametrize("name", sorted(WAYS | ANOTHER_THING))
def test_out_of_reach_is_what_a_name_does_by_whatever_way(name):
    closed = course.exercise("times")
    closed.out_of_reach = (name,)
    for number, way in enumerate(WAYS.get(name, ())):
        report = closed.judge(lambda x, n, way=way: way(x))
        assert report.state == "borrowed", (number, report.reason)
    for number, way in enumerate(ANOTHER_THING.get(name, ())):
        report = closed.judge(checked(lambda x, n, way=way: (way(x), x * n)[1]))
        assert report.state == "passed", (number, report.reason)
    for way in WAYS["torch.softmax"][:5]:
        way(torch.zeros(1, 1))  # no trap is left


def test_an_operator_that_a_cell_has_kept_is_trapped_too(judged, monkeypatch):
    monkeypatch.setattr(course.times, "out_of_reach", ("torch.softmax",))
    keep = "soft = torch.ops.aten._softmax.default\nassert soft(torch.zeros(1), 0, False) == 1"
    assert judged(keep, answer("return soft(x, -1, False)")).reason.startswith("it calls torch.ops.aten._softmax")
    assert judged(keep, OWN).state == "passed"


def test_what_another_thread_calls_the_answer_did_not():
    asked, done = threading.Event(), threading.Event()

    def bystander():
        asked.wait()
        with contextlib.suppress(BaseException):
            torch.mul(torch.ones(1), 2)
        done.set()

    def patient(x, n):
        asked.set()
        done.wait()
        return x * n

    def by_a_thread_of_its_own(x, n):
        out = []

        def hidden():
            with contextlib.suppress(BaseException):
                out.append(torch.mul(x, n))

        thread = threading.Thread(target=hidden)
        thread.start()
        thread.join()
        return out[0]

    threading.Thread(target=bystander, daemon=True).start()
    assert course.times.judge(checked(patient)).state == "passed"
    assert course.times.judge(by_a_thread_of_its_own).state == "borrowed"


def test_a_required_error_must_be_of_that_kind():
    def quiet(x, n):
        return x * n

    def other(x, n):
        if n < 0:
            raise KeyError("n")
        return x * n

    assert "with a ValueError; it returned a float tensor" in course.times.judge(quiet).reason
    assert "with a ValueError; it raised KeyError" in course.times.judge(other).reason


def test_the_mistake_is_named_by_its_results():
    assert course.times.judge(checked(lambda x, n: x + n)).mistake == "added instead of multiplied"
    assert course.times.judge(lambda x, n: n * x).mistake == "negative n accepted"
    assert course.times.judge(checked(lambda x, n: x - n)).mistake is None
    assert course.times.judge(checked(lambda x, n: x.nope)).mistake is None


GENERAL = {
    "the last two axes swapped": lambda x, n: (x * n).T,
    "the other sign": lambda x, n: -x * n,
    "a power of e too many": lambda x, n: (x * n).exp(),
    "turned around": lambda x, n: (x * n).flip(0),
    "a list in place of a tensor": lambda x, n: (x * n).tolist(),
    "a sum too many": lambda x, n: (x * n).sum(0),
    "a mean too many": lambda x, n: (x * n).mean(),
    "the right numbers in another shape": lambda x, n: (x * n)[..., None],
    "NaN or infinity among right numbers": lambda x, n: torch.where(x > 500, torch.inf, x * n),
    "a factor of 0.5 too much": lambda x, n: x * n / 2,
    "+0.1 everywhere": lambda x, n: x * n + 0.1,
    "nothing returned": lambda x, n: None,
    "the result in a tuple": lambda x, n: (x * n, n),
    "arguments changed in place": lambda x, n: x.mul_(n),
    None: lambda x, n: x * n + x.flip(0),
}


@pytest.mark.parametrize("name", GENERAL)
def test_general_mistakes_are_named_too(name):
    report = course.times.judge(checked(GENERAL[name]))
    assert report.mistake == name and (name is None or report.general)


def test_bad_input_that_is_let_through_or_badly_refused_has_a_name():
    bare = course.exercise("times")
    bare.mistakes.clear()

    def other(x, n):
        assert n >= 0
        return x * n

    assert bare.judge(lambda x, n: x * n).mistake == "bad input let through"
    assert bare.judge(other).mistake == "refused by another error"


def test_contracts_say_what_holds_and_what_breaks():
    report = course.times.judge(checked(lambda x, n: x * n * n))
    assert (report.holds, report.breaks) == (["zero stays zero", "once changes nothing"], [])
    report = course.times.judge(checked(lambda x, n: x * (n + 1)))
    assert (report.holds, report.breaks) == (["zero stays zero"], ["once changes nothing"])
    text = "\n".join(words.details(report))
    assert '"zero stays zero" holds;' in text and '"once changes nothing" breaks at' in text


def test_a_contract_counts_even_where_all_cases_agree():
    strict = course.exercise("times")
    strict.contract("big numbers stay")(
        lambda f: contracts.same("big numbers stay", f(torch.tensor([[5e4]]), 2), torch.tensor([[1e5]]))
    )
    report = strict.judge(checked(lambda x, n: (x * n).clamp(max=9e4)))
    assert report.state == "wrong" and report.reason == "a contract breaks: big numbers stay"
    assert "expected 1e+05, got 9e+04" in "\n".join(words.details(report))


def test_an_endless_loop_on_live_objects_is_interrupted():
    def endless(x, n):
        while True:
            pass

    quick = course.exercise("times", seconds=0.3)
    report = quick.judge(endless)
    assert report.state == "timeout" and "not done after 0.3 s" in report.reason
    with pytest.raises(TimedOut), time_limit(0.1):
        while True:
            pass


def test_a_time_limit_that_is_kept_leaves_nothing_behind():
    for _ in range(50):
        with contextlib.suppress(TimedOut), time_limit(0.001):
            sum(range(20_000))
        sum(range(20_000))  # nothing arrives out here


def test_what_a_learner_reads():
    report = course.times.judge(checked(lambda x, n: x + n), seed=0)
    assert textwrap.dedent("\n".join(words.details(report, named=True))) == textwrap.dedent("""\
        checked    x times n, for any n
        called     times([[1.541, -0.2934, -2.179], [0.5684, -1.085, -1.399]], 2)
        expected       3.082   -0.5869    -4.358
                       1.137    -2.169    -2.797
        got            3.541*    1.707*  -0.1788*
                       2.568*   0.9155*   0.6014*
                   6 of 6 numbers differ (*)
        contract   "zero stays zero" breaks at index (0, 0): expected 0 0, got 3 3
        question   what is 2 times 3?
        mistake    this is exactly what "added instead of multiplied" gives
                   x + n moves every number by the same amount.""")


def test_large_results_are_cut_around_the_first_difference():
    expected, got = torch.zeros(2, 20, 30), torch.zeros(2, 20, 30)
    got[1, 15, 20] = 7.0
    left, right = words.side_by_side(compare(expected, got))
    assert right[0] == "at [1], from row 12, column 14:" and "7*" in right[4]
    assert len(left) == len(right) <= 6 and max(map(len, right)) < 60


def test_handles_and_gradients():
    class Scale(torch.nn.Module):
        def __init__(self, n):
            super().__init__()
            self.n = torch.nn.Parameter(torch.tensor(float(n)))

        def forward(self, x):
            return x * self.n

    impl = InProcess(Scale).impl
    scale = impl(3)
    assert scale(torch.ones(2)).tolist() == [3, 3]
    scale.load_state_dict({"n": torch.tensor(5.0)})
    assert scale.n == 5 and dict(scale.state_dict())["n"] == 5
    output, grads = scale.gradients(torch.ones(2))
    weights = torch.tensor([0.0, 1.0]).cos()  # (2,)  of the sum that is differentiated
    assert output.tolist() == [5, 5] and list(grads) == ["0", "n"]
    assert torch.allclose(grads["0"], 5 * weights) and torch.allclose(grads["n"], weights.sum())
    with pytest.raises(AttributeError, match="nope"):
        scale.nope  # noqa: B018


def test_hostile_objects_come_back_plain():
    class Liar(torch.Tensor):
        def __eq__(self, other):
            return torch.ones(1, dtype=torch.bool)

    class Agree:
        def __eq__(self, other):
            return True

    lie = checked(lambda x, n: (x + n).as_subclass(Liar))
    assert course.times.judge(lie).state == "wrong"
    assert course.times.judge(checked(lambda x, n: Agree())).state == "wrong"


# ── what is said about the kinds of mistakes that everybody makes ────────────────────────────────


def said(f, exercise=course.times, **kwargs):
    """What a learner reads about an answer, on one line."""
    return " ".join("\n".join(words.details(exercise.judge(f, seed=0), **kwargs)).split())


def pair_exercise():
    """An exercise with a pair as its answer: the double of x (T,), and its length."""
    made = course.Exercise(
        "pair", chapter=course.CHAPTER, kind="write", level=1, minutes=5, points=2, page="", checks="c",
        question="q", hints=("a", "b", "c"), parts=("the double", "the length"),
    )  # fmt: skip

    @made.cases
    def _(g):
        yield (torch.tensor([1.0, 2.0]),)
        yield (torch.arange(5.0),)

    @made.reference
    def _(x):
        return 2 * x, len(x)

    return made


def test_numbers_that_differ_are_printed_with_the_digits_that_tell_them_apart():
    report = course.times.judge(checked(lambda x, n: x * n * 1.00005), seed=0)
    assert (report.expected[0].split()[0], report.got[0].split()[0]) == ("3.082", "3.0821*")
    assert '"once changes nothing" breaks at index (0, 1): expected 1 2, got 1 2.0001' in report.contract
    assert compare(3.0, 3.0001).words == "3 expected, got 3.0001"
    assert telling([(1.0, 1.0 + 2**-40)]) > 9 and telling([(1.0, 2.0)]) == 4


def test_a_row_of_long_numbers_stays_on_one_line():
    expected, got = -torch.arange(24.0).view(2, 12) * 1.2345e-5 - 1, -torch.ones(2, 12)
    left, right = words.side_by_side(compare(expected, got))
    assert max(map(len, left + right)) <= words.WIDTH - len(words.INDENT) - words.LABEL
    assert any("*" in line for line in right)


def test_what_a_value_is_called():
    assert name_of(torch.tensor(1)) == "an integer tensor of shape ()"
    assert name_of(0.0) == "the number 0.0" and name_of(0) == "the number 0"
    assert name_of(np.zeros(2)) == "a NumPy array" and name_of(torch.ones(1).sum) == "a function"


def test_an_item_that_is_none_is_no_forgotten_return():
    text = said(lambda x: (2 * x, None), pair_exercise(), named=True)
    assert "result, the length: nothing (None) this part of the result is None" in text
    assert "return`" not in text and "nothing returned" not in text


def test_the_items_of_a_pair_are_diagnosed_together():
    pair = pair_exercise()
    assert pair.judge(lambda x: (-2 * x, -len(x))).mistake == "the other sign"
    report = pair.judge(lambda x: (2 * x, torch.tensor(len(x))))
    assert report.mistake == "a tensor in place of a Python number"
    assert report.got == ["result, the length:", "an integer tensor of shape (): 2"]
    assert pair.judge(lambda x: (2 * x, float(len(x)))).mistake is None


def test_no_factor_of_one_and_no_summand_of_zero_is_named():
    assert course.times.judge(checked(lambda x, n: x * n * 0.9998)).mistake is None
    assert course.times.judge(checked(lambda x, n: x * n + 8e-5)).mistake is None


def test_values_that_are_right_get_no_diagnosis_but_their_kind():
    ones = course.exercise("times")
    ones.cases(lambda g: iter([(torch.ones(2, 2), 1), (torch.zeros(3), 1)]))
    ones.mistakes.clear()
    assert ones.judge(lambda x, n: (x * n).long()).mistake == "another kind of number"


def test_ones_own_check_that_refuses_what_is_allowed():
    def strict(x, n):
        if n != 2:
            raise ValueError("n")
        return x * n

    def asserts(x, n):
        assert x.shape == (2, 3)
        return x * n

    line = "these arguments are allowed: it is your own check that refuses them"
    for f in (strict, asserts):
        space = {"torch": torch}
        exec(compile(textwrap.dedent(inspect.getsource(f)), "x.ipynb[cell 1]", "exec"), space)
        linecache.cache["x.ipynb[cell 1]"] = (1, None, textwrap.dedent(inspect.getsource(f)).splitlines(True), "")
        assert line in said(space[f.__name__])
    assert line not in said(checked(lambda x, n: x.nope))


def test_an_error_that_is_returned():
    text = said(lambda x, n: ValueError("n") if n < 0 else x * n)
    assert "it returned a ValueError an error is raised, not returned" in text


def test_an_argument_that_is_changed_has_a_name_and_hides_no_wrong_result():
    assert "right, but your code changes its argument x in place" in said(checked(lambda x, n: x.mul_(n)))
    report = course.times.judge(checked(lambda x, n: x.add_(n)))
    assert report.mistake == "added instead of multiplied"
    assert report.remark.endswith("(*); your code changes its argument x in place")
    report = course.times.judge(checked(lambda x, n: -x.mul_(n)))
    assert report.mistake == "the other sign"


def test_contracts_say_nothing_about_what_is_no_tensor():
    report = course.times.judge(checked(lambda x, n: (x + n, n)))
    assert report.stage == "type" and not report.holds and not report.breaks and not report.contract


def test_torch_may_say_not_implemented_and_that_is_no_stub():
    report = course.times.judge(checked(lambda x, n: (x * n).long().softmax(-1)))
    assert report.state == "error" and "this needs floats" in report.reason


ADVISED = {
    "SyntaxError: invalid character '…' (U+2026)": "a … of the stub",
    "TypeError: unsupported operand type(s) for -: 'ellipsis' and 'Tensor'": "a … of the stub",
    "TypeError: f() takes 2 positional arguments but 3 were given": "the arguments of its stub",
    "NameError: name 'zz' is not defined": "misspelt",
    "NameError: name 'zz' is not defined. Did you mean 'z'?": "",
    "AttributeError: nothing of that kind": "",
}


@pytest.mark.parametrize("line", ADVISED)
def test_common_errors_get_a_sentence(line):
    said = advise(line)
    assert (ADVISED[line] in said) if ADVISED[line] else not said


COMMON = {
    "no keepdim": (lambda x, n: torch.ones(2, 3) - torch.ones(2), "keepdim=True"),
    "inner axes": (lambda x, n: torch.ones(2, 3) @ torch.ones(2, 3), "@ sums over"),
    "inner axes of a batch": (lambda x, n: torch.ones(1, 2, 3) @ torch.ones(1, 2, 3), "@ sums over"),
    "a vector": (lambda x, n: torch.ones(3) @ torch.ones(2), "@ sums over"),
    "one batch row": (lambda x, n: torch.ones(2, 3).view(3), "view and reshape keep"),
    "a view after a transpose": (lambda x, n: torch.ones(2, 3).T.view(6), "reshape copies"),
    "two dtypes": (lambda x, n: torch.ones(2, 2) @ torch.ones(2, 2).double(), "two kinds of numbers"),
    "a mean of whole numbers": (lambda x, n: torch.ones(2).long().mean(), "this needs floats"),
    "no graph": (lambda x, n: x.sum().backward(), "requires_grad_()"),
    "another device": (lambda x, n: x.cuda(), "so is the grader"),
    "recursion": (lambda x, n: COMMON["recursion"][0](x, n), "calls itself"),
    "one argument too few": (lambda x: x, "keep them"),
    "a misspelt method": (lambda x, n: x.softmx(-1), "Did you mean 'softmax'?"),
}


@pytest.mark.parametrize("name", COMMON)
def test_errors_as_torch_and_python_word_them_get_a_sentence(name):
    function, sentence = COMMON[name]
    report = course.times.judge(function)
    assert report.state == "error" and sentence in report.reason, report.reason


def test_a_wrong_result_before_a_loop_without_end_is_noted():
    def slow(x, n):
        while n == 3:
            pass
        return x + n

    report = course.exercise("times", seconds=0.3).judge(slow)
    assert report.state == "timeout" and "6 of 6 numbers differ" in report.notes[0]


def test_a_stub_that_is_still_reached(judged):
    left = judged(answer("y = x * n\nraise NotImplementedError"))
    assert left.state == "todo" and left.reason == words.STILL_A_STUB
    assert judged((course.STUB.format(name="times"), "times")).reason == ""


def test_every_cell_of_the_course_knows_that_it_is_untouched():
    for path in sorted(live.FOLDER.glob("*.ipynb")):
        for cell in Notebook.read(path).cells:
            if cell.exercise:
                came = f'{path.name}, {cell.exercise}: "came" in "tx" has to be "{as_it_came(cell.source)}"'
                assert cell.untouched, came
                assert not dataclasses.replace(cell, source=cell.source + "y = 1").untouched


# ── a notebook in a process of its own ───────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def sandbox():
    opened = Sandbox()
    os.environ["SECRET_OF_THE_TEST"] = "a key"
    opened.launch()
    del os.environ["SECRET_OF_THE_TEST"]
    yield opened
    opened.close()


@pytest.fixture
def hurried(sandbox, monkeypatch):
    monkeypatch.setattr(sandbox, "cell_seconds", 3)
    monkeypatch.setattr(sandbox, "call_seconds", 3)
    return sandbox


@pytest.fixture
def judged(sandbox, tmp_path):
    """judged(cells…) -> the report of `times` in a notebook of these cells."""

    def judge(*cells):
        path = course.write(tmp_path / f"{course.CHAPTER}.ipynb", *cells)
        before = path.read_bytes()
        report = judge_notebook(Notebook.read(path), course.times, sandbox)
        assert path.read_bytes() == before
        return report

    return judge


RIGHT = course.RIGHT.format(name="times")
OWN = (RIGHT, "times")


def answer(body):
    """A tagged cell with that body."""
    return "def times(x, n):\n" + textwrap.indent(textwrap.dedent(body), "    "), "times"


def test_a_right_notebook_passes(judged):
    report = judged(OWN)
    assert report.state == "passed" and report.tree and not report.notes


SURVIVED = {
    "exit in the function": (answer("import os; os._exit(0)"), "error", "ended the whole program"),
    "sys.exit": (answer("import sys; sys.exit(0)"), "error", "SystemExit"),
    "pytest.skip": (answer("import pytest; pytest.skip('x')"), "error", "Skipped"),
    "interrupt": (answer("raise KeyboardInterrupt"), "error", "KeyboardInterrupt"),
    "deep recursion": (answer("return times(x, n)"), "error", "RecursionError"),
    "a crash of the stack": (
        answer("import ctypes; ctypes.string_at(0)"), "error", "ended the whole program"),
    "syntax": (("def times(x, n)\n    return x", "times"), "error", "SyntaxError: expected ':'"),
    "memory": (
        answer("torch.empty(5 << 30, dtype=torch.uint8)"), "error", "asks for more memory than"),
    "the server killed": (
        answer("import os, signal; os.kill(os.getppid(), signal.SIGKILL); os._exit(1)"), "error", ""),
    "garbage": (answer("import os\nfor f in range(3, 30):\n    try: os.write(f, b'x' * 99)\n"
                       "    except OSError: pass\nreturn x"), "error", "ended the whole program"),
    "an object with a hostile name": (
        answer("class M(type):\n    def __getattribute__(s, k): raise SystemExit\n"
               "class A(metaclass=M): pass\nreturn A()"), "", ""),
    "an error with a hostile message": (
        answer("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E"), "error", "E: (its"),
    "torch patched": (answer("torch.equal = torch.allclose = lambda *a, **k: True\nreturn x"), "wrong", ""),
    "too much": (answer("return [torch.zeros(1 << 25) for _ in range(3)]"), "error", "too much"),
    "the answer read": (
        answer(f"return open({str(live.FOLDER / 'test_01_attention.py')!r})"), "borrowed", "test_01"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SURVIVED)
def test_it_survives(name, judged):
    cell, state, reason = SURVIVED[name]
    report = judged(cell)
    assert state in ("", report.state) and reason in report.reason, report
    assert report.state != "passed"
    assert judged(OWN).state == "passed"  # and the next one is graded


@pytest.mark.slow
def test_an_endless_loop_in_the_function(hurried, judged):
    report = judged(answer("while True: pass"))
    assert report.state == "timeout" and "not done after 3 s" in report.reason


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="elsewhere a process has no new parent when its own ends")
def test_no_orphan_goes_on_looping_when_the_grader_is_killed():
    loop = (
        "from tx.course.grading import child; child._end_with_the_grader()\n"
        "print(flush=True)\nwhile True: pass"
    )
    grader = (
        "import subprocess, sys, time\n"
        f"print(subprocess.Popen([sys.executable, '-c', {loop!r}]).pid, flush=True); time.sleep(100)"
    )
    killed = subprocess.Popen([sys.executable, "-c", grader], stdout=subprocess.PIPE, text=True)
    orphan = int(killed.stdout.readline())
    killed.stdout.readline()  # by now it watches and loops
    killed.kill()
    killed.wait()
    for _ in range(600):
        try:
            os.kill(orphan, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{orphan}/stat")
        if state.is_file() and "Z" in state.read_text().split(")")[-1][:3]:
            return  # ended, and nobody here collects it
        time.sleep(0.1)
    os.kill(orphan, 9)
    raise AssertionError("the loop went on without its grader")


STARTS = """
import os, subprocess, sys
sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
started = [subprocess.Popen(sleeps).pid, subprocess.Popen(sleeps, start_new_session=True).pid]
read, write = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        os.write(write, str(os.getpid()).encode())
        os.execv(sleeps[0], sleeps)
    os._exit(0)
started.append(int(os.read(read, 9)))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process without its parent cannot be found")
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_what_a_notebook_has_started_ends_with_it(way, tmp_path):
    path = course.write(tmp_path / f"{course.CHAPTER}.ipynb", STARTS, answer("print(*started)\nreturn x"))
    opened = Sandbox(way)
    try:
        report = judge_notebook(Notebook.read(path), course.times, opened)
        started = [int(pid) for pid in report.printed.split()[:3]]
        assert len(started) == 3, report
        for _ in range(100):
            alive = [pid for pid in started if pid in processes._running()]
            if not alive:
                break
            time.sleep(0.1)
        assert not alive
    finally:
        opened.close()


def test_processes_are_found_without_a_proc_too(monkeypatch):
    ours = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert ours.pid in processes._below(os.getpid())
        monkeypatch.setattr(processes, "Path", lambda path: Path(os.devnull))
        if shutil.which("ps"):
            assert ours.pid in processes._below(os.getpid())
    finally:
        ours.kill()
        ours.communicate()


@pytest.mark.slow
def test_cells_that_loop_or_exit_are_left_out_and_the_rest_is_graded(hurried, judged):
    report = judged("while True: pass", OWN, "import os\nos._exit(0)", "1 / 0", "raise SystemExit")
    assert report.state == "passed"
    assert report.left_out == [
        "cell 2 was not done after 3 s, so it was left out",
        "cell 4 ends the whole program, so it was left out",
    ]
    assert judged("while True: pass", OWN, "import os\nos._exit(0)").state == "passed"


@pytest.mark.slow
def test_the_exercises_own_cell_may_loop(hurried, judged):
    report = judged((RIGHT + "while True: pass", "times"))
    assert report.state == "timeout" and "cell 2 was not done" in report.reason


def test_one_syntax_error_does_not_fail_the_others(judged):
    assert judged("def nope(:", OWN, "x ==== 3").state == "passed"


def test_an_error_names_its_place_in_the_notebook(judged):
    report = judged(answer("y = x\n\nreturn y.nope"))
    assert "90_synthetic.ipynb[cell 2], line 4: return y.nope" in report.reason


def test_an_earlier_cell_that_failed_is_mentioned(judged):
    report = judged("helper = torch.nope", answer("return helper(x)"))
    assert "NameError" in report.reason and "cell 2 raises AttributeError" in report.notes[0]


def test_a_renamed_function(judged):
    report = judged((RIGHT.replace("times", "thymes"), "times"))
    assert report.reason.endswith("`times`, did you rename it? I see `thymes`")
    report = judged(RIGHT.replace("times", "timez"))
    assert "did you rename it? I see `timez`" in report.reason
    assert "the stub that belongs there" in judged("x = 1").reason


def test_a_lost_tag(judged):
    report = judged(RIGHT)
    assert report.state == "passed" and '"tx": {"exercise": "times"}' in report.notes[0]


def test_a_cell_that_became_text(judged, sandbox, tmp_path):
    """Key M in Jupyter's command mode."""
    path = course.write(tmp_path / f"{course.CHAPTER}.ipynb", OWN, "x = 1")
    notebook = json.loads(path.read_text())
    notebook["cells"][1]["cell_type"] = "markdown"
    path.write_text(json.dumps(notebook))
    report = judge_notebook(Notebook.read(path), course.times, sandbox)
    assert report.state == "error" and report.reason == "cell 2 is text now: make it code again (key Y)"
    notebook["cells"][2]["source"] = RIGHT  # a copy in a cell of one's own
    path.write_text(json.dumps(notebook))
    report = judge_notebook(Notebook.read(path), course.times, sandbox)
    assert report.state == "passed" and report.notes[0].startswith("cell 2 is text now")


SETTINGS = ["torch.set_grad_enabled(False)", "torch.set_default_dtype(torch.float64)",
            "torch.set_default_device('meta')"]  # fmt: skip
CONTEXTS = ["torch.inference_mode()", "torch.device('meta')", "torch.autocast('cpu', torch.bfloat16)",
            "torch.utils._device.DeviceContext('meta')"]  # fmt: skip
FILLED = """
def times(x, n):
    assert x.dtype == torch.float32 and x.device.type == "cpu"
    return x * n @ torch.eye(x.shape[-1]) + torch.zeros(1)
"""


def graded_by_gradients():
    """x times n, where its gradient counts as well."""
    made = course.exercise("times")
    made.mistakes.clear()
    made._cases = lambda g: [(torch.randn(2, 3, generator=g), 2)]
    made.gradients = True
    return made


CUTS = {
    "no gradient": ("return x.detach() * n", "no gradient reaches x"),
    None: ("return x * n / 2 + x.detach() * n / 2", "the gradient of x is not: 6 of 6 numbers differ"),
    "a known one": ("return x * n * 0 + x.detach() * n", "the gradient of x is not"),
    "an error": ("y = (x * n).exp()\n    z = y * y\n    y.log_()\n    return y + z.detach() - z",
                 "it has no gradient: RuntimeError"),
}


@pytest.mark.parametrize("name", CUTS)
def test_where_a_model_is_trained_through_an_answer_its_gradient_counts(name):
    body, reason = CUTS[name]
    space = {"torch": torch}
    exec(f"def times(x, n):\n    {body}", space)
    exercise = graded_by_gradients()
    exercise.mistakes_are(("a known one", "it counts as nothing.", lambda x, n: x.detach() * n + x * 0))
    report = exercise.judge(space["times"], 0)
    assert (report.state, report.stage, report.points) == ("wrong", "gradient", 0)
    assert reason in report.reason and report.mistake == (None if name == "an error" else name)
    assert report.general == (name == "no gradient")
    exercise.gradients = False
    assert exercise.judge(space["times"], 0).state == "passed"


def test_a_gradient_that_is_not_finite_or_nothing_is_not_asked_for():
    exercise = graded_by_gradients()
    exercise.contracts.clear()
    for right in (lambda x, n: (x - x).sqrt(), lambda x, n: x * 0 + 1):
        exercise.reference_answer, exercise._known = right, {}
        assert exercise.judge(lambda x, n, f=right: f(x.detach(), n), 0).state == "passed"


def test_parameters_of_a_layer_need_their_gradients_too():
    class Right(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.w

    class Cut(Right):
        def forward(self, x):
            return x * self.w.data

    exercise = graded_by_gradients()
    exercise.reference_answer = Right
    exercise._cases = lambda g: [(torch.ones(2),)]
    exercise.call(lambda impl, x: impl()(x))
    exercise.contracts.clear()
    assert exercise.judge(Right, 0).state == "passed"
    report = exercise.judge(Cut, 0)
    assert report.mistake == "no gradient" and "no gradient reaches w" in report.reason


def test_known_mistakes_may_stand_in_tables():
    exercise = course.exercise("times")
    exercise.mistakes.clear()
    exercise.mistakes_are(("plus", "it adds.", lambda x, n: x + n))
    exercise.edits_are(("minus", "it subtracts.", "x * n", "x - n"))
    x = torch.ones(2, 3)
    assert [function(x, 3).unique().tolist() for *_, function in exercise.mistakes] == [[4], [-2]]
    assert exercise.judge(lambda x, n: x - n, 0).mistake == "minus"
    with pytest.raises(ValueError, match="'gone': 'x @ n' occurs 0 times, expected once"):
        exercise.edits_are(("gone", "", "x @ n", "x"))


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_a_notebook_sets_for_torch_changes_no_verdict(setting, sandbox, tmp_path, restored):
    path = course.write(tmp_path / f"{course.CHAPTER}.ipynb", setting, (FILLED, "times"))
    report = judge_notebook(Notebook.read(path), graded_by_gradients(), sandbox)
    assert report.state == "passed", report.reason
    space = {"torch": torch}  # and in a live notebook
    exec(setting + FILLED, space)
    before = restored()
    report = graded_by_gradients().judge(space["times"])
    assert report.state == "passed", report.reason
    assert restored() == before  # the notebook has its setting back


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_a_notebook_has_entered_changes_no_verdict(context, sandbox, tmp_path):
    entered = f"(context := {context}).__enter__()"
    path = course.write(tmp_path / f"{course.CHAPTER}.ipynb", entered, (FILLED, "times"))
    report = judge_notebook(Notebook.read(path), graded_by_gradients(), sandbox)
    assert report.state == "passed", report.reason
    space = {"torch": torch}
    exec(FILLED, space)
    with eval(context, space):
        report = graded_by_gradients().judge(space["times"])
    assert report.state == "passed", report.reason


def test_a_warning_is_no_error_whatever_a_notebook_filters(judged):
    body = f"import warnings\nwarnings.warn('so much')\n{RIGHT}return times(x, n)"
    assert judged("import warnings\nwarnings.simplefilter('error')", answer(body)).state == "passed"


@pytest.fixture
def restored():
    """restored() -> torch's settings now; afterwards they are as before."""
    now = lambda: (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device())
    gradients, dtype, _ = now()
    yield now
    torch.set_grad_enabled(gradients)
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


def test_of_several_cells_for_one_exercise_it_is_said_which_counts(judged):
    added = (course.ADDED.format(name="times"), "times")
    for cells, state, counts in (
        ((OWN, added), "wrong", 3), ((added, OWN), "passed", 3), ((OWN, ("def times(:", "times")), "passed", 2),
        ((OWN, (course.STUB.format(name="times"), "times")), "todo", 3),
    ):  # fmt: skip
        report = judged(*cells)
        assert report.state == state
        said = " ".join("\n".join(words.details(report)).split())
        assert f"cells 2 and 3 are tagged for times, and cell {counts} counts" in said
    assert not judged(OWN).notes


@pytest.fixture
def judged_without(sandbox, tmp_path):
    """judged_without(number, "text" or "", cells…) -> the report where that cell is text, or gone."""

    def judge(number, becomes, *cells):
        path = course.write(tmp_path / f"{course.CHAPTER}.ipynb", *cells)
        notebook = json.loads(path.read_text())
        notebook["cells"][number - 1]["cell_type"] = "markdown"
        if not becomes:
            del notebook["cells"][number - 1]
        path.write_text(json.dumps(notebook))
        return judge_notebook(Notebook.read(path), course.times, sandbox)

    return judge


def test_a_notebook_without_its_setup_says_so(judged, judged_without):
    uses, asks = answer("return torch.ones(2)"), (RIGHT.replace("(x,", "(x: torch.Tensor,"), "times")
    for own in (uses, asks):
        report = judged_without(1, "", own)
        assert report.reason.startswith("`torch` is not defined: the setup cell, the first one of the notebook,")
        assert ", line " in report.reason and "misspelt" not in report.reason
        report = judged_without(1, "text", own)
        assert report.reason.startswith("`torch` is not defined: cell 1, the setup, is text now")
    misspelt = judged_without(1, "", "import torch", answer("return torhc.ones(2)"))
    assert misspelt.reason.startswith("NameError: name 'torhc' is not defined. Did you mean 'torch'?")
    assert judged(answer("return zz")).reason.startswith("NameError: name 'zz' is not defined\n")


def test_another_exercise_that_became_text_is_named(judged_without):
    again = (course.RIGHT.format(name="again"), "again")
    report = judged_without(2, "text", again, answer("return again(x, n)"))
    assert report.reason.startswith("`again` is not defined: cell 2, which defines it, is text now: make it code")


def test_a_cell_may_await_as_in_jupyter(judged):
    waits = "import asyncio\nasync def three():\n    return 3\ny = await three()"
    assert judged(waits, answer("return x * (n + y)")).state == "wrong"
    assert judged(waits, (RIGHT + "assert await three() == y == 3", "times")).state == "passed"


def test_a_stub_is_to_do_also_where_it_cannot_be_run(judged, judged_without):
    stub = course.STUB.format(name="times").replace("(x,", "(x: torch.Tensor,"), "times"
    assert judged_without(1, "", stub).shown == "todo"
    assert judged_without(1, "", (RIGHT.replace("(x,", "(x: torch.Tensor,"), "times")).shown == "error"


def test_the_tagged_cell_wins(judged):
    report = judged(OWN, "def times(x, n):\n    return x")
    assert report.state == "passed" and "defined again in another cell" in report.notes[0]
    assert judged("def times(x, n):\n    return x", OWN).state == "passed"


def test_magics(judged):
    body = "%timeit 3\nif True:\n    !ls\ny = !ls\nx = (3\n%2)\ntorch.mul?\n"
    assert judged("%%bash\nrm -rf x", "%matplotlib inline\n!pip list", OWN).state == "passed"
    assert judged(("%%time\n" + body.replace("x = (3\n%2)\n", "") + RIGHT, "times")).state == "passed"
    assert without_magics("x = (3\n%2)") == "x = (3\n%2)"


def test_printing_is_capped_and_shown(judged):
    report = judged(answer("print('y' * 10**6)\nfor _ in range(1000): print('z' * 999)\nreturn x"))
    assert report.state == "wrong" and 0 < len(report.printed) <= 2000
    assert "printed" in "\n".join(words.details(report))


PRINTS = """
import threading
def tick():
    while True:
        print("tick")
threading.Thread(target=tick, daemon=True).start()
"""


def test_a_thread_that_prints_disturbs_nobody(judged):
    for _ in range(3):
        assert judged(PRINTS, OWN).state == "passed"
    assert judged(PRINTS, answer("print('mine')\nreturn x")).printed.replace("mine", "").strip() == ""
    with captured():
        first = sys.stdout
    with captured():  # the thread may still be printing to the first one
        assert sys.stdout is first


def test_the_childs_house_is_empty(judged):
    cell = answer("""
        import os
        assert os.listdir(".") == [], os.listdir(".")
        assert "SECRET_OF_THE_TEST" not in os.environ
        with open("x", "w") as file:
            assert file.encoding.lower() == "utf-8"
        os.remove("x")
        try:
            input()
        except EOFError:
            pass
        if n < 0:
            raise ValueError
        return x * n
        """)
    report = judged(cell)
    assert report.state == "passed", report.reason


def test_grading_calls_in_cells_are_silent(judged):
    others = "from tx.course import commit, hint\nhint('times')\ncommit('x', '')"
    report = judged(OWN, 'grade("times")', others)
    assert report.state == "passed" and not report.notes


def test_comparing_with_torch_in_a_cell_is_no_borrowing(judged):
    compare_cell = "assert torch.equal(times(torch.ones(2), 3), torch.mul(torch.ones(2), 3))"
    assert judged(OWN, compare_cell).state == "passed"
    assert judged(answer("return torch.mul(x, n)")).state == "borrowed"
    assert judged("from torch import mul", answer("return mul(x, n)")).state == "borrowed"


@pytest.mark.slow
def test_where_a_fork_does_not_work(tmp_path, monkeypatch):
    load = Worker.load

    def breaks(self, *args):
        if opened.way == "fork":
            raise Gone
        load(self, *args)

    monkeypatch.setattr(Worker, "load", breaks)
    path, opened = tmp_path / f"{course.CHAPTER}.ipynb", Sandbox()
    try:
        notebook = Notebook.read(course.write(path, OWN))
        assert judge_notebook(notebook, course.times, opened).state == "passed"
        assert opened.way == "spawn"
        notebook = Notebook.read(course.write(path, answer("import os; os._exit(0)")))
        assert judge_notebook(notebook, course.times, opened).state == "error"
    finally:
        opened.close()


def test_notebooks_that_are_none(sandbox, tmp_path):
    path = tmp_path / f"{course.CHAPTER}.ipynb"
    for text, message in (
        (None, "is not in"), ("{", "is no valid notebook"), ("[]", "is JSON, but no notebook"),
        ('{"cells": [3]}', "is JSON, but no notebook"), ("\x00", "is no valid notebook"),
    ):  # fmt: skip
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with pytest.raises(Unreadable, match=message):
            Notebook.read(path)
        report = Submission("", tmp_path).judge(course.times, sandbox)
        assert report.state == "error" and "make reset EX=90" in report.reason


def test_attempts_are_told_apart_by_their_syntax_tree():
    assert fingerprint("def f(x):\n  return x") == fingerprint('def f(x):  # c\n    "doc"\n    return x')
    assert fingerprint("def f(x):\n  return x") != fingerprint("def f(x):\n  return -x")
    assert fingerprint("def f(:") == fingerprint("def  f(:")


# ── progress ─────────────────────────────────────────────────────────────────────────────────────


def reported(f, tree, exercise=course.times):
    report = exercise.judge(checked(f))
    report.tree = tree
    return report


def shown(progress, *args, **kwargs):
    return "\n".join(words.present(reported(*args, **kwargs), progress))


def test_the_mistake_is_named_from_the_second_distinct_attempt(tmp_path):
    progress = Progress(tmp_path / "p.json")
    add, right = (lambda x, n: x + n), (lambda x, n: x * n)
    assert "mistake" not in shown(progress, add, "a")
    assert "mistake" not in shown(progress, add, "a")  # the same answer again
    second = shown(progress, add, "b")
    assert "second attempt" in second and 'exactly what "added instead of multiplied"' in second
    assert "hint(" in second
    third = shown(progress, lambda x, n: x - n, "c")
    assert "third attempt: the same difference" in third and "matches no mistake we know" in third
    assert shown(progress, right, "d").splitlines()[0].split()[:3] == ["passed", "times", "2/2"]
    assert progress.entry("times")["state"] == "passed"


def test_a_debug_exercise_names_its_bug_after_passing(tmp_path):
    progress, add = Progress(tmp_path / "p.json"), (lambda x, n: x + n)
    first = reported(add, "as it came", course.broken)
    for tree in ("as it came", "b", "c"):
        text = "\n".join(words.present(reported(add, tree, course.broken), progress, explain=True))
        assert "added instead" not in text
    assert progress.attempts(first) == 2
    assert 'the bug was "added instead of multiplied"' in shown(
        progress, lambda x, n: x * n, "d", course.broken
    )


def test_what_changed_since_the_last_attempt(tmp_path):
    progress = Progress(tmp_path / "p.json")
    shown(progress, lambda x, n: x.nope, "a")
    assert "now it is a tensor, its shape is not right yet" in shown(progress, lambda x, n: x[0], "b")
    assert "now the shape is right, the numbers are not" in shown(progress, lambda x, n: x + n, "c")
    text = shown(progress, lambda x, n: x * (n + 1), "d")
    assert 'now "zero stays zero" holds; "once changes nothing" still breaks' in text
    assert "the same answer as before" in shown(progress, lambda x, n: x * (n + 1), "d")


def test_other_keys_are_kept_and_a_broken_file_is_set_aside(tmp_path):
    path = tmp_path / ".progress.json"
    path.write_text('{"predictions": {"q": "b"}, "exercises": 3}', encoding="utf-8")
    progress = Progress(path).load()
    progress.record(reported(lambda x, n: x, "a"))
    progress.save()
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["predictions"] == {"q": "b"} and kept["exercises"]["times"]["state"] == "wrong"
    for number, text in enumerate(("{nonsense", "[]")):
        path.write_text(text, encoding="utf-8")
        progress = Progress(path).load()
        aside = ".progress.json.unreadable" + ("", "-2")[number]
        assert aside in progress.warning and (tmp_path / aside).read_text(encoding="utf-8") == text
    assert progress.entry("times") == {}


# ── in a cell ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def house(tmp_path, monkeypatch, sandbox):
    """A course of our own: exercises/ with one chapter, and solutions/."""
    folder = tmp_path / "exercises"
    folder.mkdir()
    (tmp_path / "solutions").mkdir()
    course.handed_out(folder / f"{course.CHAPTER}.ipynb")
    course.write(
        tmp_path / "solutions" / f"{course.CHAPTER}.ipynb",
        *((course.RIGHT.format(name=n), n) for n in ("times", "broken", "again")),
    )
    (folder / "conftest.py").write_text(
        (live.FOLDER / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (folder / "test_90_synthetic.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from grading_course import *\nfrom tx.course.grading import exercises_of\n"
        "test_exercise = exercises_of(__name__)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(live, "FOLDER", folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(plugin, "Sandbox", lambda: Borrowed(sandbox))
    return folder


class Borrowed:
    """The tests' sandbox, which a pytest session in here must not close."""

    def __init__(self, sandbox):
        self._sandbox = sandbox

    def __getattr__(self, name):
        return getattr(self._sandbox, name)

    def close(self):
        pass


def test_grade_in_a_cell(house, capsys):
    space = {"grade": live.grade}
    exec('grade("times")', space)
    assert "There is no `times` here yet" in capsys.readouterr().out
    exec(RIGHT + 'grade("times")', space)
    assert capsys.readouterr().out == "  passed    times                    2/2\n"
    everything = "\n  90_synthetic: times, broken, again\n"
    for call, said in (
        ("grade('tines')", "There is no exercise 'tines': did you mean times?"), ("grade()", "Which exercise?"),
        ("grade('zzz')", "There is no exercise 'zzz'"), ("grade(3)", "There is no exercise 3"),
        ("grade(times)", "Its name is asked for, in quotes: 'times'"), ("hint()", "Which exercise?"),
    ):  # fmt: skip
        exec(call, space | {"hint": live.hint})
        assert capsys.readouterr().out == said + everything
    assert json.loads((house / ".progress.json").read_text())["exercises"]["times"]["state"] == "passed"


def test_the_same_wrong_answer_again_is_offered_a_hint(house, capsys):
    for offered in (False, True):
        exec(course.ADDED.format(name="times") + 'grade("times")', {"grade": live.grade})
        assert ('hint("times")' in capsys.readouterr().out) == offered


def test_grade_in_a_solution_leaves_no_trace(house, monkeypatch):
    monkeypatch.chdir(house.parent / "solutions")
    exec(RIGHT + 'grade("times")', {"grade": live.grade})
    live.hint("times")
    assert not (house / ".progress.json").exists()


def test_hints_come_one_by_one_and_end_with_the_solution(house, capsys):
    said = []
    for _ in range(5):
        live.hint("times")
        said.append(capsys.readouterr().out)
    assert "hint 1 of 4" in said[0] and "which operator multiplies?" in said[0]
    assert "x (T, D)" in said[1] and "return x * …" in said[2] and "the solution" in said[2]
    assert "return x * n" in said[3] and said[4] == said[3]
    assert Progress(house / ".progress.json").load().help("times") == 5


# ── the proof ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_proof_finds_what_does_not_hold(house, sandbox, monkeypatch):
    wrong = [
        mutants.Answer("times", "adds | *", checked(lambda x, n: x + n)),
        mutants.Answer("times", "is right", checked(lambda x, n: x * n)),
        mutants.Answer("times", "ends it", None, "import os; os._exit(0)", "error"),
        mutants.Answer("times", "calls it", None, answer("return torch.mul(x, n)")[0], "borrowed"),
        mutants.Answer("times", "calls it here", checked(lambda x, n: torch.mul(x, n))),
        mutants.Answer("times", "is lucky", checked(lambda x, n: x * n if x[0, 0] < 0 or x.numel() < 6 else x)),
    ]
    right = [mutants.Answer("times", "is wrong", checked(lambda x, n: x - n), expect="passed")]
    monkeypatch.setattr(proof, "answers", lambda: {"times": wrong + right})
    found = proof.Proof(live.catalogue()["times"], sandbox)
    assert [problem.partition(": ")[2].partition(":")[0] for problem in found.problems] == [
        "it knows 2 mistakes; four are the least",
        "6 wrong and 1 right answers; 5 and 2 are the least",
        "'is wrong' is wrong, not passed",
        "'is right' is passed, not wrong or error",
        "'calls it here' is borrowed, not wrong or error",
        "'is lucky' passes with seed 4",
    ]
    sections = {"times": found.section()}
    assert (
        "| wrong: adds &#124; \\* | wrong | the numbers; “zero stays zero” breaks"
        " | added instead of multiplied |" in sections["times"]
    )
    assert "| wrong answers, caught | 5 of 6 |" in proof.totals(sections)
    assert "named | 1 of 2 (50 %) |" in proof.totals(sections)
    assert "by a general one | 1, 0 |" in proof.totals(sections)
    assert proof.sections_of(proof.page(sections)) == sections
    assert "| second | 3 of 110 | 93 of 104 (89 %) | 0 of 34 |" in proof.blind()


# ── pytest exercises ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def run(house, pytester):
    """run(options…) -> the exit code and what was printed."""

    def call(*options):
        result = pytester.runpytest_inprocess(str(house), "-p", "no:cacheprovider", *options)
        return result.ret, "\n".join(result.outlines), "\n".join(result.errlines)

    return call


def test_a_fresh_run_is_an_invitation(run, house, monkeypatch):
    monkeypatch.setattr(tables, "FEW", 2)
    code, out, _ = run()
    assert code == 1 and "Traceback" not in out and "FAIL" not in out
    assert "Nothing is wrong" in out and "  wrong " not in out and "3 to do" in out
    for line in (
        "  to do     broken                   0/2    5 minutes; arrives broken: find the bug, repair it",
        "90 · Synthetic                              0 of 3 passed · 0 of 6 points",
        "  to do     times                    0/2    5 minutes",
        "░░░░░░░░░░░░░░░░░░░░ 0 of 3 exercises · 0 of 6 points",
        "next: times, 5 minutes (book/90-synthetic.ipynb, section times)",
    ):
        assert line in out.splitlines(), out


def test_the_exit_status_is_0_only_if_all_that_was_asked_for_has_passed(run, house):
    wrong = course.ADDED.format(name="broken") + "y = 1"  # the bug is still there
    course.write(house / f"{course.CHAPTER}.ipynb", OWN, (course.STUB.format(name="again"), "again"),
                 course.cell(wrong, "broken", came="another"))  # fmt: skip
    for names, status in (("times", 0), ("again", 1), ("broken", 1), ("times or again", 1), ("", 1)):
        code, out, _ = run("-k", names)
        assert code == status, (names, out)
    assert "Nothing is wrong" not in out and "  wrong     broken" in out and "1 wrong" in out
    assert run("--collect-only")[0] == 0
    assert run("-k", "nothing_at_all")[0] == 5


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_make_grade_passes_the_status_on():
    for command, passed in (("true", True), ("false", False)):
        made = subprocess.run(["make", "-o", ".venv/.core", "grade", f"PY={command}"], cwd=live.ROOT,
                              capture_output=True)  # fmt: skip
        assert (made.returncode == 0) == passed


def test_a_name_that_matches_nothing_is_told_the_nearest(run):
    code, out, _ = run("-k", "tymes or brokn")
    assert code == 5 and "No exercise matches -k 'tymes or brokn': did you mean times, broken?" in out
    code, out, _ = run("-k", "zzz")
    assert code == 5 and "No exercise matches -k 'zzz'\n  90_synthetic: times, broken, again" in out
    assert "No exercise" not in run("-k", "times")[1]


def test_what_cannot_be_done_is_refused_before_anything_is_graded(run, house):
    for options, fault in (
        (("--grade-json", f"{house}/none/g.json"), f"--grade-json: there is no folder {house / 'none'}"),
        (("--grade-json", "."), "is a folder; a file is asked for"),
        (("--impl", ".", "--class", "."), "--class and --impl both say whose notebooks are graded"),
    ):  # fmt: skip
        code, out, err = run(*options)
        assert code == 4 and fault in err and "passed" not in out


def test_a_wrong_answer_gets_our_report_and_no_traceback(run, house):
    course.write(house / f"{course.CHAPTER}.ipynb", (course.ADDED.format(name="times"), "times"))
    code, out, _ = run("-k", "times", "--junitxml", f"{house}/j.xml", "--grade-json", f"{house}/g.json")
    assert code == 1 and "Traceback" not in out and "NotPassed" not in out
    assert "expected" in out and "1 wrong" in out and "mistake" not in out
    grades = json.loads((house / "g.json").read_text(encoding="utf-8"))
    assert (grades["points"], grades["of"]) == (0, 2)
    (only,) = grades["exercises"]
    assert only.pop("reason").startswith("6 of 6 numbers differ")
    assert only == {
        "name": "times", "chapter": "90_synthetic", "points": 0, "of": 2, "state": "wrong",
        "mistake": "added instead of multiplied", "attempts": 1, "help": 0,
    }  # fmt: skip
    assert 'failures="1"' in (house / "j.xml").read_text(encoding="utf-8")
    assert "added instead of multiplied" in run("-k", "times", "--explain")[1]


def test_other_folders_leave_the_progress_alone(run, house):
    code, out, _ = run("--impl", str(house.parent / "solutions"))
    assert code == 0 and "3 passed" in out and "all passed" in out
    assert not (house / ".progress.json").exists()
    code, _, err = run("--impl", "nowhere")
    assert code == 4 and "there is no folder nowhere" in err


def test_hints_in_the_shell(run):
    code, out, _ = run("--hint", "times")
    assert code == 0 and "hint 1 of 4" in out
    code, _, err = run("--hint", "tines")
    assert code == 4 and "did you mean times?" in err and "90_synthetic: times, broken, again" in err


def test_a_class(run, house, tmp_path):
    group = tmp_path / "class"
    for name in ("zoë", "ada"):
        (group / name).mkdir(parents=True)
        course.write(
            group / name / f"{course.CHAPTER}.ipynb",
            (course.ADDED.format(name="times"), "times"), (course.RIGHT.format(name="again"), "again"),
        )  # fmt: skip
    course.write(group / "90_synthetic_bob.ipynb", OWN)
    assert [s.name for s in students(group)] == ["ada", "zoë", "bob"]
    code, out, _ = run("--class", str(group), "--grade-json", f"{house}/g.json")
    assert code == 1
    lines = out.splitlines()
    assert '    2 × times: "added instead of multiplied"   (ada, zoë)' in lines
    assert "bob         ✓   ·   ·   2/6" in lines and "passed      1   0   2" in lines
    sheet = json.loads((house / "g.json").read_text(encoding="utf-8"))["students"]
    assert list(sheet) == ["ada", "zoë", "bob"] and sheet["bob"]["points"] == 2
    assert not (house / ".progress.json").exists()


def test_everybody_in_a_class_counts_and_every_mistake_once(run, house, tmp_path):
    group = tmp_path / "class"
    for name in ("ada", "bob", "cleo", "dan", ".git", "ada/.ipynb_checkpoints"):
        (group / name).mkdir(parents=True)
    course.handed_out(group / "ada" / f"{course.CHAPTER}.ipynb")  # untouched
    (group / "ada" / ".ipynb_checkpoints" / f"{course.CHAPTER}-checkpoint.ipynb").write_text("{")
    (group / "bob" / f"{course.CHAPTER}.ipynb").write_text("{")
    (group / "dan" / f"{course.CHAPTER} (1).ipynb").write_text("{")
    assert [(s.name, len(s.files)) for s in students(group)] == [("ada", 1), ("bob", 1), ("cleo", 0), ("dan", 1)]
    code, out, _ = run("--class", str(group), "--grade-json", f"{house}/g.json")
    lines = out.splitlines()
    assert code == 1 and "4 students, 3 exercises" in lines
    for line in ("ada         ·   ·   ·   0/6", "bob         E   E   E   0/6", "cleo        ·   ·   ·   0/6",
                 "dan         E   E   E   0/6"):  # fmt: skip
        assert line in lines, out
    start = lines.index("the commonest mistakes")
    mistakes = lines[start + 1 : lines.index("", start)]
    assert len(mistakes) == 2 and all("1 × 90_synthetic: 90_synthetic" in line for line in mistakes), mistakes
    assert "is no valid notebook" in mistakes[0] and "make reset" not in mistakes[0]
    sheet = json.loads((house / "g.json").read_text(encoding="utf-8"))["students"]
    assert {e["state"] for e in sheet["ada"]["exercises"]} == {"todo"}


def test_ones_own_notebook_that_cannot_be_read_is_told_once(run, house):
    (house / f"{course.CHAPTER}.ipynb").write_text("{")
    out = run()[1]
    assert out.count("is no valid notebook") == 1 and out.count("  error ") == 3


def test_what_did_not_report_is_not_passed(run, house, monkeypatch):
    monkeypatch.setattr(plugin.Desk, "pytest_runtest_logreport", lambda self, report: None)
    out = run("--impl", str(house.parent / "solutions"))[1]
    assert "0 of 3 passed" in out and "no result came in" in out


@pytest.mark.slow
def test_a_terminal_without_utf8_still_reads():
    assert tables.printable("█░ · “a” … é ✓", "ascii") == '#. - "a" ... ? v'
    assert tables.printable("█ é", "utf-8") == "█ é"


@pytest.mark.slow
def test_xdist_and_a_foreign_locale_and_another_folder(tmp_path):
    command = [sys.executable, "-m", "pytest", str(live.FOLDER), "-n2", "--impl", "solutions",
               "-p", "no:cacheprovider", "--grade-json", "g.json"]  # fmt: skip
    env = {"PATH": "/usr/bin:/bin", "PYTHONUTF8": "0", "LC_ALL": "C", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    grades = json.loads((tmp_path / "g.json").read_text(encoding="utf-8"))
    assert grades["points"] == grades["of"] == sum(e.points for e in live.catalogue().values())
    assert "all passed" in done.stdout and "\\u" not in done.stdout
