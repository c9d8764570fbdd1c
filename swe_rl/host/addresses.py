"""Addresses of servers: what is none, said before anything is asked there.

Invariants:
- Standard library only; nothing is looked up or connected to.
- A user and a password in an address are in no text that leaves here.
"""

from urllib.parse import urlsplit


def base_address(url: str) -> str:
    """Scheme, host and path without a closing `/v1`, so that two spellings of a server are equal. Raises ValueError
    with what is wrong."""
    shown = repr(url)
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is no address like http://host:8000 ({error})") from None
    if parts.username or parts.password:
        raise ValueError(f"{parts.scheme}://***@{parts.hostname} holds a user and a password, which would be in files")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise ValueError(f"{shown} is no address like http://host:8000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"
