"""What a museum keeps track of: exhibits, tickets and tours."""
