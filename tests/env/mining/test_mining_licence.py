"""Which licence a release says it has, and whether it is wanted."""

import pytest

from swe_rl.env.mining.licence import is_permitted, licence_of, licence_of_text

PERMITTED = ("MIT", "BSD", "Apache", "ISC", "PSF")


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT\nClassifier: License :: OSI Approved :: BSD License\n", "MIT"),
        (
            "License: see LICENSE\nClassifier: License :: OSI Approved :: Apache Software License\n",
            "Apache Software License",
        ),
        ("License: BSD-3-Clause\n", "BSD-3-Clause"),
        ("Classifier: License :: OSI Approved\nClassifier: License :: OSI Approved :: MIT License\n", "MIT License"),
        ("License: The MIT License\n        Copyright\n", "The MIT License"),
        ("", ""),
    ],
)
def test_metadata_names_the_licence(tmp_path, metadata, licence):
    (tmp_path / "PKG-INFO").write_text(f"Metadata-Version: 2.4\nName: a\n{metadata}\nLicense: not here\n")
    assert licence_of(tmp_path) == licence


MIT = "(c) 2020\n\nPermission is hereby granted, free of charge, to any\n person obtaining a copy of this software"
BSD = "Redistribution and use in source and binary forms, with or without\nmodification, are permitted provided that"
GPL = "This program is free software: see the GNU General Public License. The MIT License is no part of it."


def test_a_whole_text_is_a_licence_by_what_it_grants(tmp_path):
    assert (licence_of_text(MIT), licence_of_text(BSD), licence_of_text(f"{BSD} {MIT}")) == ("MIT", "BSD", "BSD; MIT")
    assert licence_of_text(GPL) == "GPL" and licence_of_text("MIT") == ""
    field = "\n        ".join(line or "|" for line in MIT.split("\n"))
    (tmp_path / "PKG-INFO").write_text(f"Name: a\nLicense: {field}\n")
    assert licence_of(tmp_path) == "MIT"


def test_where_metadata_says_nothing_the_files_that_it_names_are_read(tmp_path):
    texts = {"LICENSE": MIT, "AUTHORS": "A person.", "LICENSE.old": "All rights reserved.", "COPYING": GPL}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    for names, licence in (
        (("LICENSE", "AUTHORS"), "MIT"),
        (("LICENSE", "COPYING"), "MIT; GPL"),
        (("LICENSE", "LICENSE.old"), "MIT; a text of its own"),
        (("AUTHORS", "../PKG-INFO", "LICENSE.new"), ""),
    ):
        fields = "".join(f"License-File: {name}\n" for name in names)
        (tmp_path / "PKG-INFO").write_text(f"Name: a\n{fields}")
        assert licence_of(tmp_path) == licence


@pytest.mark.parametrize(
    ("licence", "is_wanted"),
    [
        ("MIT License", True),
        ("BSD-3-Clause", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT License; GNU General Public License v3 (GPLv3)", False),
        ("GNU Lesser General Public License", False),
        ("Python Software Foundation License", True),
        ("PSF-2.0", True),
        ("Proprietary, permitted use", False),
        ("", False),
    ],
)
def test_each_licence_has_to_be_wanted(licence, is_wanted):
    assert is_permitted(licence, PERMITTED) is is_wanted
    assert is_permitted(licence, ())
