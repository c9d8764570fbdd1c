"""The kill storm: jobs that are killed at random and at named moments, and what must hold afterwards."""
