"""Lending books: catalog, members, loans and fines. Days are plain numbers."""
