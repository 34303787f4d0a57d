"""Tools: typed functions. Types and docstring are what the model reads."""


def word_count(text: str) -> int:
    """Count the words of a text.

    Args:
        text: the text, without quotation marks around it.
    """
    return len(text.split())
