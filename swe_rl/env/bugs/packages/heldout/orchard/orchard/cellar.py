"""The cellar: crates, shelves and what is left in spring."""

SMELLY = ("onion", "cabbage")


def crate_code(text: str) -> str:
    """Cleans a code: no hashes in front, no dots behind, capitals."""
    plain = text.lstrip("# ")
    return plain.rstrip(". ").upper()


def is_crate_code(code) -> bool:
    """A 'C', then digits, then the side, which is L or R."""
    if code is None:
        return False
    if not code.startswith("C"):
        return False
    digits = code[1:-1]
    return digits.isdigit() and (code.endswith("L") or code.endswith("R"))


def shelf_of(crate: int, per_shelf: int) -> int:
    """The shelf, from one on, of a crate counted from one on."""
    before = crate - 1
    return before // per_shelf + 1


def may_store(kind: str, neighbours: list) -> bool:
    if kind in SMELLY:
        return False
    return not any(name in SMELLY for name in neighbours)


def layers_in(kilos: int, limits: list) -> int:
    """One layer, and one more for each limit that is reached."""
    layers = 1
    for limit in limits:
        if kilos >= limit:
            layers = layers + 1
    return layers


def climate_ok(degrees: int, humidity: int) -> bool:
    """From one to five degrees, and a humidity above 84."""
    if degrees < 1 or degrees > 5:
        return False
    return humidity > 84


def next_crate(crates: list, locked: list):
    """The code of the first crate that is neither empty nor locked."""
    for crate in crates:
        if crate["kilos"] != 0 and crate["code"] not in locked:
            return crate["code"]
    return None


def top_is_lightest(crates: list) -> bool:
    """Whether no crate of a stack is lighter than the first one."""
    if not crates:
        return True
    top = crates[0]["kilos"]
    return all(crate["kilos"] >= top for crate in crates)


def juice_litres(kilos: int, press: str) -> int:
    """Three litres from five kilos, an old press loses one more litre."""
    litres = kilos * 3 // 5
    loss = 0
    if press.endswith("old"):
        loss = 1
    return max(litres - loss, 0)


def latest_check(checks: list, missing: str) -> str:
    """The last entry of a list of checks that has a date."""
    dated = [check for check in checks if check is not None]
    if len(dated) < 1:
        return missing
    return dated[-1]
