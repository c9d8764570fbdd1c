"""Accounts and their numbers."""

from dataclasses import dataclass


@dataclass
class Account:
    number: str
    name: str
    balance: int = 0
    limit: int = 0
    frozen: bool = False


KINDS = {"1": "asset", "2": "debt", "4": "income", "5": "expense"}


def account_kind(number: str) -> str:
    """The first digit says what kind an account is."""
    digit = number[0]
    if digit not in KINDS:
        return "other"
    return KINDS[digit]


def short_number(number: str) -> str:
    """Without leading zeros, but never empty."""
    plain = number.lstrip("0")
    if not plain:
        return "0"
    return plain


def is_debit_kind(number: str) -> bool:
    """Assets and expenses grow on the debit side."""
    kind = account_kind(number)
    return kind == "asset" or kind == "expense"


def valid_number(number: str) -> bool:
    """Four digits, not ending with two zeros."""
    if number.endswith("00"):
        return False
    return number.isdigit() and len(number) == 4


def available(account: Account) -> int:
    """What can be spent: the balance and the limit, never below zero."""
    if account.frozen:
        return 0
    return max(account.balance + account.limit, 0)


def withdraw(account: Account, amount: int) -> bool:
    """Takes money if the account is open and has enough."""
    if amount <= 0 or amount > available(account):
        return False
    account.balance = account.balance - amount
    return True


def deposit(account: Account, amount: int) -> bool:
    """Frozen accounts take no money either."""
    if account.frozen or amount < 1:
        return False
    account.balance = account.balance + amount
    return True


def transfer(source: Account, target: Account, amount: int) -> bool:
    """Moves money only if both sides accept it."""
    if source is target or target.frozen:
        return False
    if not withdraw(source, amount):
        return False
    target.balance = target.balance + amount
    return True


def find_account(accounts: list, text: str):
    """The first account by number or by name in any case."""
    for account in accounts:
        if account.number == text or account.name.lower() == text.lower():
            return account
    return None


def next_number(numbers: list) -> str:
    """The number after the largest one, '1001' for the first."""
    if not numbers:
        return "1001"
    largest = int(max(numbers))
    return str(largest + 1)


def freeze_all(accounts: list, names: list) -> int:
    """Freezes the named accounts; returns how many were open before."""
    changed = 0
    for account in accounts:
        if account.frozen or account.name not in names:
            continue
        account.frozen = True
        changed = changed + 1
    return changed
