from texttable import cells


def test_number_text_plain():
    assert cells.number_text(5) == "5"


def test_number_text_with_plus():
    assert cells.number_text(5, plus=True) == "+5"


def test_number_text_zero_has_no_plus():
    assert cells.number_text(0, plus=True) == "0"


def test_number_text_negative():
    assert cells.number_text(-3, plus=True) == "-3"


def test_blank_of_missing():
    assert cells.blank(None) == ""


def test_blank_of_value():
    assert cells.blank(0) == "0"


def test_yes_no_true():
    assert cells.yes_no(True) == "yes"


def test_yes_no_false():
    assert cells.yes_no(False) == "no"


def test_is_true_words():
    assert cells.is_true("Yes ") is True


def test_is_true_cross():
    assert cells.is_true("x") is True


def test_is_true_not_for_others():
    assert cells.is_true("no") is False


def test_cents_with_two_digits():
    assert cells.cents(1250) == "12.50"


def test_cents_below_one_unit():
    assert cells.cents(7) == "0.07"


def test_is_number_digits():
    assert cells.is_number("12") is True


def test_is_number_negative():
    assert cells.is_number("-12") is True


def test_is_number_not_two_signs():
    assert cells.is_number("--12") is False


def test_is_number_not_sign_behind():
    assert cells.is_number("12-") is False


def test_is_number_not_a_word():
    assert cells.is_number("ab") is False


def test_heading_capitals():
    assert cells.heading("Name") == "NAME"


def test_heading_without_colon():
    assert cells.heading("Name:") == "NAME"


def test_heading_colon_in_front():
    assert cells.heading(":age") == ":AGE"


def test_is_comment_after_spaces():
    assert cells.is_comment("  # note") is True


def test_is_comment_not_behind():
    assert cells.is_comment("note #") is False


def test_trim_zeros_behind_point():
    assert cells.trim_zeros("0.50") == "0.5"


def test_trim_zeros_without_point():
    assert cells.trim_zeros("100") == "100"


def test_percent_of_total():
    assert cells.percent(1, 8) == 12


def test_percent_of_all():
    assert cells.percent(7, 7) == 100


def test_percent_of_nothing():
    assert cells.percent(0, 0) == 0


def test_initials_of_last_word():
    assert cells.initials("ann mary lee") == "L"


def test_initials_of_one_word():
    assert cells.initials("ann") == "A"


def test_initials_of_nothing():
    assert cells.initials(" ") == ""
