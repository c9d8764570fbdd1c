"""`gateway.processes` puts conversations into processes of their own; router, engines and trace store stay in the
driver."""
