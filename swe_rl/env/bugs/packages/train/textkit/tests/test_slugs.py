from textkit.slugs import constant_name
from textkit.slugs import cut_slug
from textkit.slugs import file_ending
from textkit.slugs import is_hidden
from textkit.slugs import is_reserved
from textkit.slugs import is_slug
from textkit.slugs import next_version
from textkit.slugs import same_name
from textkit.slugs import slug
from textkit.slugs import unique_slug


def test_slug_joins_with_dashes():
    assert slug("Hello World 2") == "hello-world-2"


def test_slug_drops_marks():
    assert slug("It's -- fine!") == "its-fine"


def test_slug_of_nothing():
    assert slug("?!") == ""


def test_is_slug_accepts():
    assert is_slug("hello-world")


def test_is_slug_no_outer_dash():
    assert is_slug("-hello") is False
    assert is_slug("hello-") is False


def test_is_slug_no_capitals():
    assert not is_slug("Hello")


def test_is_slug_no_spaces():
    assert not is_slug("hello world")


def test_is_slug_not_empty():
    assert is_slug("") is False


def test_unique_slug_free():
    assert unique_slug("cat", ["dog"]) == "cat"


def test_unique_slug_taken():
    assert unique_slug("cat", ["cat", "dog", "cow"]) == "cat-2"


def test_unique_slug_taken_twice():
    assert unique_slug("cat", ["cat", "cat-2"]) == "cat-3"


def test_cut_slug_short_enough():
    assert cut_slug("abc-def", 7) == "abc-def"


def test_cut_slug_at_a_dash():
    assert cut_slug("abc-def-ghi", 9) == "abc-def"


def test_cut_slug_without_dash():
    assert cut_slug("abcdefgh", 5) == "abcde"


def test_cut_slug_drops_dashes_at_the_end():
    assert cut_slug("-abc--def", 6) == "-abc"


def test_file_ending_in_small_letters():
    assert file_ending("photo.JPG") == "jpg"


def test_file_ending_is_the_last():
    assert file_ending("a.tar.gz") == "gz"


def test_file_ending_missing():
    assert file_ending("README") == ""


def test_is_hidden_with_a_dot():
    assert is_hidden(".profile")


def test_is_hidden_backup():
    assert is_hidden("notes.txt~")


def test_is_hidden_not_others():
    assert not is_hidden("~notes.")


def test_is_reserved_in_any_case():
    assert is_reserved("Admin")


def test_is_reserved_not_others():
    assert not is_reserved("cat")


def test_constant_name_in_capitals():
    assert constant_name(" max size ") == "MAX_SIZE"


def test_constant_name_with_a_digit():
    assert constant_name("2 times") == "N2_TIMES"


def test_constant_name_ends_with_a_digit():
    assert constant_name("size 2") == "SIZE_2"


def test_next_version_counts():
    assert next_version("draft-3") == "draft-4"
    assert next_version("my-draft-9") == "my-draft-10"


def test_next_version_starts():
    assert next_version("draft") == "draft-2"
    assert next_version("my-draft") == "my-draft-2"


def test_next_version_of_a_number():
    assert next_version("3") == "3-2"


def test_same_name_in_any_case():
    assert same_name("Hello World", "hello  world!")


def test_same_name_different():
    assert not same_name("Hello", "World")


def test_same_name_missing():
    assert same_name(None, "a") is False
    assert same_name("a", None) is False
