"""Counting and comparing words."""

VOWELS = "aeiou"
SMALL = ("a", "an", "and", "of", "or", "the")


def split_words(text: str) -> list:
    """Words in small letters, without marks at their end."""
    found = []
    for part in text.split():
        word = part.rstrip(".,;:!?").lower()
        if not word:
            continue
        found.append(word)
    return found


def count_word(text: str, word: str) -> int:
    count = 0
    for other in split_words(text):
        if other == word.lower():
            count = count + 1
    return count


def longest_word(words: list) -> str:
    """The longest word, the first one of equals."""
    longest = ""
    for word in words:
        if len(word) > len(longest):
            longest = word
    return longest


def title_case(text: str) -> str:
    """Capitals for all words but small ones; the first one gets one."""
    words = text.lower().split()
    for place, word in enumerate(words):
        if place > 0 and word in SMALL:
            continue
        words[place] = word[0].upper() + word[1:]
    return " ".join(words)


def initials(name: str) -> str:
    """First letters of the first and the last name."""
    parts = name.split()
    if len(parts) < 2:
        return ""
    first = parts[0].upper()
    last = parts[-1].upper()
    return first[:1] + last[:1]


def article(word: str) -> str:
    """'an' before a vowel, else 'a'."""
    if word[0].lower() in VOWELS:
        return "an " + word
    return "a " + word


def plural(word: str, count: int) -> str:
    """Adds an ending unless there is exactly one."""
    if count == 1:
        return word
    if word.endswith("s") or word.endswith("x"):
        return word + "es"
    return word + "s"


def is_palindrome(text: str) -> bool:
    """Whether letters read the same both ways, whatever their case."""
    letters = [char for char in text.casefold() if char.isalpha()]
    if not letters:
        return False
    return letters == letters[::-1]


def common_prefix(first: str, second: str) -> str:
    """What both words start with."""
    size = 0
    for left, right in zip(first, second):
        if left != right:
            break
        size = size + 1
    return first[:size]
