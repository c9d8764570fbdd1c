from shelf.catalog import Book
from shelf.catalog import add_copies
from shelf.catalog import find_code
from shelf.catalog import label_area
from shelf.catalog import matches_title
from shelf.catalog import newest_title
from shelf.catalog import normalize_code
from shelf.catalog import published_between
from shelf.catalog import shelf_place
from shelf.catalog import titles_by_author


def test_normalize_code_uses_capitals():
    assert normalize_code("ab12") == "AB12"


def test_normalize_code_drops_leading_zeros_only():
    assert normalize_code("00120") == "120"


def test_normalize_code_drops_dashes():
    assert normalize_code(" 1-2-3 ") == "123"


def test_matches_title_ignores_case():
    book = Book("The Sea Wolf", "London", "1")
    assert matches_title(book, ["SEA", "wolf"])


def test_matches_title_needs_every_word():
    book = Book("The Sea Wolf", "London", "1")
    assert not matches_title(book, ["sea", "bear"])


def test_matches_title_without_words():
    assert matches_title(Book("Emma", "Austen", "2"), [])


def test_titles_by_author_are_sorted():
    books = [Book("Emma", "Austen", "1"), Book("A Heart", "austen", "2")]
    assert titles_by_author(books, "AUSTEN") == ["A Heart", "Emma"]


def test_titles_by_author_skips_others():
    books = [Book("Ulysses", "Joyce", "1"), Book("Emma", "Austen", "2")]
    assert titles_by_author(books, "Austen") == ["Emma"]


def test_titles_by_author_unknown():
    assert titles_by_author([Book("Emma", "Austen", "2")], "Joyce") == []


def test_newest_title_is_the_latest():
    books = [Book("A", "x", "1", 1990), Book("B", "x", "2", 2010)]
    assert newest_title(books) == "B"
    assert newest_title(books[::-1]) == "B"


def test_newest_title_of_nothing():
    assert newest_title([]) is None


def test_published_between_includes_both_ends():
    books = [Book("A", "x", "1", 1990), Book("B", "x", "2", 1995)]
    assert published_between(books, 1990, 1995) == ["A", "B"]


def test_published_between_skips_earlier():
    books = [Book("A", "x", "1", 1989), Book("B", "x", "2", 1992)]
    assert published_between(books, 1990, 1995) == ["B"]


def test_published_between_skips_later():
    books = [Book("A", "x", "1", 1996), Book("B", "x", "2", 1992)]
    assert published_between(books, 1990, 1995) == ["B"]


def test_add_copies_one():
    book = Book("Emma", "Austen", "1")
    assert add_copies(book, 1) is True
    assert book.copies == 2


def test_add_copies_refuses_zero():
    book = Book("Emma", "Austen", "1")
    assert add_copies(book, 0) is False
    assert book.copies == 1


def test_add_copies_several():
    book = Book("Emma", "Austen", "1", copies=4)
    add_copies(book, 3)
    assert book.copies == 7


def test_shelf_place_first():
    assert shelf_place(0, 5) == (1, 1)


def test_shelf_place_next_row():
    assert shelf_place(5, 5) == (2, 1)


def test_shelf_place_end_of_row():
    assert shelf_place(14, 5) == (3, 5)


def test_label_area_in_capitals():
    assert label_area("north-3-17") == "NORTH"


def test_label_area_takes_the_first_part():
    assert label_area("A-B") == "A"


def test_label_area_without_dash():
    assert label_area("north") == ""


def test_find_code_takes_the_first():
    books = [Book("A", "x", "7"), Book("B", "x", "7")]
    assert find_code(books, "7").title == "A"


def test_find_code_skips_other_codes():
    books = [Book("A", "x", "6"), Book("B", "x", "7")]
    assert find_code(books, "7").title == "B"


def test_find_code_needs_a_copy():
    assert find_code([Book("A", "x", "7", copies=0)], "7") is None


def test_find_code_absent():
    assert find_code([Book("A", "x", "7")], "8") is None
