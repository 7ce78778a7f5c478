"""Pages of lists that are sorted for each request."""

from hypothesis import given
from hypothesis import strategies as st

from batholith.api.http.listing import ListRequest


@given(
    names=st.sets(st.text("abc", min_size=1, max_size=4), max_size=12),
    limit=st.integers(1, 5),
    descending=st.booleans(),
)
def test_pages_contain_each_item_once(names: set[str], limit: int, descending: bool) -> None:
    found: list[str] = []
    cursor = ""
    while True:
        request = ListRequest[str](
            query="q",
            position=lambda name: (str(len(name)), name),
            length=2,
            descending=descending,
            limit=limit,
            cursor=cursor,
        )
        page = request.select(names)
        assert page.total == len(names)
        assert len(page.items) <= limit
        found += page.items
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    expected = sorted(names, key=lambda name: (str(len(name)), name), reverse=descending)
    assert found == expected
