from textkit.words import article
from textkit.words import common_prefix
from textkit.words import count_word
from textkit.words import initials
from textkit.words import is_palindrome
from textkit.words import longest_word
from textkit.words import plural
from textkit.words import split_words
from textkit.words import title_case


def test_split_words_in_small_letters():
    assert split_words("Red RED") == ["red", "red"]


def test_split_words_drops_marks_at_the_end():
    assert split_words("Yes, 'tis .5!") == ["yes", "'tis", ".5"]


def test_split_words_skips_marks_alone():
    assert split_words("one ! two") == ["one", "two"]


def test_count_word_in_any_case():
    assert count_word("The cat and the dog.", "THE") == 2


def test_count_word_absent():
    assert count_word("a cat", "dog") == 0


def test_longest_word_of_several():
    assert longest_word(["ab", "abcd", "abc"]) == "abcd"


def test_longest_word_takes_the_first_of_equals():
    assert longest_word(["ab", "cd"]) == "ab"


def test_longest_word_of_nothing():
    assert longest_word([]) == ""


def test_title_case_keeps_small_words():
    assert title_case("lord OF the rings") == "Lord of the Rings"


def test_title_case_begins_with_a_capital():
    assert title_case("the sea") == "The Sea"


def test_title_case_of_nothing():
    assert title_case("") == ""


def test_initials_of_two_names():
    assert initials("ann lee") == "AL"


def test_initials_skip_middle_names():
    assert initials("Ann Maria Lee") == "AL"


def test_initials_need_two_names():
    assert initials("Ann") == ""


def test_article_before_a_vowel():
    assert article("Apple") == "an Apple"


def test_article_before_others():
    assert article("tea") == "a tea"


def test_plural_of_one():
    assert plural("cat", 1) == "cat"


def test_plural_adds_s():
    assert plural("cat", 2) == "cats"
    assert plural("scene", 0) == "scenes"


def test_plural_adds_es():
    assert plural("bus", 2) == "buses"
    assert plural("box", 2) == "boxes"


def test_is_palindrome_ignores_marks_and_case():
    assert is_palindrome("Never odd, or even")


def test_is_palindrome_false():
    assert not is_palindrome("abca")


def test_is_palindrome_of_nothing():
    assert is_palindrome("!") is False


def test_common_prefix_of_two():
    assert common_prefix("carpet", "cargo") == "car"


def test_common_prefix_stops_at_the_first_difference():
    assert common_prefix("abcd", "axcd") == "a"


def test_common_prefix_none():
    assert common_prefix("dog", "cat") == ""
