"""What every reader of files raises: one error that lists all problems of a checkpoint (chapter 10)."""


MOST = 20  # problems in a message
LONGEST = 1000  # characters of a line


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; `problems` has every problem that was found, the message twenty."""

    def __init__(self, what, problems):
        self.what, self.problems = told(what), [told(problem) for problem in problems]
        plural = "s" if len(self.problems) != 1 else ""
        lines = self.problems[:MOST]
        if len(self.problems) > MOST:
            lines.append(f"… and {len(self.problems) - MOST} more")
        super().__init__(f"{what} ({len(self.problems)} problem{plural}):\n  " + "\n  ".join(lines))


def told(text):
    """A line for a person: of bounded length, without characters that steer a terminal."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
    return text if text.isprintable() else "".join(x if x.isprintable() else repr(x)[1:-1] for x in text)


def shown(value):
    """A value from a file in a message, of bounded length."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= 80 else text[:60] + f"… ({len(text)} characters)"
