"""Texts of instances whose data set has none, or only a poor one."""
