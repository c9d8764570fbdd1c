"""A recipe: ingredients in grams for some portions, and its steps."""


class Recipe:
    """Ingredients map names to grams; steps are pairs (text, minutes)."""

    def __init__(self, name: str, portions: int) -> None:
        self.name = name
        self.portions = portions
        self.grams = {}
        self.steps = []

    def add(self, name: str, grams: int) -> bool:
        """Adds to what is there; only positive amounts count."""
        if grams <= 0:
            return False
        self.grams[name] = self.grams.get(name, 0) + grams
        return True

    def scaled(self, portions: int) -> dict:
        """The grams for another number of portions."""
        result = {}
        for name, grams in self.grams.items():
            result[name] = grams * portions // self.portions
        return result

    def weight(self) -> int:
        total = 0
        for grams in self.grams.values():
            total = total + grams
        return total

    def heaviest(self):
        """The ingredient with most grams, the earlier one of equals."""
        best = None
        for name, grams in self.grams.items():
            if best is None or grams > self.grams[best]:
                best = name
        return best

    def uses_any(self, names: list) -> bool:
        """Whether at least one of the names is used."""
        return any(name in self.grams for name in names)

    def left_over(self, guests: int) -> int:
        """Portions left when all guests get the same number of them."""
        if guests < 1:
            return self.portions
        return self.portions % guests

    def final_step(self):
        if not self.steps:
            return None
        text, minutes = self.steps[-1]
        return text

    def step_text(self, number: int):
        """Steps are numbered from 1; None behind the last one."""
        if number > len(self.steps):
            return None
        text, minutes = self.steps[number - 1]
        return text

    def minutes(self, extra=None) -> int:
        """The time of all steps, and of what comes on top."""
        total = sum(step[-1] for step in self.steps)
        if extra is not None:
            total = max(total + extra, 0)
        return total

    def is_quick(self, limit: int) -> bool:
        """At most `limit` minutes in all, and at least one step."""
        total = sum(minutes for text, minutes in self.steps)
        return total <= limit and len(self.steps) >= 1

    def long_steps(self, limit: int) -> list:
        """Texts of the steps that take `limit` minutes or more."""
        found = []
        for text, minutes in self.steps:
            if minutes < limit:
                continue
            found.append(text)
        return found
