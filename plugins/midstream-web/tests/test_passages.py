"""The best passages of a long text for a query."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from midstream.tools.local_search import Span, passages
from midstream_web.reading import best_spans, by_words

PARAGRAPHS = [f"Paragraph {number} describes harbors, herons and hay." for number in range(100)]
PARAGRAPHS[40] = "The lighthouse of Amberbank is 105 metres high."
PARAGRAPHS[80] = "Lighthouses are white."
TEXT = "\n".join(PARAGRAPHS)


def found(query: str, limit: int, text: str = TEXT) -> list[str]:
    spans = list(passages(text, 200, 30))
    return [text[start:end] for start, end in best(text, spans, query, limit)]


def best(text: str, spans: list[Span], query: str, limit: int) -> list[Span]:
    return best_spans(spans, by_words([text[start:end] for start, end in spans], query), limit)


def test_the_passage_with_the_answer_is_found():
    assert "105 metres" in found("How high is the lighthouse in Amberbank?", 200)[0]
    assert len(found("lighthouse", 200)) == 1


def test_more_passages_come_in_the_texts_order():
    both = found("Amberbank lighthouses", 400)
    assert ["105" in both[0], "white" in both[1]] == [True, True]  # and "lighthouse" finds "lighthouses"


def test_adjacent_are_joined():
    [whole] = found("harbors herons hay", 10**6)
    assert whole == TEXT


def test_without_a_match_the_beginning_is_taken():
    for query in ("zeppelin", "", "?!", '"'):
        assert found(query, 300)[0].startswith("Paragraph 0")


def test_words_without_spaces_between_them():
    text = "".join(f"第{number}章、港と鷺と干し草の話。" for number in range(100)) + "琥珀浜の灯台は高さ百五米。"
    assert "百五米" in found("灯台の高さ", 200, text)[-1]


@given(
    st.lists(st.sampled_from(["hay ", "the ", "lighthouse ", "a. ", "\n"]), max_size=300),
    st.text(max_size=30),
    st.integers(1, 400),
)
def test_at_most_the_limit_or_one_passage(parts: list[str], query: str, limit: int):
    text = "".join(parts)
    spans = list(passages(text, 50, 8))
    chosen = best(text, spans, query, limit)
    assert chosen
    assert chosen == sorted(chosen)
    assert len(chosen) == 1 or sum(end - start for start, end in chosen) <= limit
    assert all(before[1] < after[0] for before, after in pairwise(chosen))
