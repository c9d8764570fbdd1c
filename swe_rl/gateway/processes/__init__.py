"""`gateway.processes`: conversations in processes of their own; router, engines and trace store stay in the driver."""
