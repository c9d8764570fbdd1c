"""Which licence a release says it has, and whether it is wanted."""

import pytest

from swe_rl.env.mining.licence import is_permitted, licence_of

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
