from ledger.accounts import Account
from ledger.accounts import account_kind
from ledger.accounts import available
from ledger.accounts import deposit
from ledger.accounts import find_account
from ledger.accounts import freeze_all
from ledger.accounts import is_debit_kind
from ledger.accounts import next_number
from ledger.accounts import short_number
from ledger.accounts import transfer
from ledger.accounts import valid_number
from ledger.accounts import withdraw


def test_account_kind_by_the_first_digit():
    assert account_kind("1004") == "asset"
    assert account_kind("5001") == "expense"


def test_account_kind_unknown():
    assert account_kind("9001") == "other"


def test_short_number_drops_leading_zeros():
    assert short_number("0120") == "120"


def test_short_number_of_zeros():
    assert short_number("000") == "0"


def test_is_debit_kind_of_assets_and_expenses():
    assert is_debit_kind("1005")
    assert is_debit_kind("5002")


def test_is_debit_kind_not_others():
    assert not is_debit_kind("2005")
    assert not is_debit_kind("4005")


def test_valid_number_accepts():
    assert valid_number("1001")
    assert valid_number("0012")


def test_valid_number_not_with_zeros_at_the_end():
    assert valid_number("1200") is False


def test_valid_number_needs_four_digits():
    assert not valid_number("123")
    assert not valid_number("12a4")


def test_available_with_a_limit():
    assert available(Account("1001", "cash", 50, 20)) == 70


def test_available_never_negative():
    assert available(Account("1001", "cash", -90, 20)) == 0


def test_available_not_when_frozen():
    assert available(Account("1001", "cash", 50, frozen=True)) == 0


def test_withdraw_takes_money():
    account = Account("1001", "cash", 50)
    assert withdraw(account, 20) is True
    assert account.balance == 30


def test_withdraw_everything():
    account = Account("1001", "cash", 50, 10)
    assert withdraw(account, 60) is True
    assert account.balance == -10


def test_withdraw_not_too_much():
    account = Account("1001", "cash", 50)
    assert withdraw(account, 51) is False
    assert account.balance == 50


def test_withdraw_not_zero():
    assert withdraw(Account("1001", "cash", 50), 0) is False


def test_deposit_adds_money():
    account = Account("1001", "cash", 50)
    assert deposit(account, 1) is True
    assert account.balance == 51


def test_deposit_not_zero():
    assert deposit(Account("1001", "cash"), 0) is False


def test_deposit_not_when_frozen():
    account = Account("1001", "cash", frozen=True)
    assert deposit(account, 20) is False


def test_transfer_moves_money():
    first, second = Account("1001", "cash", 50), Account("1002", "bank", 5)
    assert transfer(first, second, 20) is True
    assert (first.balance, second.balance) == (30, 25)


def test_transfer_not_to_a_frozen_account():
    first = Account("1001", "cash", 50)
    assert transfer(first, Account("1002", "bank", frozen=True), 20) is False
    assert first.balance == 50


def test_transfer_not_to_itself():
    first = Account("1001", "cash", 50)
    assert transfer(first, first, 20) is False


def test_transfer_not_without_money():
    second = Account("1002", "bank")
    assert transfer(Account("1001", "cash", 50), second, 60) is False
    assert second.balance == 0


def test_find_account_by_number():
    accounts = [Account("1001", "cash"), Account("1002", "bank")]
    assert find_account(accounts, "1002") is accounts[1]


def test_find_account_by_name():
    accounts = [Account("1001", "cash"), Account("1002", "Bank")]
    assert find_account(accounts, "bANK") is accounts[1]


def test_find_account_absent():
    assert find_account([Account("1001", "cash")], "bank") is None


def test_next_number_of_the_first():
    assert next_number([]) == "1001"


def test_next_number_after_the_largest():
    assert next_number(["1004", "1009", "1002"]) == "1010"


def test_freeze_all_named():
    accounts = [Account("1001", "cash"), Account("1002", "bank")]
    assert freeze_all(accounts, ["bank"]) == 1
    assert [one.frozen for one in accounts] == [False, True]


def test_freeze_all_counts_open_ones_only():
    accounts = [Account("1001", "cash", frozen=True), Account("1002", "bank")]
    assert freeze_all(accounts, ["cash", "bank"]) == 1


def test_freeze_all_of_none():
    assert freeze_all([Account("1001", "cash")], []) == 0
