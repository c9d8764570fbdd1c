"""The cellar: crates, shelves and what is left in spring."""

SMELLY = ("onion", "cabbage")


def crate_code(text: str) -> str:
    """Cleans a code: no hashes in front, no dots behind, capitals."""
    plain = text.lstrip("# ")
    return plain.rstrip(". ").upper()


def is_crate_code(code) -> bool:
    """Codes start with C, end with a side (L or R), and have digits between."""
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


def left_after(kilos: int, weeks: int) -> int:
    """Each week takes a tenth of the rest, rounded down."""
    week = 1
    while week <= weeks:
        kilos = kilos - kilos // 10
        week = week + 1
    return kilos


def climate_ok(degrees: int, humidity: int) -> bool:
    """From one to five degrees, and a humidity above 84."""
    if degrees < 1 or degrees > 5:
        return False
    return humidity > 84


def next_crate(crates: list):
    """The first crate that is neither empty nor locked."""
    for crate in crates:
        if crate["kilos"] == 0 or crate["locked"]:
            continue
        return crate["code"]
    return None


def same_kind(crates: list) -> bool:
    if not crates:
        return True
    first = crates[0]["kind"]
    return all(crate["kind"] == first for crate in crates)


def juice_litres(kilos: int, press: str) -> int:
    """Three litres from five kilos, an old press loses one more litre."""
    litres = kilos * 3 // 5
    if press.endswith("old"):
        litres = litres - 1
    return max(litres, 0)


def latest_check(checks: list, missing: str) -> str:
    """The last entry of a list of checks that has a date."""
    dated = [check for check in checks if check is not None]
    if len(dated) < 1:
        return missing
    return dated[-1]
