from permits.checks import check_digit
from permits.checks import clean_phone
from permits.checks import error_count
from permits.checks import first_missing
from permits.checks import mail_domain
from permits.checks import mask
from permits.checks import password_points
from permits.checks import strong_password
from permits.checks import trust_level
from permits.checks import valid_age
from permits.checks import valid_mail
from permits.checks import valid_pin
from permits.checks import valid_user_name


def test_valid_user_name_shortest():
    assert valid_user_name("ann")
    assert valid_user_name("an") is False


def test_valid_user_name_longest():
    assert valid_user_name("a23456789012")
    assert valid_user_name("a234567890123") is False


def test_valid_user_name_begins_with_a_letter():
    assert valid_user_name("7ann") is False


def test_valid_user_name_no_marks():
    assert not valid_user_name("an-n")


def test_valid_mail_accepts():
    assert valid_mail("ann@mail.org")


def test_valid_mail_one_at_sign():
    assert valid_mail("ann.mail.org") is False
    assert valid_mail("a@b@c") is False


def test_valid_mail_both_sides():
    assert valid_mail("@mail.org") is False
    assert valid_mail("ann@") is False


def test_valid_mail_no_dot_at_the_end():
    assert not valid_mail("ann@mail.")


def test_valid_mail_dot_at_the_start():
    assert valid_mail(".ann@mail")


def test_mail_domain_in_small_letters():
    assert mail_domain("Ann@Mail.ORG") == "mail.org"


def test_mail_domain_missing():
    assert mail_domain("ann") == ""


def test_strong_password_accepts():
    assert strong_password("abcdefg7")


def test_strong_password_too_short():
    assert strong_password("abcdef7") is False


def test_strong_password_common():
    assert strong_password("LetMeIn123") is False


def test_strong_password_needs_a_digit():
    assert not strong_password("abcdefgh")


def test_password_points_for_length():
    assert password_points("abcdefghi") == 2
    assert password_points("ABCDEFGHI") == 2


def test_password_points_for_mixed_case():
    assert password_points("Abcdefgh") == 3


def test_password_points_at_most_five():
    assert password_points("a" * 40) == 5


def test_valid_age_limits():
    assert valid_age(18)
    assert valid_age(120)


def test_valid_age_outside():
    assert valid_age(17) is False
    assert valid_age(121) is False


def test_valid_age_missing():
    assert valid_age(None) is False


def test_valid_pin_accepts():
    assert valid_pin("1231")
    assert valid_pin("1222")


def test_valid_pin_not_all_the_same():
    assert not valid_pin("7777")


def test_valid_pin_needs_four_digits():
    assert valid_pin("123") is False
    assert valid_pin("12a4") is False


def test_check_digit_weighted():
    assert check_digit("124") == 6


def test_check_digit_of_nothing():
    assert check_digit("") == 0


def test_check_digit_single():
    assert check_digit("7") == 7


def test_first_missing_absent():
    assert first_missing({"a": "1"}, ["a", "b", "c"]) == "b"


def test_first_missing_empty():
    assert first_missing({"a": "1", "b": ""}, ["a", "b"]) == "b"


def test_first_missing_none():
    assert first_missing({"a": "1"}, ["a"]) is None


def test_clean_phone_digits_only():
    assert clean_phone("12 34-5") == "12345"


def test_clean_phone_drops_leading_zeros():
    assert clean_phone("0049 30") == "4930"


def test_mask_hides_the_beginning():
    assert mask("secret") == "****et"
    assert mask("secret", 3) == "***ret"


def test_mask_of_a_text_with_nothing_to_hide():
    assert mask("ab") == "ab"


def test_mask_too_short():
    assert mask("a") == "*"


def test_error_count_of_failed_checks():
    assert error_count([True, False, True, False], 5) == 2


def test_error_count_stops_at_the_limit():
    assert error_count([False, False, False, False], 2) == 2


def test_error_count_none():
    assert error_count([True, True], 2) == 0


def test_trust_level_starts_at_one():
    assert trust_level(5, [10, 30]) == 1


def test_trust_level_at_a_limit():
    assert trust_level(10, [10, 30]) == 2


def test_trust_level_stops_at_the_first_limit_above():
    assert trust_level(20, [10, 30, 15]) == 2
