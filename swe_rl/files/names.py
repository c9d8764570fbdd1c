"""Names the folder or file that belongs to an instance, whatever the instance's id is.

Invariants:
- A name is one part of a path: nothing in an id leads out of the folder that it is joined to.
- Different ids have different names; an id that is a name already keeps it, so that people find its files.
"""

import hashlib
import re

# A file system allows 255 bytes; the files' own endings, and those of files that are being written, come behind a name.
_MOST_BYTES = 180
_ODD = re.compile(r"[^\w.-]+")
_KEPT_CHARS = 40
_DIGEST_CHARS = 16


def folder_name(instance_id: str) -> str:
    """Returns one part of a path for an id, or for an id and what else tells two folders of it apart."""
    if _is_name(instance_id):
        return instance_id
    digest = hashlib.sha256(instance_id.encode("utf-8", "surrogatepass")).hexdigest()
    kept = _ODD.sub("_", instance_id).strip("._-")[:_KEPT_CHARS]
    return f"{kept or 'instance'}-{digest[:_DIGEST_CHARS]}"


def _is_name(text: str) -> bool:
    if not text.strip() or text in (".", "..") or "/" in text or not text.isprintable():
        return False
    # What can be printed has no half of a surrogate pair.
    return len(text.encode()) <= _MOST_BYTES
