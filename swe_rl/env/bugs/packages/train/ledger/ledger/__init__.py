"""Double-entry accounts: postings, balances, statements and budgets."""
