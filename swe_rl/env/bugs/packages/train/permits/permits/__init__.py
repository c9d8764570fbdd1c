"""Who may do what: roles, rules, checks of input and sessions."""
