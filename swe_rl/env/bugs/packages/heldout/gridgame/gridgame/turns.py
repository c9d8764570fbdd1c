"""Whose turn it is: players in a circle, some of them out."""


class Turns:
    """Players move one after the other; `turn` counts from 0."""

    def __init__(self, names: list) -> None:
        self.names = names
        self.turn = 0
        self.out = set()
        self.paused = False
        self.log = []

    def current(self) -> str:
        """The player whose turn it is."""
        place = self.turn % len(self.names)
        return self.names[place]

    def round_number(self) -> int:
        """Rounds count from 1."""
        done = self.turn // len(self.names)
        return 1 + done

    def drop(self, name: str) -> bool:
        """Puts a player out of the game, once."""
        if name in self.out or name not in self.names:
            return False
        self.out.add(name)
        return True

    def still_in(self) -> list:
        """Players in the game, in their order."""
        rest = []
        for name in self.names:
            if name in self.out:
                continue
            rest.append(name)
        return rest

    def is_over(self) -> bool:
        """One player at most is left."""
        left = len(self.names) - len(self.out)
        return left <= 1

    def pause(self) -> None:
        """Stops the game and notes it."""
        if not self.paused:
            self.log.append("pause")
        self.paused = True

    def undo(self, steps=None) -> int:
        """Goes back by some turns, one if not given; never below 0."""
        back = 1
        if steps is not None:
            back = steps
        self.turn = max(self.turn - back, 0)
        return self.turn

    def last_entry(self):
        """The end of the log, None for an empty log."""
        if not self.log:
            return None
        return self.log[-1]

    def shout(self) -> str:
        """Calls the first player in capitals, without an @ in front."""
        name = self.names[0].lstrip("@")
        return name.upper() + "!"

    def find_bots(self) -> list:
        """Players whose name ends with bot."""
        names = [name.lower() for name in self.names]
        return [name for name in names if name.endswith("bot")]

    def skip(self, count: int) -> bool:
        """Moves on by some turns unless the game is paused."""
        if self.paused or count < 1:
            return False
        self.turn = self.turn + count
        return True
