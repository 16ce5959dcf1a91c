"""What every reader of files raises: one error that lists all problems of a checkpoint (chapter 10)."""


MOST = 20  # problems in a message


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded; `problems` has every problem that was found, the message twenty."""

    def __init__(self, what, problems):
        self.what, self.problems = what, list(problems)
        plural = "s" if len(self.problems) != 1 else ""
        lines = self.problems[:MOST]
        if len(self.problems) > MOST:
            lines.append(f"… and {len(self.problems) - MOST} more")
        super().__init__(f"{what} ({len(self.problems)} problem{plural}):\n  " + "\n  ".join(lines))


def shown(value):
    """A value from a file in a message, of bounded length."""
    text = repr(value)
    return text if len(text) <= 80 else text[:60] + f"… ({len(text)} characters)"
