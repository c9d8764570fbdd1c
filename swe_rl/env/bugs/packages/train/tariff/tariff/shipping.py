"""What sending a parcel costs."""

from dataclasses import dataclass

ISLANDS = ("sylt", "amrum", "juist")
FREE_FROM = 5000


@dataclass
class Parcel:
    grams: int
    place: str = "kiel"
    value: int = 0
    fragile: bool = False


def weight_class(grams: int) -> str:
    if grams <= 500:
        return "small"
    if grams <= 2000:
        return "medium"
    return "large"


def base_fee(grams: int) -> int:
    """300 cents, and 50 more for each full kilogram."""
    kilos = grams // 1000
    return 300 + kilos * 50


def island_fee(place: str) -> int:
    """Islands cost 400 cents more."""
    if place.lower() in ISLANDS:
        return 400
    return 0


def parcel_fee(parcel: Parcel) -> int:
    """All fees of a parcel; valuable ones go free."""
    if parcel.value >= FREE_FROM and not parcel.fragile:
        return 0
    fee = base_fee(parcel.grams) + island_fee(parcel.place)
    if parcel.fragile:
        fee = fee + 250
    return fee


def boxes_needed(items: int, per_box: int) -> int:
    """How many boxes hold the items; a started box counts."""
    boxes = items // per_box
    if items % per_box != 0:
        boxes = boxes + 1
    return boxes


def valid_postcode(code: str) -> bool:
    """Five digits, the first two not both zero."""
    if code.startswith("00"):
        return False
    return code.isdigit() and len(code) == 5


def zone(code: str) -> int:
    """The zone is the first digit of a postcode; one for no postcode."""
    if not code:
        return 1
    return int(code[0])


def short_street(street: str) -> str:
    """Drops trailing dots and shortens the word street."""
    plain = street.rstrip(". ")
    if plain.endswith("street"):
        return plain[:-6] + "st"
    return plain


def heaviest(parcels: list):
    """The heaviest parcel, the first one of equals, None for none."""
    best = None
    for parcel in parcels:
        if best is None or parcel.grams > best.grams:
            best = parcel
    return best


def any_fragile(parcels: list) -> bool:
    return any(parcel.fragile for parcel in parcels)


def vans_needed(weights: list, limit: int) -> int:
    """How many vans carry the weights, loaded in the given order."""
    vans = 1
    load = 0
    for grams in weights:
        if load + grams > limit:
            vans = vans + 1
            load = 0
        load = load + grams
    return vans
