"""Errors that are said to the user in one line: what is wrong, and what to do."""


class UserError(Exception):
    """Cannot go on. ``code`` is the exit code: 1 it could not, 2 wrong usage."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code
