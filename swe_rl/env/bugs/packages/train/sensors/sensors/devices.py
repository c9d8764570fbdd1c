"""Devices, their names and their units."""

from dataclasses import dataclass

UNITS = {"c": "celsius", "k": "kelvin", "f": "fahrenheit"}


@dataclass
class Device:
    name: str
    room: str = ""
    battery: int = 100
    offset: int = 0
    online: bool = True


def unit_name(symbol: str) -> str:
    """The unit of a symbol like '°C', in any case."""
    letter = symbol.lstrip("°").lower()
    if letter not in UNITS:
        return "unknown"
    return UNITS[letter]


def to_celsius(value: int, symbol: str) -> int:
    """Full degrees Celsius, rounded down."""
    unit = unit_name(symbol)
    if unit == "kelvin":
        return value - 273
    if unit == "fahrenheit":
        return (value - 32) * 5 // 9
    return value


def calibrate(device: Device, value):
    """Adds the offset of the device; missing readings stay missing."""
    if value is None:
        return None
    return value + device.offset


def parse_reading(text: str):
    """Reads 't1=25C' as ('t1', 25); None for broken ones."""
    name, mark, rest = text.partition("=")
    digits = rest.rstrip("CFK")
    if mark == "" or not digits.isdigit():
        return None
    return name.lower(), int(digits)


def device_type(name: str) -> str:
    """Outdoor names start with 'out', test names end with '-test'."""
    if name.endswith("-test"):
        return "test"
    if name.startswith("out"):
        return "outdoor"
    return "indoor"


def needs_battery(device: Device, limit: int = 20) -> bool:
    """Below the limit, or offline and not full."""
    if device.battery < limit:
        return True
    return not device.online and device.battery < 100


def battery_days(percent: int, per_day: int) -> int:
    """Full days that the battery lasts; 999 without use."""
    if per_day == 0:
        return 999
    return percent // per_day


def weakest(devices: list):
    """The name of the online device with the lowest battery, or None."""
    online = [device for device in devices if device.online]
    if not online:
        return None
    ordered = sorted(online, key=lambda device: device.battery)
    return ordered[0].name


def room_label(device: Device) -> str:
    """The room in capitals, or a question mark."""
    room = device.room.rstrip("0123456789")
    if room == "":
        return "?"
    return room.upper()


def next_name(names: list, prefix: str) -> str:
    """The prefix and the first free number from one on."""
    number = 0
    for _ in range(len(names) + 1):
        number = number + 1
        if prefix + str(number) not in names:
            break
    return prefix + str(number)


def minutes_ago(seconds: int) -> str:
    minutes = seconds // 60
    if minutes < 1:
        return f"{seconds} s"
    return f"{minutes} min {seconds % 60} s"


def poll_second(slot: int, devices: int) -> int:
    """Spreads devices evenly over a minute."""
    place = slot % devices
    return place * 60 // devices
