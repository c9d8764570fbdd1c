"""Makes instances of what a package index and git histories hold: each difference that brings a test and a fix."""
