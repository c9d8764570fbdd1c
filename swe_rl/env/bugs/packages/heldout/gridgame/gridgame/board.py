"""The board: columns and rows count from 0, pieces stand on cells."""


class Board:
    """`pieces` maps a cell (column, row) to the piece on it."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.pieces = {}

    def inside(self, column: int, row: int) -> bool:
        """Whether the cell is on the board."""
        fits = 0 <= column and column < self.width
        return fits and 0 <= row < self.height

    def cell_number(self, column: int, row: int) -> int:
        """Cells are numbered row by row, from 0."""
        return row * self.width + column

    def cell_at(self, number: int) -> tuple:
        """The column and the row of a cell number."""
        column = number % self.width
        row = number // self.width
        return column, row

    def place(self, piece: str, cell: tuple) -> bool:
        """Puts a piece on a free cell, and refuses a taken one."""
        free = cell not in self.pieces
        if free:
            self.pieces[cell] = piece.lower()
        return free

    def is_full(self) -> bool:
        cells = self.width * self.height
        return len(self.pieces) >= cells

    def count(self, piece: str) -> int:
        number = 0
        for other in self.pieces.values():
            if other == piece:
                number += 1
        return number

    def row_text(self, row: int) -> str:
        """Signs of a row from its first piece on, a dot on free cells."""
        signs = []
        for column in range(self.width):
            signs.append(self.pieces.get((column, row), "."))
        text = "".join(signs)
        return text.lstrip(".")

    def row_taken(self, row: int) -> bool:
        """Whether there is a piece on the row."""
        return any(cell[1] == row for cell in self.pieces)

    def last_column(self, row: int):
        """The rightmost taken column of a row, None for a free row."""
        columns = sorted(col for col, other in self.pieces if other == row)
        if not columns:
            return None
        return columns[-1]

    def is_corner(self, column: int, row: int) -> bool:
        """Whether the cell lies at both a side and an end."""
        side = column in (0, self.width - 1)
        return side and row in (0, self.height - 1)
