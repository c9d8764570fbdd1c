"""Days and weeks as plain integers: clock, calendar, plans, shifts."""
