"""Plain text tables: cells, alignment, columns, rendering."""
