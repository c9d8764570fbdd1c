"""The books that a library owns."""

from dataclasses import dataclass


@dataclass
class Book:
    title: str
    author: str
    code: str
    year: int = 2000
    copies: int = 1


def normalize_code(code: str) -> str:
    """Codes are stored in capitals, without dashes or leading zeros."""
    plain = code.replace("-", "").strip()
    return plain.upper().lstrip("0")


def matches_title(book: Book, words: list) -> bool:
    """Whether every word occurs in the title, in any case."""
    title = book.title.lower()
    return all(word.lower() in title for word in words)


def titles_by_author(books: list, name: str) -> list:
    wanted = name.lower()
    found = []
    for book in books:
        if book.author.lower() != wanted:
            continue
        found.append(book.title)
    return sorted(found)


def newest_title(books: list):
    """The title of the latest book, None for an empty shelf."""
    if not books:
        return None
    ordered = sorted(books, key=lambda book: book.year)
    return ordered[-1].title


def published_between(books: list, first: int, last: int) -> list:
    """Titles from the first to the last year, both included."""
    found = []
    for book in books:
        if book.year < first:
            continue
        if book.year <= last:
            found.append(book.title)
    return found


def add_copies(book: Book, count: int) -> bool:
    """Adds at least one copy, and says whether it did."""
    if count < 1:
        return False
    book.copies = book.copies + count
    return True


def shelf_place(index: int, per_row: int) -> tuple:
    """Row and column of a book, both counted from one."""
    row = index // per_row + 1
    column = index % per_row + 1
    return row, column


def label_area(label: str) -> str:
    """The area of a label like 'north-3-17'."""
    parts = label.split("-")
    if len(parts) == 1:
        return ""
    return parts[0].upper()


def find_code(books: list, code: str):
    """The first book with this code, or None."""
    found = None
    for book in books:
        if book.code == code and book.copies > 0:
            found = book
            break
    return found
