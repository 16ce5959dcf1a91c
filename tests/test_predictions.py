"""Predict, then run: what is printed, what is kept, and what happens to a damaged file."""

import json

import pytest

from tx.course import predictions
from tx.course.predictions import commit, reveal

TOML = """
[01-scale]
question = "What happens to the weights when d grows?"
answer = "b"
explain = "Scores grow with √d, so the softmax saturates."
[01-scale.replies]
a = "That would need scores that shrink."
b = "Yes."
c = "Only if the scores kept their size."
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    (tmp_path / "01-attention.toml").write_text(TOML, encoding="utf-8")
    monkeypatch.setattr(predictions, "_QUESTIONS", tmp_path)
    monkeypatch.setattr(predictions, "_PROGRESS", tmp_path / ".progress.json")
    monkeypatch.setattr(predictions, "_said", {})
    return tmp_path / ".progress.json"


def _kept(place):
    return json.loads(place.read_text(encoding="utf-8"))


def _new_sitting(monkeypatch):
    monkeypatch.setattr(predictions, "_said", {})


def test_without_a_letter_the_text_is_fixed_and_nothing_is_written(place, capsys):
    commit("01-scale", "")
    reveal("01-scale")
    assert capsys.readouterr().out == (
        "Your guess goes between the quotes: a, b, c. Then run this cell again.\n"
        'Commit to a letter first, in the cell above: commit("01-scale", "…").\n'
    )
    assert not place.exists()


def test_the_text_is_the_same_for_one_who_has_guessed_before(place, capsys, monkeypatch):
    """A maintainer's own progress file must not leak into the stored outputs."""
    place.write_text('{"predictions": {"01-scale": "b"}}')
    commit("01-scale", "")
    reveal("01-scale")
    assert "Commit to a letter first" in capsys.readouterr().out


def test_a_wrong_guess_gets_its_own_reply_and_the_answer(place, capsys):
    commit("01-scale", " C ")
    assert capsys.readouterr().out == "Noted: c. The next cell says what it shows.\n"
    reveal("01-scale")
    out = " ".join(capsys.readouterr().out.split())
    assert out == (
        "You said c. Only if the scores kept their size. "
        "The answer is b. Scores grow with √d, so the softmax saturates."
    )
    assert _kept(place) == {"predictions": {"01-scale": "c"}}


def test_a_right_guess(capsys):
    commit("01-scale", "b")
    reveal("01-scale")
    assert capsys.readouterr().out.endswith(
        "You said b. Yes.\nScores grow with √d, so the softmax saturates.\n"
    )


def test_the_first_guess_stays_on_record_and_the_latest_is_answered(place, capsys):
    commit("01-scale", "a")
    commit("01-scale", "b")
    reveal("01-scale")
    out = capsys.readouterr().out
    assert "Now b; your first guess was a." in out and "You said b." in out
    assert _kept(place)["predictions"] == {"01-scale": "a"}


def test_a_guess_of_an_earlier_sitting_is_found(capsys, monkeypatch):
    commit("01-scale", "a")
    _new_sitting(monkeypatch)
    reveal("01-scale")
    assert "You said a." in capsys.readouterr().out


def test_reveal_before_commit(capsys):
    reveal("01-scale")
    assert 'Commit to a letter first, in the cell above: commit("01-scale", "…").' in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("guess", ["d", "ab", "1", None])
def test_a_letter_that_is_no_option(place, guess):
    with pytest.raises(ValueError, match="01-scale has no option .* choose one of a, b, c"):
        commit("01-scale", guess)
    assert not place.exists()


def test_a_question_that_does_not_exist():
    for call in (lambda: commit("01-scales", "a"), lambda: reveal("01-scales")):
        with pytest.raises(ValueError, match="no question '01-scales'; there are: 01-scale"):
            call()


def test_other_entries_of_the_file_are_kept(place):
    place.write_text('{"attempts": {"stable_softmax": 2}, "predictions": {"00-view": "c"}}')
    commit("01-scale", "a")
    assert _kept(place) == {
        "attempts": {"stable_softmax": 2},
        "predictions": {"00-view": "c", "01-scale": "a"},
    }
    assert [p.name for p in place.parent.iterdir() if p.suffix == ".tmp"] == []


@pytest.mark.parametrize("broken", [b'{"predictions": {"01', b"[1, 2]", b"\xff\xfe\x00", b""])
def test_a_damaged_file_is_set_aside_with_a_sentence(place, capsys, broken):
    place.write_bytes(broken)
    commit("01-scale", "a")
    out = capsys.readouterr().out
    assert ".progress.json could not be read and was set aside as .progress.json.unreadable." in out
    assert _kept(place) == {"predictions": {"01-scale": "a"}}
    assert place.with_name(".progress.json.unreadable").read_bytes() == broken
    place.write_bytes(b"again")
    commit("01-scale", "a")  # an earlier one that was set aside is not lost
    assert place.with_name(".progress.json.unreadable").read_bytes() == broken
    assert place.with_name(".progress.json.unreadable-2").read_bytes() == b"again"


def test_predictions_of_another_shape_do_no_harm(place, capsys):
    place.write_text('{"predictions": ["a"]}')
    reveal("01-scale")
    commit("01-scale", "a")
    assert _kept(place)["predictions"] == {"01-scale": "a"}


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_record(place, capsys, monkeypatch):
    monkeypatch.setattr(predictions, "_PROGRESS", place.parent / "nowhere" / ".progress.json")
    commit("01-scale", "a")
    reveal("01-scale")
    out = capsys.readouterr().out
    assert "could not be written" in out and "You said a." in out


def test_the_books_own_questions_are_complete():
    """Every question has its parts, and its answer is one of at least two letters."""
    import tomllib

    for path in sorted((predictions._REPO / "book" / "questions").glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            assert set(entry) == {"question", "answer", "explain", "replies"}, name
            assert name.startswith(path.name[:3]), f"{name} stands in {path.name}"
            assert len(entry["replies"]) >= 2 and entry["answer"] in entry["replies"], name
            assert all(len(letter) == 1 and letter.islower() for letter in entry["replies"]), name
